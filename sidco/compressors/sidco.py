"""SIDCo: a threshold fitted in stages, each refining the one before on what exceeded it."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from sidco.compressor import Thresholder, check_ratio, target_count
from sidco.fits import Exponential, Fit
from sidco.view import Layout, View

Rule = Literal["paper", "sign", "trend"]

FIRST_RATIO = 0.25  # share kept by stage 1 when more stages follow
PERIOD = 5  # calls between two adaptations
TOLERANCE = 0.2  # of the mean of k_hat / k, both ways
EXPONENTIAL = (Exponential(), Exponential())  # both fits of SIDCo-E, whose stages a view can do in one go


class SidcoState(NamedTuple):
    """The stage controller of one vector."""

    target: int  # k
    stages: int  # M, in force at the next call
    step: int  # +1 or -1: the direction in which "too many" is answered with fewer stages
    ratios: float  # sum of k_hat / k since the last adaptation
    calls: int  # how many it sums
    last: float  # the mean at the last adaptation; 0 before the first


@dataclass(frozen=True)
class Sidco(Thresholder[SidcoState]):
    """Keeps |x| > eta; eta from `first` fitted to |x|, then from `tail` fitted to the exceedances of the stage before.

    `first`/`tail`: Exponential/Exponential is SIDCo-E, Gamma/Pareto SIDCo-GP, Pareto/Pareto SIDCo-P.
    With M stages, stage 1 aims at 0.25 and the others at (ratio / 0.25)^(1/(M-1)) each; with one stage, or a ratio
    of at least 0.25, stage 1 aims at the ratio. M starts at 1 and is adapted every 5 calls from the mean c of
    k_hat / k; `stages` fixes it instead. The rules:

    - "paper" (the authors' mode -1): c > 1.2 -> M - 1; c < 0.8 -> M + 1. On tails heavier than exponential one stage
      selects too much and the remedy is *more* stages: this rule then stays at one for ever.
    - "sign" (mode -2): the direction is reversed whenever |c - 1| has grown.
    - "trend" (mode -3): the direction is reversed whenever c did not move towards the band it was outside of.

    Source: SIDCo (MLSys 2021), algorithm 1; rules and constants: the authors' released code.
    Differs from the authors' code in that exceedances are shifted by the threshold they exceed (the paper), not by
    their own minimum; and in that each vector has a controller of its own, where theirs share one.
    """

    ratio: float
    first: Fit
    tail: Fit
    rule: Rule = "trend"
    stages: int | None = None
    sampled: bool = True  # on vectors of a million values or more, fit to a sample of up to 2^17

    def __post_init__(self) -> None:
        check_ratio(self.ratio)
        if self.rule not in get_args(Rule):
            raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}, got {self.rule!r}")
        if self.stages is not None and (not isinstance(self.stages, int) or self.stages < 1):
            raise ValueError(f"stages must be null (adapted) or a whole number >= 1, got {self.stages!r}")

    @property
    def band(self) -> tuple[float, float] | None:
        """With rules that follow the outcome; "paper" and fixed stages promise nothing on tails they do not fit."""
        return (0.6, 1.6) if self.stages is None and self.rule != "paper" else None

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> SidcoState:
        return SidcoState(target_count(x.numel(), self.ratio), self.stages or 1, +1, 0.0, 0, 0.0)

    def threshold(self, view: View, state: SidcoState) -> tuple[Tensor, SidcoState]:
        first, share, more = self._shares(state.stages)
        if (self.first, self.tail) == EXPONENTIAL:
            return view.exponential(first, share, more, sampled=self.sampled), state
        eta = self._first(view, first)
        for _ in range(more):
            eta = eta + self.tail.threshold(view.moments(eta, sums=self.tail.sums, sampled=self.sampled), share)
        return eta, state

    def _shares(self, stages: int) -> tuple[float, float, int]:
        """What the first stage is to keep, what each other of what exceeds the threshold so far, how many others."""
        if stages == 1 or self.ratio >= FIRST_RATIO:
            return self.ratio, 1.0, 0
        return FIRST_RATIO, (self.ratio / FIRST_RATIO) ** (1 / (stages - 1)), stages - 1

    def _first(self, view: View, delta: float) -> Tensor:
        if "logs" not in self.first.sums:
            return self.first.threshold(view.moments(sums=self.first.sums, sampled=self.sampled), delta)
        # logarithms need the zeros gone: fit the rest, and take a larger share of it
        moments = view.moments(torch.zeros(()), sums=self.first.sums, sampled=self.sampled)
        share = (delta * view.numel / moments.count.clamp_min(1)).clamp_max(1.0)
        return self.first.threshold(moments, share)

    def observe(self, state: SidcoState, count: int) -> SidcoState:
        if self.stages is not None or not state.target:
            return state
        state = state._replace(ratios=state.ratios + count / state.target, calls=state.calls + 1)
        if state.calls < PERIOD:
            return state
        c, step = state.ratios / state.calls, state.step
        if state.last > 0 and self._turns(c, state.last):
            step = -step
        stages = state.stages + step * ((c < 1 - TOLERANCE) - (c > 1 + TOLERANCE))
        return SidcoState(state.target, max(1, min(stages, self.most_stages)), step, 0.0, 0, c)

    def _turns(self, c: float, last: float) -> bool:
        if self.rule == "paper":
            return False
        if self.rule == "sign":
            return abs(c - 1) > abs(last - 1)
        rose_from_too_few = last < 1 - TOLERANCE and c > last
        fell_from_too_many = last > 1 + TOLERANCE and c < last
        return not (rose_from_too_few or fell_from_too_many)

    @property
    def most_stages(self) -> int:
        """As many stages as halvings lead to the ratio: 4, 7, 10 at 0.1, 0.01, 0.001."""
        return max(1, math.ceil(math.log(self.ratio) / math.log(0.5)))

    def report(self, state: SidcoState) -> dict[str, float]:
        return {"stages": state.stages}
