"""CIFAR-10, from a folder per class or from the official archive, decoded once."""

import os
import socket
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.data.cache import Arrays, DataMissing, data_folder
from experiments.data.images import Images

SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})
SIDE = 32  # pixels
Decoded = tuple[np.ndarray, np.ndarray]  # (N, 3, 32, 32) uint8, (N,) int64


def reachable(url: str, seconds: float = 4.0) -> bool:
    """Does the server answer in time? In a thread, because no timeout bounds the look-up of its name."""
    answered = threading.Event()

    def ask() -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")
            urllib.request.urlopen(request, timeout=seconds).close()
            answered.set()
        except OSError:  # URLError, HTTPError, timeouts and refusals: all say no
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()


@contextmanager
def stalls_bounded(seconds: float) -> Iterator[None]:
    """torchvision downloads without a timeout; give its sockets one meanwhile."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Shift by up to `padding` pixels (black comes in) and mirror half of the images; (B, C, H, W), any type.

    Source: He et al., Deep Residual Learning (arXiv 1512.03385), sec. 4.2.
    """
    count, _, height, width = images.shape
    down, right = torch.randint(2 * padding + 1, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    rows = down + torch.arange(height)  # (B, H)
    columns = right + torch.where(mirrored, torch.arange(width).flip(0), torch.arange(width))  # (B, W)
    padded = F.pad(images, (padding,) * 4)
    taken = padded[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # (B, H, W, C)
    return taken.permute(0, 3, 1, 2).contiguous()


@dataclass(frozen=True, kw_only=True)
class Cifar10(Images):
    """50,000 + 10,000 colour images, 32 x 32, in $SIDCO_DATA/cifar10; train batches are cropped and mirrored.

    Accepts `{train,test}/<class>/*.{jpg,png}`, else the official archive, which torchvision downloads and verifies.
    """

    classes: int = 10
    channels: int = 3
    train_count: int = 50_000
    valid_count: int = 10_000
    mean: ClassVar[tuple[float, ...]] = (125.3, 123.0, 113.9)
    std: ClassVar[tuple[float, ...]] = (63.0, 62.1, 66.7)

    @property
    def count(self) -> int:
        return self.train_count  # of the folders it is checked, of the archive the checksum

    def augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return crop_and_flip(images, generator)

    def fetch(self) -> None:
        if not self._has_folders():
            self._fetch_official()

    def sources(self) -> list[Path]:
        if self._has_folders():
            return [file for split in ("train", "test") for file, _ in self._listed(split)]
        return sorted(self._root().glob("cifar-10-batches-py/*"))

    def build(self) -> Arrays:
        read = self._decode if self._has_folders() else self._official
        (train_images, train_labels), (valid_images, valid_labels) = read("train"), read("test")
        return {
            "train_images": train_images,
            "train_labels": train_labels,
            "valid_images": valid_images,
            "valid_labels": valid_labels,
        }

    def _root(self) -> Path:
        return data_folder() / "cifar10"

    def _has_folders(self) -> bool:
        return (self._root() / "train").is_dir()

    def _missing(self, got: str) -> DataMissing:
        root = self._root()
        return DataMissing(
            f"cifar10: looked in {root}, got {got}. Expected either {root}/{{train,test}}/<class>/*.{{jpg,png}} "
            f"({self.train_count:,} and {self.valid_count:,} images, {self.classes} classes) or the official archive "
            f"{root}/cifar-10-python.tar.gz (md5 c58f30108f718f92721af3b95e74349a). Set SIDCO_DATA to the folder that "
            "holds cifar10/, or use data that needs no files: benchmark=resnet20_digits"
        )

    def _listed(self, split: str) -> list[tuple[Path, int]]:
        """(file, label) by class, then name; labels follow the alphabet, which is also the official order."""
        folders = sorted(folder for folder in (self._root() / split).glob("*") if folder.is_dir())
        files = ((file, label) for label, folder in enumerate(folders) for file in sorted(folder.iterdir()))
        return [(file, label) for file, label in files if file.suffix.lower() in SUFFIXES]

    def _decode(self, split: str) -> Decoded:
        from PIL import Image  # here, because only the preparing process should pay for it

        listed = self._listed(split)
        expected = self.train_count if split == "train" else self.valid_count
        classes = len({label for _, label in listed})
        if len(listed) != expected or classes != self.classes:
            raise self._missing(f"{len(listed):,} images of {classes} classes in {split}/ (a copy cut short?)")
        # shuffled once and for all: listed by class, the first batches of validation would hold one class alone
        listed = [listed[place] for place in np.random.default_rng(0).permutation(len(listed))]
        images = np.empty((expected, SIDE, SIDE, 3), np.uint8)
        for row, (file, _) in zip(images, listed, strict=True):
            try:
                with Image.open(file) as image:
                    row[:] = np.asarray(image.convert("RGB"))
            except (OSError, ValueError) as error:  # not an image, cut short, or not 32 x 32
                raise self._missing(f"an unusable image {file} ({error})") from error
        return images.transpose(0, 3, 1, 2).copy(), np.array([label for _, label in listed])

    def _official(self, split: str) -> Decoded:
        from torchvision.datasets import CIFAR10

        try:
            whole = CIFAR10(str(self._root()), train=split == "train")  # checks the md5 of every file
        except RuntimeError as error:
            raise self._missing(f"a damaged {CIFAR10.base_folder}/ (delete it to fetch it anew)") from error
        return whole.data.transpose(0, 3, 1, 2).copy(), np.array(whole.targets)

    def _fetch_official(self) -> None:
        """Unpack the official archive, downloaded first unless it lies here, aside; its folder appears when whole."""
        from torchvision.datasets import CIFAR10
        from torchvision.datasets.utils import check_integrity, extract_archive

        root = self._root()
        archive, folder = root / CIFAR10.filename, root / CIFAR10.base_folder
        if folder.is_dir():
            return
        here = check_integrity(str(archive), CIFAR10.tgz_md5)
        if not here and not reachable(CIFAR10.url):
            raise self._missing(f"neither layout, and {CIFAR10.url} does not answer")
        try:
            root.mkdir(parents=True, exist_ok=True)
            with stalls_bounded(30.0), tempfile.TemporaryDirectory(dir=root, prefix=".partial-") as aside:
                if here:
                    extract_archive(str(archive), aside)
                else:
                    CIFAR10(aside, download=True)
                os.replace(Path(aside) / CIFAR10.base_folder, folder)
        except (OSError, RuntimeError) as error:
            if not folder.is_dir():  # else another launcher was first
                raise self._missing(f"neither layout, and fetching {CIFAR10.url} failed: {error}") from error
