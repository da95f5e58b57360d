"""A method is a dialogue with the network: a generator that yields collectives and is sent their results."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from sidco.compressor import Compressor
from sidco.kernels import reference
from sidco.payload import mean_of
from sidco.view import Layout

S = TypeVar("S")

NAMED = 3  # tensors an error message lists


@dataclass(frozen=True)
class AllReduce:
    """Answered with the elementwise result over all ranks, in `buffer` itself. "mean" divides before it sums."""

    buffer: Tensor
    count: int  # coordinates the buffer carries, for the records
    op: Literal["sum", "mean", "max"] = "sum"


@dataclass(frozen=True)
class AllGather:
    """Answered with every rank's buffer, in rank order; sizes may differ, types may not.

    None says "I have nothing that may be sent": every rank finds a None in the answer and can act alike.
    `nbytes`: of every rank's buffer, where all know it. Such buffers begin with an int32 that is not negative.
    """

    buffer: Tensor | None
    count: int
    nbytes: int | None = None


Collective = AllReduce | AllGather
Dialogue = Generator[Collective, Any, tuple[Tensor, S]]


class NonFiniteGradient(RuntimeError):
    """A gradient with a NaN or an infinity. Raised on every rank in the same step, before the bad rank's state changed.

    `tensors` are the places in the group of the bad ones on this rank; who drives the dialogue knows their names.
    """

    def __init__(self, message: str, tensors: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.tensors = tensors

    def named(self, names: Sequence[str]) -> "NonFiniteGradient":
        """The same, saying which tensors of a group with these names are meant."""
        bad = ", ".join(names[place] for place in self.tensors[:NAMED])
        if len(self.tensors) > NAMED:
            bad += f" and {len(self.tensors) - NAMED} more"
        return NonFiniteGradient(f"{self}: {bad}" if bad else str(self), self.tensors)


class Method(ABC, Generic[S]):
    """How W ranks find the mean of a group of gradients. Subclasses are frozen dataclasses."""

    @abstractmethod
    def init(self, x: Tensor, *, layout: Layout, seed: int) -> S:
        """The state before the first step of a group whose gradients, one after the other, look like `x` (n,)."""

    @abstractmethod
    def aggregate(
        self, grads: Sequence[Tensor], state: S, *, scale: float = 1.0, out: Tensor | None = None
    ) -> Dialogue[S]:
        """Returns (mean over ranks of scale * grads as one vector (n,), state). Replicas get the same bits.

        `out`: (n,) float32 to work and to return the mean in, where the method can: fresh memory is dear.
        """

    def report(self, state: S) -> dict[str, float]:
        """What is worth a column in the record of a step, by name."""
        return {}


@dataclass(frozen=True)
class Gathered(Method[S]):
    """Any compressor as a method: messages are gathered (or summed on the wire where they may be) and averaged.

    A NaN or an infinity in the gradient raises `NonFiniteGradient` on all ranks: nothing is zeroed or skipped silently.
    """

    compressor: Compressor[S]

    def init(self, x: Tensor, *, layout: Layout, seed: int) -> S:
        return self.compressor.init(x, layout=layout, seed=seed)

    def aggregate(
        self, grads: Sequence[Tensor], state: S, *, scale: float = 1.0, out: Tensor | None = None
    ) -> Dialogue[S]:
        x = torch.cat([grad.reshape(-1).float() for grad in grads], out=out)  # a copy: ours to write on
        if scale != 1.0:
            x.mul_(scale)
        if not reference.finite(x):
            yield from self._refuse(x, grads)
        payload, state = self.compressor.compress(x, state)
        if payload.summable:
            mean = yield AllReduce(payload.pack(), payload.count, "mean")
            if not reference.finite(mean):
                raise NonFiniteGradient(
                    "the averaged gradient is not finite: it overflowed on the wire, or a rank's was not"
                )
            return mean_of([payload.received(mean)], out=x), state
        message = payload.pack()
        buffers = yield AllGather(message, payload.count, message.nbytes if payload.fixed else None)
        silent = [rank for rank, buffer in enumerate(buffers) if buffer is None]
        if silent:
            raise NonFiniteGradient(f"the gradient of rank {silent[0]} is not finite: see its log for the tensor")
        return mean_of([payload.received(buffer) for buffer in buffers], out=x), state

    def _refuse(self, x: Tensor, grads: Sequence[Tensor]) -> Dialogue[S]:
        """Take part in the step without a message, so that all ranks stop at the same place."""
        zeros = torch.zeros_like(x)
        probe, _ = self.compressor.compress(zeros, self.compressor.init(zeros))
        if probe.summable:
            yield AllReduce(probe.pack().fill_(torch.nan), 0, "mean")
        else:
            yield AllGather(None, 0, probe.pack().nbytes if probe.fixed else None)
        bad = tuple(i for i, grad in enumerate(grads) if not reference.finite(grad))
        raise NonFiniteGradient("the gradient is not finite on this rank", bad)

    def report(self, state: S) -> dict[str, float]:
        return self.compressor.report(state)
