"""Noise in the shapes of the benchmarks' data: for throughput, where the data itself is not at hand.

Nothing is read or cached. Losses and qualities of runs on it say nothing.
"""

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.data import Batch
from experiments.data.images import generator

DISTINCT = 4  # batches a rank and epoch, again and again: drawing them anew would be what is timed


@dataclass(frozen=True, kw_only=True)
class Synthetic(ABC):
    """Batches of noise, drawn from (seed, epoch, rank); `train_count` and `valid_count` are its size."""

    train_count: int
    valid_count: int

    @abstractmethod
    def batch(self, size: int, draws: torch.Generator) -> Batch:
        """One of `size`."""

    @abstractmethod
    def batches(self, count: int, size: int) -> int:
        """How many batches of that size so many make."""

    def prepare(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def train_batches(self, rank: int, world_size: int, batch_size: int, epoch: int, seed: int) -> Iterator[Batch]:
        steps = self.steps_per_epoch(world_size, batch_size)
        return self._again(steps, batch_size, generator(seed, epoch, rank + 1))

    def valid_batches(self, batch_size: int) -> Iterator[Batch]:
        return self._again(max(1, self.batches(self.valid_count, batch_size)), batch_size, generator(0))

    def steps_per_epoch(self, world_size: int, batch_size: int) -> int:
        steps = self.batches(self.train_count, world_size * batch_size)
        if steps < 1:
            raise ValueError(
                f"{type(self).__name__}: {world_size} ranks of {batch_size} are more than dataset.train_count, "
                f"{self.train_count}; use fewer ranks or a smaller training.batch_per_rank"
            )
        return steps

    def _again(self, count: int, size: int, draws: torch.Generator) -> Iterator[Batch]:
        drawn = [self.batch(size, draws) for _ in range(min(count, DISTINCT))]
        return itertools.islice(itertools.cycle(drawn), count)


@dataclass(frozen=True, kw_only=True)
class SyntheticImages(Synthetic):
    """Images (B, channels, side, side) of standard normal pixels, each with any label."""

    classes: int
    channels: int
    side: int

    def batch(self, size: int, draws: torch.Generator) -> Batch:
        images = torch.randn(size, self.channels, self.side, self.side, generator=draws)
        return images, torch.randint(self.classes, (size,), generator=draws)

    def batches(self, count: int, size: int) -> int:
        return count // size


@dataclass(frozen=True, kw_only=True)
class SyntheticText(Synthetic):
    """Windows (window, B) of symbols; each target is the symbol that follows, all equally likely."""

    symbols: int
    window: int

    def batch(self, size: int, draws: torch.Generator) -> Batch:
        text: Tensor = torch.randint(self.symbols, (self.window + 1, size), generator=draws)
        return text[:-1], text[1:]

    def batches(self, count: int, size: int) -> int:
        return (count // size - 1) // self.window
