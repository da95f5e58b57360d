"""Top-k without sorting: a histogram of magnitudes tells which may be among the k largest."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sidco.compressor import Thresholder, check_ratio, target_count
from sidco.kernels import reference
from sidco.payload import Sparse
from sidco.view import Layout, View


@dataclass(frozen=True)
class HistogramTopK(Thresholder[None]):
    """Exactly the max(int(ratio n), 1) largest |x|, or all that are not zero where those are fewer.

    One pass counts magnitudes by the upper 16 of their 31 bits: the sign is gone, the exponent and 8 bits of the
    fraction are left, so a bin is 2^-8 wide. A second takes everything from the bin of the k-th on; of that bin's own
    members as many as are needed stay, the largest first, equal ones in the order of their indices.
    A radix select cut to one digit; Top-k as it should be compared with (not in the paper, which has torch.topk).
    """

    ratio: float

    def __post_init__(self) -> None:
        check_ratio(self.ratio)

    @property
    def band(self) -> tuple[float, float]:
        return 1.0, 1.0

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> None:
        return None

    def threshold(self, view: View, state: None) -> tuple[Tensor, None]:
        counts = view.histogram()
        from_above = counts.flip(0).cumsum(0)
        below = (from_above < target_count(view.numel, self.ratio)).sum()  # bins that hold fewer than k together
        bits = (counts.numel() - 1 - below).clamp_min(0) << reference.FRACTION_BITS
        # the largest float below the bin: what is taken exceeds it, and zero is never taken
        return (bits - 1).clamp_min(0).int().view(torch.float32), None

    def trim(self, payload: Sparse) -> Sparse:
        k = target_count(payload.numel, self.ratio)
        surplus = payload.count - k
        if surplus <= 0:
            return payload
        magnitudes = payload.values.abs()
        bins = magnitudes.view(torch.int32) >> reference.FRACTION_BITS
        members = (bins == bins.min()).nonzero().squeeze(1)
        order = magnitudes[members].argsort(descending=True, stable=True)
        keep = torch.ones_like(magnitudes, dtype=torch.bool)
        keep[members[order[members.numel() - surplus :]]] = False
        return Sparse.of(payload.values[keep], payload.indices[keep], payload.numel)
