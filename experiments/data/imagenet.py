"""ImageNet as a folder per class: listed once, read and decoded as training goes."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as MapStyle

from experiments.data import Batch
from experiments.data.cache import Arrays, DataMissing, data_folder
from experiments.data.images import Labelled, generator

FOLDERS = {"train": "train", "valid": "val"}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels in [0, 1], by channel: everybody's
Transform = Callable[[Tensor], Tensor]


class Pictures(MapStyle[tuple[Tensor, int]]):
    """Image files and their labels, each transformed with a random state of its own: the same in any process."""

    def __init__(
        self, root: Path, names: np.ndarray, labels: np.ndarray, transform: Transform, key: tuple[int, ...]
    ) -> None:
        self.root, self.names, self.labels, self.transform, self.key = root, names, labels, transform, key

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        from torchvision.datasets.folder import pil_loader
        from torchvision.transforms.v2.functional import pil_to_tensor

        path = self.root / self.names[place].decode()
        try:
            image = pil_to_tensor(pil_loader(str(path)))  # (3, H, W) uint8; torchvision's own decoders will go
        except (OSError, SyntaxError, ValueError) as error:  # not an image, or cut short
            raise DataMissing(f"imagenet: expected an image, got {path} ({error}); copy it anew") from error
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global state
            torch.default_generator.manual_seed(generator(*self.key, place).initial_seed())  # no GPU's
            return self.transform(image), int(self.labels[place])


@dataclass(frozen=True, kw_only=True)
class ImageNet(Labelled):
    """1,281,167 + 50,000 colour images of 1,000 classes in $SIDCO_DATA/imagenet/{train,val}/<class>/.

    Train: a random crop of 8 % to 100 % of the area, resized to side x side, half of them mirrored. Validation: the
    shorter edge resized to side * 8 / 7 (256), the centre cropped. Cached, and behind the digest, are names, labels and
    sizes only: nobody reads 140 GB to start a job. `decoders` processes beside each rank read and decode ahead. A job
    that goes on in the middle of an epoch decodes what it skips: checkpoints belong at the ends of epochs.

    Source: He et al. (arXiv 1512.03385), sec. 3.4; the crop by area of Szegedy et al. (arXiv 1409.4842), sec. 6.
    """

    classes: int = 1000
    channels: int = 3
    side: int = 224
    train_count: int = 1_281_167
    valid_count: int = 50_000
    decoders: int = 4

    @property
    def count(self) -> int:
        return self.train_count

    def sources(self) -> list[Path]:
        """The class folders: an image that comes or goes changes theirs, and a million files need not be asked."""
        folders = [self._root() / name for name in FOLDERS.values()]
        missing = [str(folder) for folder in folders if not folder.is_dir()]
        if missing:
            raise self._missing(f"no {' and no '.join(missing)}")
        return [path for folder in folders for path in sorted(folder.iterdir()) if path.is_dir()]

    def build(self) -> Arrays:
        arrays = self._listed("train") | self._listed("valid")
        if strange := sorted(set(arrays["valid_classes"]) ^ set(arrays["train_classes"])):
            raise self._missing(f"classes that are in one of the two folders only: {', '.join(strange[:5])}")
        return arrays

    def train_batches(self, rank: int, world_size: int, batch_size: int, epoch: int, seed: int) -> Iterator[Batch]:
        from torchvision.transforms import v2

        chosen = self.chosen(rank, world_size, batch_size, epoch, seed)
        crop = v2.RandomResizedCrop(self.side)
        transform = v2.Compose([crop, v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), _normal()])
        return self._decoded("train", [places.tolist() for places in chosen], transform, (seed, epoch))

    def valid_batches(self, batch_size: int) -> Iterator[Batch]:
        from torchvision.transforms import v2

        places = torch.arange(self.valid_count).split(batch_size)
        crop = [v2.Resize(self.side * 8 // 7), v2.CenterCrop(self.side)]
        transform = v2.Compose([*crop, v2.ToDtype(torch.float32, scale=True), _normal()])
        return self._decoded("valid", [some.tolist() for some in places], transform, (0,))

    def _decoded(
        self, split: str, places: list[list[int]], transform: Transform, key: tuple[int, ...]
    ) -> Iterator[Batch]:
        names, labels = self.arrays[f"{split}_names"], self.arrays[f"{split}_labels"]
        pictures = Pictures(self._root() / FOLDERS[split], names, labels, transform, key)
        # a generator of its own, because a loader draws a seed for its processes from the global state otherwise
        loader = DataLoader(pictures, batch_sampler=places, num_workers=self.decoders, generator=generator(*key))
        return ((images, targets) for images, targets in loader)

    def _root(self) -> Path:
        return data_folder() / "imagenet"

    def _missing(self, got: str) -> DataMissing:
        root = self._root()
        return DataMissing(
            f"imagenet: looked in {root}, got {got}. Expected {root}/{{train,val}}/<class>/*.JPEG "
            f"({self.train_count:,} and {self.valid_count:,} images, {self.classes:,} classes, the same in both). It "
            "is not fetched: ask for it at https://image-net.org, put its two archives of images and the devkit into "
            f"{root} and unpack them with torchvision.datasets.ImageNet({str(root)!r}, split) for train and val. Of a "
            "subset say dataset.classes, dataset.train_count and dataset.valid_count. Set SIDCO_DATA to the folder "
            "that holds imagenet/, or use data that needs no files: benchmark=resnet50_synthetic"
        )

    def _listed(self, split: str) -> Arrays:
        """Names below the split's folder, labels by the alphabet of the classes, sizes in bytes."""
        from torchvision.datasets import ImageFolder  # here, because only the preparing process should pay for it

        folder = self._root() / FOLDERS[split]
        try:
            found = ImageFolder(str(folder))
        except FileNotFoundError as error:  # no classes, or one without images
            raise self._missing(str(error)) from error
        expected = self.train_count if split == "train" else self.valid_count
        if (len(found), len(found.classes)) != (expected, self.classes):
            raise self._missing(
                f"{len(found):,} images of {len(found.classes):,} classes in {folder} (a copy cut short?)"
            )
        # shuffled once and for all: listed by class, the first batches of validation would hold one class alone
        order = np.random.default_rng(0).permutation(expected)
        paths = [found.samples[place][0] for place in order]
        return {
            f"{split}_classes": np.array(found.classes),
            f"{split}_names": np.array([os.path.relpath(path, folder).encode() for path in paths]),
            f"{split}_labels": np.array([found.samples[place][1] for place in order], np.int64),
            f"{split}_sizes": np.array([os.path.getsize(path) for path in paths], np.int64),
        }


def _normal() -> Transform:
    from torchvision.transforms import v2

    return v2.Normalize(MEAN, STD)
