"""The contract of a compressor: frozen hyper-parameters with two pure methods. It never sees the network."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from sidco.payload import Payload, Sparse
from sidco.view import Layout, VectorView, View

S = TypeVar("S")


class Compressor(ABC, Generic[S]):
    """Turns a vector into a message. Subclasses are frozen dataclasses.

    Laws (held by `sidco.testing`): `compress` leaves `x` as it was, the payload shares no memory with it, the same
    input and state give the same bits, and the global random state is never touched. `state` is donated: after the
    call only the returned one is valid. A state is a NamedTuple of tensors, numbers and other states.
    """

    @property
    def band(self) -> tuple[float, float] | None:
        """Where the long-run mean of k_hat / k lies on the samples of law 7; None: no target, or no promise."""
        return None

    @abstractmethod
    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> S:
        """The state before the first vector like `x` (n,); `layout` names the tensors inside it. `seed` is the
        same on all ranks and differs between groups of parameters.
        """

    @abstractmethod
    def compress(self, x: Tensor, state: S) -> tuple[Payload, S]:
        """The message for `x` (n,), any float type, finite."""

    def take(self, view: VectorView, state: S) -> tuple[Payload, S]:
        """The message for what the view stands for, residual + scale * x. What it does not carry is left in the
        residual, also where the wire rounds values.
        """
        assert view.residual is not None
        residual = view.residual.add_(view.x, alpha=view.scale)
        payload, state = self.compress(residual, state)
        payload.add_to(residual, alpha=-1.0)
        return payload, state

    def report(self, state: S) -> dict[str, float]:
        """What is worth a column in the record of a step, by name."""
        return {}


class Thresholder(Compressor[S]):
    """Keeps what exceeds a threshold, strictly. A subclass says how the threshold is estimated.

    A vector that is not all zero never goes silent: where nothing exceeds the threshold its largest coordinate is sent.
    """

    @abstractmethod
    def threshold(self, view: View, state: S) -> tuple[Tensor, S]:
        """The threshold, 0-d on the vector's device. No host synchronisation is needed to find it."""

    def observe(self, state: S, count: int) -> S:
        """Learn how many coordinates exceeded the threshold."""
        return state

    def trim(self, payload: Sparse) -> Sparse:
        """A last word on what was selected."""
        return payload

    def compress(self, x: Tensor, state: S) -> tuple[Payload, S]:
        n = x.numel()
        if not n:
            return Sparse.of(torch.empty_like(x), torch.empty_like(x, dtype=torch.int32), 0), state
        taken, state = self._exceeding(VectorView(x), state)
        return self.trim(taken if taken.count else _largest(x)), state

    def take(self, view: VectorView, state: S) -> tuple[Payload, S]:
        """The threshold is found before anything is written; one pass then adds, selects and zeroes."""
        residual = view.residual
        assert residual is not None
        if not view.numel:
            return self.compress(residual, state)
        taken, state = self._exceeding(view, state)
        payload = self.trim(taken if taken.count else _largest(residual))
        if payload is not taken:  # put all back, and take away what is really sent
            taken.add_to(residual)
            payload.clear(residual)
        return payload, state

    def _exceeding(self, view: VectorView, state: S) -> tuple[Sparse, S]:
        threshold, state = self.threshold(view, state)
        values, indices = view.take(threshold)
        return Sparse.of(values, indices, view.numel), self.observe(state, values.numel())


def _largest(x: Tensor) -> Sparse:
    """The largest coordinate of x (n,), the first of equal ones, or none if it is zero."""
    ends = torch.stack([x.argmin(), x.argmax()]).sort().values  # no copy of |x|: this may be all of a large model
    place = ends[x[ends].abs().argmax()].view(1)
    indices = place[x[place] != 0]
    return Sparse.of(x[indices], indices, x.numel())


def check_ratio(ratio: Any) -> None:
    """Raise unless 0 < ratio <= 1."""
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
        raise ValueError(f"ratio must be a number in (0, 1], got {ratio!r}: write 0.001, not 1/1000 or '1e-3'")


def target_count(numel: int, ratio: float) -> int:
    """k = max(int(d delta), 1), as the authors' code counts it; 0 for an empty vector."""
    return min(numel, max(int(numel * ratio), 1))
