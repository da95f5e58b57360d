"""A fixed threshold: what is large enough is sent, however much that is."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sidco.compressor import Thresholder
from sidco.view import Layout, View


@dataclass(frozen=True)
class HardThreshold(Thresholder[None]):
    """Keeps |x| > tau. No target, so no density is promised; with error feedback, all is sent in the end.

    Source: the absolute compressor of Sahu et al. (NeurIPS 2021). In gradient space, where x is the gradient.
    """

    tau: float

    def __post_init__(self) -> None:
        if not 0 <= self.tau < float("inf"):
            raise ValueError(f"tau must be a threshold >= 0, got {self.tau!r}")

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> None:
        return None

    def threshold(self, view: View, state: None) -> tuple[Tensor, None]:
        return torch.tensor(self.tau, dtype=torch.float64, device=view.device), None
