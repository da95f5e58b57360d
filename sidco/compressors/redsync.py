"""RedSync's thresholds between the mean and the maximum, as SIDCo's authors run them."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sidco.compressor import Thresholder, check_ratio, target_count
from sidco.view import Layout, Moments, View

NEEDED = frozenset({"maximum"})


@dataclass(frozen=True)
class _Between(Thresholder[None]):
    """What both share: a target, and nothing to remember."""

    ratio: float

    def __post_init__(self) -> None:
        check_ratio(self.ratio)

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> None:
        return None


@dataclass(frozen=True)
class RedSync(_Between):
    """Bisects q in mean + q (max - mean) until more than k and fewer than 2k exceed it, or the interval is 0.2 wide.

    At most three passes, so a count far from k is possible: the price of cheapness.
    Source: RedSync (Fang et al. 2019) by way of the authors' released code: l = 0, r = 1; fewer than k/2 lower r,
    anything else raises l.
    """

    BISECTIONS: ClassVar[int] = 3  # 1, 0.5, 0.25 are wider than 0.2

    def threshold(self, view: View, state: None) -> tuple[Tensor, None]:
        k, whole = target_count(view.numel, self.ratio), view.moments(sums=NEEDED)
        low, high = torch.zeros_like(whole.total), torch.ones_like(whole.total)
        found, done = torch.zeros_like(whole.total), torch.zeros_like(whole.total, dtype=torch.bool)
        for _ in range(self.BISECTIONS):
            q = (low + high) / 2
            eta = between(whole, q)
            count = view.moments(eta).count
            found = torch.where(done, found, eta)
            done = done | ((count > k) & (count < 2 * k))
            few = count < k / 2
            low, high = torch.where(few, low, q), torch.where(few, q, high)
        return found, None


@dataclass(frozen=True)
class RedSyncTrim(_Between):
    """Lowers q in mean + q (max - mean) from 0.8 by 0.2 until at least k exceed it, down to the mean.

    Source: the authors' released code ("redsynctrim"). Differs from it in that it ends: theirs loops for ever on a
    constant vector, where nothing exceeds the mean.
    """

    STEPS: ClassVar[tuple[float, ...]] = (0.8, 0.6, 0.4, 0.2, 0.0)

    def threshold(self, view: View, state: None) -> tuple[Tensor, None]:
        k, whole = target_count(view.numel, self.ratio), view.moments(sums=NEEDED)
        found, done = torch.zeros_like(whole.total), torch.zeros_like(whole.total, dtype=torch.bool)
        for q in self.STEPS:
            eta = between(whole, torch.full_like(whole.total, q))
            found = torch.where(done, found, eta)
            done = done | (view.moments(eta).count >= k)
        return found, None


def between(whole: Moments, q: Tensor) -> Tensor:
    """The threshold a share q of the way from the mean to the maximum."""
    mean = whole.total / whole.count.clamp_min(1)
    return mean + q * (whole.maximum - mean)
