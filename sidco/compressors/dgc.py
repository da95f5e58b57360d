"""DGC's selection as SIDCo's authors run it: a threshold from a sample, corrected downwards only."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sidco.compressor import Thresholder, check_ratio, target_count
from sidco.kernels import reference
from sidco.payload import Sparse
from sidco.view import Layout, View

TOO_MANY = 4 / 3  # of k: above it, an exact top-k among what was selected


class DgcState(NamedTuple):
    """What the next sample is drawn from: the same on all ranks, whose vectors differ."""

    seed: int
    step: int


@dataclass(frozen=True)
class DgcSampling(Thresholder[DgcState]):
    """The threshold is the ceil(f ratio)-th largest magnitude of a random sample of f = sample * n coordinates.

    If more than 4k/3 exceed it, the k largest of them are kept; if too few do, so it stays. No momentum correction,
    no clipping, no warm-up: a sampling Top-k, not the whole of DGC (Lin et al., ICLR 2018).
    Source: the authors' released code ("dgcsampling"). Differs from it in that the sample is drawn with replacement,
    and what equals the threshold is not sent.
    """

    ratio: float
    sample: float = 0.01

    def __post_init__(self) -> None:
        check_ratio(self.ratio)
        if not 0 < self.sample <= 1:
            raise ValueError(f"sample must be a share in (0, 1], got {self.sample!r}")

    @property
    def band(self) -> tuple[float, float]:
        return 0.6, TOO_MANY  # the rank taken in the sample is rounded up, and an excess of a third is let through

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> DgcState:
        return DgcState(seed, 0)

    def threshold(self, view: View, state: DgcState) -> tuple[Tensor, DgcState]:
        generator = torch.Generator().manual_seed((state.seed * 1_000_003 + state.step) % 2**63)
        size = max(1, int(view.numel * self.sample))
        magnitudes = view.sample(size, generator)
        rank = min(size, math.ceil(size * self.ratio))
        return magnitudes.topk(rank).values[-1], DgcState(state.seed, state.step + 1)

    def trim(self, payload: Sparse) -> Sparse:
        k = target_count(payload.numel, self.ratio)
        if payload.count <= TOO_MANY * k:
            return payload
        values, places = reference.largest(payload.values, k)
        return Sparse.of(values, payload.indices[places], payload.numel)
