"""GaussianK-SGD: the threshold of a normal distribution, corrected a few times by what it selects."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sidco.compressor import Thresholder, check_ratio, target_count
from sidco.view import Layout, View


@dataclass(frozen=True)
class GaussianK(Thresholder[None]):
    """eta = mean + std z, z the normal quantile at 1 - ratio/2; up to twice: fewer than 2k/3 exceed it, eta is halved;
    more than 4k/3, eta grows by half.

    `signed` fits the signed gradient, as its own authors do; otherwise the magnitudes, as SIDCo's authors' port does.
    Source: Shi, Chu, Cheung, See (arXiv 1911.08772), algorithm 1; the port: the authors' released code, which
    looks three times and corrects after each look, but selects by the third look: two corrections count.
    """

    ratio: float
    signed: bool = False
    CORRECTIONS: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_ratio(self.ratio)

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> None:
        return None

    def threshold(self, view: View, state: None) -> tuple[Tensor, None]:
        k = target_count(view.numel, self.ratio)
        whole = view.moments(sums=frozenset({"squares", "signed"} if self.signed else {"squares"}))
        n = whole.count.clamp_min(1)
        mean = (whole.signed if self.signed else whole.total) / n
        variance = (whole.squares - n * mean**2) / (n - 1).clamp_min(1)
        z = torch.special.ndtri(torch.tensor(1 - self.ratio / 2, dtype=torch.float64, device=mean.device))
        # a magnitude is compared with it, so a mean of either sign must not make it negative
        eta = (mean.abs() + variance.clamp_min(0).sqrt() * z).clamp_min(0)
        for _ in range(self.CORRECTIONS):
            count = view.moments(eta).count
            eta = torch.where(count < 2 * k / 3, eta * 0.5, torch.where(count > 4 * k / 3, eta * 1.5, eta))
        return eta, None
