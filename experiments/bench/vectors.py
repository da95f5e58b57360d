"""The gradients that compressors are measured on: several of them in rotation, so that error feedback is real."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.capture import SEEN

ROTATION = 8  # different gradients, at least
HUGE = 1 << 27  # floats from which eight vectors would not fit a machine: views of one buffer then
STRIDE = (1 << 16) + 16  # floats between two views: a multiple of a cache line, and no multiple of a page
SEED = 1


class BadGradients(ValueError):
    """Files that are no gradients to measure on."""


@dataclass(frozen=True)
class Vector:
    """Gradients of one length (numel,), float32: normal noise, or files that a training has captured."""

    name: str
    numel: int
    paths: tuple[str, ...] = ()  # none: normal noise

    @property
    def nbytes(self) -> int:
        return 4 * self.numel

    @property
    def distinct(self) -> int:
        """How many gradients are in rotation."""
        return len(self.paths) or ROTATION

    @property
    def rotation(self) -> str:
        """What the rotation is made of, for the row."""
        if self.paths:
            return f"{self.distinct} captured gradients"
        return f"{self.distinct} {'views of one buffer, shifted' if self.numel >= HUGE else 'vectors'}"

    @property
    def held_bytes(self) -> int:
        """Of memory that the gradients take."""
        return self.nbytes if self.numel >= HUGE and not self.paths else self.nbytes * self.distinct

    def gradients(self, device: torch.device) -> list[Tensor]:
        """The same values in every process."""
        if self.paths:
            return [torch.from_numpy(np.load(path)).to(device) for path in self.paths]
        generator = torch.Generator(device).manual_seed(SEED)
        if self.numel < HUGE:
            return [torch.randn(self.numel, generator=generator, device=device) for _ in range(ROTATION)]
        buffer = torch.randn(self.numel + ROTATION * STRIDE, generator=generator, device=device)
        return [buffer[i * STRIDE : i * STRIDE + self.numel] for i in range(ROTATION)]


def randn(numel: int) -> Vector:
    return Vector(f"randn {numel:,}", numel)


def captured(paths: Sequence[Path]) -> list[Vector]:
    """The vectors of captured files, those of one length together. A folder stands for all gradients below it: without
    the sums that error feedback has made of them, for compressors here have a memory of their own.
    """
    files = sorted(file for path in paths for file in (_gradients(path) if path.is_dir() else [path]))
    if not files:
        raise BadGradients(
            f"expected .npy files or folders that hold some, got {', '.join(map(str, paths))}; "
            "a training writes them to its job folder with capture.steps=[100]"
        )
    lengths = sorted((_numel(file), str(file)) for file in files)
    return [_together(numel, [path for _, path in same]) for numel, same in groupby(lengths, lambda pair: pair[0])]


def _gradients(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*.npy") if not file.stem.endswith(SEEN))


def _together(numel: int, paths: Iterable[str]) -> Vector:
    return Vector(f"captured {numel:,}", numel, tuple(paths))


def _numel(path: Path) -> int:
    """Of a float32 vector, from the head of its file."""
    try:
        found = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise BadGradients(f"{path}: expected a .npy file of a captured gradient, got: {error}") from None
    if found.ndim != 1 or found.dtype != np.float32 or not found.size:
        raise BadGradients(f"{path}: expected a flat float32 vector, got {found.dtype} of shape {found.shape}")
    return found.size
