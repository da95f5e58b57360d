"""Data sets: what the launcher prepares once and every rank then reads.

A data set knows its own size (`symbols`, or `classes` and `channels`); model configurations take theirs from it.
"""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

Batch = tuple[Tensor, ...]  # inputs, targets; where utterances differ in length, the lengths of each behind it


class Dataset(Protocol):
    """Prepared by one process, read by all; every rank gets the same number of batches by construction."""

    def prepare(self) -> str:
        """Download, decode, tokenise, cache. Called once, before any rank starts; calling it again is cheap.

        Returns the sha256 of what training will read. Raises DataMissing within seconds where there is nothing to read.
        """
        ...

    def train_batches(self, rank: int, world_size: int, batch_size: int, epoch: int, seed: int) -> Iterator[Batch]:
        """This rank's share of an epoch; `batch_size` is per rank."""
        ...

    def valid_batches(self, batch_size: int) -> Iterator[Batch]:
        """The whole validation set, in order, the same on every rank."""
        ...

    def steps_per_epoch(self, world_size: int, batch_size: int) -> int:
        """How many batches `train_batches` yields, on any rank."""
        ...
