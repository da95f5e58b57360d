"""What changes how a compressor is used, as compressors that wrap one."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sidco.compressor import Compressor, check_ratio
from sidco.kernels import reference
from sidco.payload import Payload
from sidco.view import Layout, VectorView


class FeedbackState(NamedTuple):
    residual: Tensor  # (n,) float32: what was not sent yet
    inner: Any


@dataclass(frozen=True)
class ErrorFeedback(Compressor[FeedbackState]):
    """Sends C(residual + x) and keeps the rest: sum of sent + residual = sum of x, also where the wire rounds.

    In gradient space: x is the gradient, not the step, so a change of learning rate does not rescale old residuals.
    Source: EF-SGD (Karimireddy et al., ICML 2019; Stich et al., NeurIPS 2018). The only error feedback in here.
    Costs: around a `Thresholder`, the threshold and then one pass that reads 2n and writes n; around any other
    compressor the sum (reads 2n, writes n), the compressor, and k.
    """

    inner: Compressor[Any]

    @property
    def band(self) -> tuple[float, float] | None:
        return self.inner.band

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> FeedbackState:
        return FeedbackState(_zeros(x), self.inner.init(x, layout=layout, seed=seed))

    def compress(self, x: Tensor, state: FeedbackState) -> tuple[Payload, FeedbackState]:
        payload, inner = self.inner.take(VectorView(x, state.residual), state.inner)
        return payload, FeedbackState(state.residual, inner)

    def report(self, state: FeedbackState) -> dict[str, float]:
        return self.inner.report(state.inner)


class MomentumState(NamedTuple):
    momentum: Tensor  # (n,) float32: u, the local momentum
    velocity: Tensor  # (n,) float32: v, what has gathered up and was not sent
    inner: Any


@dataclass(frozen=True)
class MomentumCorrection(Compressor[MomentumState]):
    """DGC's memory: u = m u + x, v = v + u; sends C(v), and forgets u and v where it was sent (factor masking).

    The momentum of SGD lives in here, so the optimizer has none. With `nesterov`, u = m (u + x) and v = v + u + x.
    `clip` bounds the 2-norm of the whole averaged gradient; each rank clips x to clip / sqrt(world_size) before it
    counts, as independent gradients add up in the square.
    Law, its own: without masking and clipping, sum of sent + v = sum of momentum SGD's steps. With masking there is
    none: stale momentum is dropped on purpose.
    Source: DGC (Lin et al., ICLR 2018), section 3 and algorithm 1; factor masking: section 3.2.
    """

    inner: Compressor[Any]
    momentum: float = 0.9
    nesterov: bool = False
    clip: float | None = None
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum!r}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be null or a norm above 0, got {self.clip!r}")

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> MomentumState:
        return MomentumState(_zeros(x), _zeros(x), self.inner.init(x, layout=layout, seed=seed))

    def compress(self, x: Tensor, state: MomentumState) -> tuple[Payload, MomentumState]:
        u, v = state.momentum, state.velocity
        x = x * self._shrinkage(x)
        if self.nesterov:
            u.add_(x).mul_(self.momentum)
            v.add_(x)
        else:
            u.mul_(self.momentum).add_(x)
        payload, inner = self.inner.take(VectorView(u, v), state.inner)  # v = v + u, less what is sent
        payload.clear(u)
        return payload, MomentumState(u, v, inner)

    def _shrinkage(self, x: Tensor) -> Tensor | float:
        if self.clip is None or not x.numel():
            return 1.0
        norm = reference.moments(x, None, {"squares"})[2].sqrt()
        return (self.clip / math.sqrt(self.world_size) / (norm + 1e-6)).clamp_max(1.0).float()

    def report(self, state: MomentumState) -> dict[str, float]:
        return self.inner.report(state.inner)


class WarmupState(NamedTuple):
    seed: int
    calls: int
    inner: Any


@dataclass(frozen=True)
class RatioWarmup(Compressor[WarmupState]):
    """Ends at the ratio of `inner`, after `steps` calls at each of `ratios`, as a training starts with large gradients.

    Wrapped by what has a memory (error feedback, momentum correction): the compressor's own state starts afresh with
    each ratio.
    Source: DGC (Lin et al., ICLR 2018), section 3.3, by epoch: 0.25, 0.0625, 0.015625, 0.004, then 0.001.
    """

    inner: Any  # a frozen compressor with a field `ratio`
    ratios: tuple[float, ...] = (0.25, 0.0625, 0.015625, 0.004)
    steps: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratios", tuple(self.ratios))  # from a yaml it is a list, which has no hash
        if not hasattr(self.inner, "ratio"):
            raise ValueError(f"warm-up needs a compressor with a ratio, got {self.inner!r}")
        for ratio in self.ratios:
            check_ratio(ratio)
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps!r}")

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> WarmupState:
        return WarmupState(seed, 0, self._at(0).init(x, layout=layout, seed=seed))

    def compress(self, x: Tensor, state: WarmupState) -> tuple[Payload, WarmupState]:
        calls = state.calls
        payload, inner = self._at(calls).compress(x, self._begun(x, state))
        return payload, WarmupState(state.seed, calls + 1, inner)

    def take(self, view: VectorView, state: WarmupState) -> tuple[Payload, WarmupState]:
        payload, inner = self._at(state.calls).take(view, self._begun(view.x, state))
        return payload, WarmupState(state.seed, state.calls + 1, inner)

    def _begun(self, x: Tensor, state: WarmupState) -> Any:
        """The inner state, afresh where a ratio begins."""
        calls = state.calls
        if 0 < calls <= self.steps * len(self.ratios) and calls % self.steps == 0:
            return self._at(calls).init(x, seed=state.seed + calls)
        return state.inner

    def _at(self, calls: int) -> Compressor[Any]:
        """The compressor in force: a ratio below its own target is never used."""
        stage = calls // self.steps
        if stage >= len(self.ratios):
            return self.inner
        return replace(self.inner, ratio=max(self.ratios[stage], self.inner.ratio))

    def report(self, state: WarmupState) -> dict[str, float]:
        current = self._at(max(0, state.calls - 1))
        return {"ratio_in_force": getattr(current, "ratio", math.nan), **current.report(state.inner)}


def _zeros(x: Tensor) -> Tensor:
    return torch.zeros(x.numel(), dtype=torch.float32, device=x.device)
