"""Random-k: coordinates that all ranks draw alike, so that only values travel and may be summed on the wire."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sidco.compressor import Compressor, check_ratio, target_count
from sidco.payload import Payload, Shared
from sidco.view import Layout


class RandomState(NamedTuple):
    """What the next draw depends on: the same on all ranks."""

    seed: int
    step: int


@dataclass(frozen=True)
class RandomK(Compressor[RandomState]):
    """Keeps k random coordinates, the same on all ranks: 4 bytes each, by an all-reduce.

    Biased, so it wants error feedback; `unbiased` scales by n/k instead (without error feedback: with it, what is
    over-sent comes back as error, and the sum diverges for ratios below one half).
    Differs from the authors' code, which draws with replacement, seeds the global generator and sends indices too.
    """

    ratio: float
    unbiased: bool = False

    def __post_init__(self) -> None:
        check_ratio(self.ratio)

    @property
    def band(self) -> tuple[float, float]:
        return 1.0, 1.0

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> RandomState:
        return RandomState(seed, 0)

    def compress(self, x: Tensor, state: RandomState) -> tuple[Payload, RandomState]:
        n = x.numel()
        k = target_count(n, self.ratio)
        generator = torch.Generator().manual_seed((state.seed * 1_000_003 + state.step) % 2**63)
        indices = distinct(n, k, generator).to(x.device)
        values = x[indices].float()
        if self.unbiased and k:
            values = values * (n / k)
        return Shared.of(values, indices, n), RandomState(state.seed, state.step + 1)


def distinct(n: int, k: int, generator: torch.Generator) -> Tensor:
    """(k,) ascending int64: every set of k of n equally likely. O(k) while k is small beside n."""
    if 4 * k > n:
        return torch.randperm(n, generator=generator)[:k].sort().values
    found = torch.empty(0, dtype=torch.int64)
    while found.numel() < k:  # a few draws are double: about k/2n of them
        more = torch.randint(n, (k + k // 8 + 8,), generator=generator)
        found = torch.cat([found, more]).unique()
    extra = found.numel() - k
    kept = torch.ones(found.numel(), dtype=torch.bool)
    kept[torch.randperm(found.numel(), generator=generator)[:extra]] = False
    return found[kept]
