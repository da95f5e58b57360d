"""Labelled images, shuffled and sliced by rank; those held whole in memory as bytes, normalised a batch at a time."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from experiments.data import Batch
from experiments.data.cache import Arrays, CachedData


def generator(*key: int) -> torch.Generator:
    """A generator for this key alone; the global random state is not touched."""
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True, kw_only=True)
class Labelled(CachedData):
    """Images with a label each, wherever they are.

    All ranks draw the same permutation from (seed, epoch) and take their slice of each global batch; the incomplete
    last one is dropped, so every rank takes the same number of steps.
    """

    classes: int
    channels: int

    @property
    @abstractmethod
    def count(self) -> int:
        """Training images."""

    def chosen(self, rank: int, world_size: int, batch_size: int, epoch: int, seed: int) -> Iterator[Tensor]:
        """The places (B,) of the images of each of this rank's batches."""
        order = torch.randperm(self.count, generator=generator(seed, epoch))
        for step in range(self.steps_per_epoch(world_size, batch_size)):
            yield order[(step * world_size + rank) * batch_size :][:batch_size]

    def steps_per_epoch(self, world_size: int, batch_size: int) -> int:
        if self.count < world_size * batch_size:
            raise ValueError(
                f"{type(self).__name__}: expected at most {self.count // world_size} images per rank and step at "
                f"{world_size} ranks ({self.count} in all), got {batch_size}; lower training.batch_per_rank"
            )
        return self.count // (world_size * batch_size)


@dataclass(frozen=True, kw_only=True)
class Images(Labelled):
    """Those in memory: arrays {train,valid}_images (N, channels, H, W) uint8 and {train,valid}_labels (N,) int64."""

    mean: ClassVar[tuple[float, ...]]  # of the training pixels, by channel, in units of the stored bytes
    std: ClassVar[tuple[float, ...]]

    def prepare(self) -> str:
        sha = super().prepare()
        got = self.arrays["train_images"].shape[1], int(self.arrays["train_labels"].max()) + 1
        if got != (self.channels, self.classes):
            raise ValueError(
                f"{type(self).__name__}: expected {self.channels} channels and {self.classes} classes, got {got[0]} "
                f"and {got[1]}; set dataset.channels and dataset.classes to what the data has"
            )
        return sha

    @property
    def count(self) -> int:
        return len(self.arrays["train_labels"])

    def augment(self, images: Tensor, generator: torch.Generator) -> Tensor:  # (B, C, H, W) uint8 -> the same
        return images

    def train_batches(self, rank: int, world_size: int, batch_size: int, epoch: int, seed: int) -> Iterator[Batch]:
        images, labels = self._split("train")
        draws = generator(seed, epoch, rank + 1)
        for places in self.chosen(rank, world_size, batch_size, epoch, seed):
            yield self._normalise(self.augment(images[places], draws)), labels[places]

    def valid_batches(self, batch_size: int) -> Iterator[Batch]:
        images, labels = self._split("valid")
        for some, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
            yield self._normalise(some), targets

    def _split(self, split: str) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.arrays[f"{split}_images"]), torch.from_numpy(self.arrays[f"{split}_labels"])

    def _normalise(self, images: Tensor) -> Tensor:  # (B, C, H, W) uint8 -> float32
        mean, std = torch.tensor(self.mean).view(-1, 1, 1), torch.tensor(self.std).view(-1, 1, 1)
        return (images - mean) / std


@dataclass(frozen=True, kw_only=True)
class Digits(Images):
    """1,797 handwritten digits, 8 x 8, 17 grey levels; the first 1,500 train, the last 297 validate.

    Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits (UCI, 1998), as bundled with scikit-learn.
    """

    classes: int = 10
    channels: int = 1
    mean: ClassVar[tuple[float, ...]] = (4.88,)
    std: ClassVar[tuple[float, ...]] = (6.0,)

    def sources(self) -> list[Path]:
        return []  # inside scikit-learn

    def build(self) -> Arrays:
        from sklearn.datasets import load_digits  # here, because only the preparing process should pay for it

        pixels, targets = load_digits(return_X_y=True)
        images = np.asarray(pixels, np.uint8).reshape(-1, 1, 8, 8)  # (1797, 1, 8, 8), values 0 to 16
        labels = np.asarray(targets, np.int64)
        return {
            "train_images": images[:1500],
            "train_labels": labels[:1500],
            "valid_images": images[1500:],
            "valid_labels": labels[1500:],
        }
