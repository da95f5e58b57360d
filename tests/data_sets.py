"""Small data sets in a folder of the test's own, in the layouts that people have."""

import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image
from torchvision.datasets import CIFAR10
from torchvision.datasets.utils import calculate_md5

from experiments.data.an4 import AN4
from experiments.data.cifar10 import Cifar10
from experiments.data.imagenet import ImageNet
from experiments.data.text import PTBText

REAL = Path(os.environ.get("SIDCO_DATA", "/nowhere"))


def make_ptb(root, prefix="tiny", words=400):
    folder = root / "data" / "tiny"
    folder.mkdir(parents=True)
    text = [f"w{i * i % 17}" for i in range(words)]
    for split, some in {"train": text, "valid": [*text[:50], "unseen"], "test": text[:50]}.items():
        lines = [" " + " ".join(some[i : i + 9]) + " \n" for i in range(0, len(some), 9)]
        (folder / f"{prefix}.{split}.txt").write_text("".join(lines))
    return PTBText(name="tiny", symbols=30, window=5)


def make_folders(root, train=40, valid=10):
    draw = np.random.default_rng(0)
    for split, count in {"train": train, "test": valid}.items():
        for i in range(count):
            folder = root / "data" / "cifar10" / split / ("cat" if i % 2 else "ant")
            folder.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(256, size=(32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i:03d}.png")
    return Cifar10(classes=2, train_count=train, valid_count=valid)


def make_archive(root, monkeypatch):
    """The official archive in small: same names and layout, its own checksums."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    for i, (name, _) in enumerate(CIFAR10.train_list + CIFAR10.test_list):
        rows = np.arange(10, dtype=np.uint8)[:, None].repeat(3072, axis=1) + 10 * i
        (folder / name).write_bytes(pickle.dumps({"data": rows, "labels": list(range(10))}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    path = root / "data" / "cifar10" / CIFAR10.filename
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, folder.name)
    sums = {file.name: calculate_md5(file) for file in folder.iterdir()}
    monkeypatch.setattr(CIFAR10, "tgz_md5", calculate_md5(path))
    monkeypatch.setattr(CIFAR10, "train_list", [(name, sums[name]) for name, _ in CIFAR10.train_list])
    monkeypatch.setattr(CIFAR10, "test_list", [(name, sums[name]) for name, _ in CIFAR10.test_list])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": sums["batches.meta"]})
    return path


def make_imagenet(root, train=12, valid=6, classes=3, **more):
    """Images of one colour each, as grey as their number says, of several sizes; as `ImageNet` takes them."""
    for split, count in {"train": train, "val": valid}.items():
        for i in range(count):
            folder = root / "data" / "imagenet" / split / f"n{i % classes:03d}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9 + i, 20), (10 * i,) * 3).save(folder / f"{i:03d}.png")
    return ImageNet(classes=classes, train_count=train, valid_count=valid, **{"side": 7, "decoders": 0, **more})


def make_an4(root, suffix=".flac", train=6, valid=3, texts=None):
    """AN4's tree in small; the sound is a hum whose pitch and length tell the utterances apart."""
    folder = root / "data" / "an4"
    (folder / "etc").mkdir(parents=True, exist_ok=True)
    for split, count, marks in (("train", train, "<s> {} </s>"), ("test", valid, "{}")):
        names = [f"an4{'' if split == 'train' else 'test'}_clstk/f{i % 2}/cen{i}-f{i % 2}-b" for i in range(count)]
        spoken = texts or ["YES", "RUBOUT G M E F THREE NINE"]
        lines = [f"{marks.format(spoken[i % len(spoken)])} ({name.split('/')[-1]})" for i, name in enumerate(names)]
        (folder / "etc" / f"an4_{split}.fileids").write_text("\n".join(names) + "\n")
        (folder / "etc" / f"an4_{split}.transcription").write_text("\n".join(lines) + "\n")
        for i, name in enumerate(names):
            file = folder / "wav" / f"{name}{suffix}"
            file.parent.mkdir(parents=True, exist_ok=True)
            write_sound(file, hum(i, split == "test"))
    return AN4()


def hum(place, valid=False):
    """(samples,) int16: a tone of its own, not in order of length."""
    seconds = np.arange(4000 + 1600 * (place * 5 % 7) + 160 * valid) / 16_000
    return (9000 * np.sin(2 * np.pi * (200 + 50 * place) * seconds)).astype(np.int16)


def write_sound(file, samples, rate=16_000):
    formats = {
        ".raw": {"format": "RAW", "subtype": "PCM_16", "endian": "BIG"},
        ".sph": {"format": "NIST", "subtype": "PCM_16"},
    }
    soundfile.write(file, samples, rate, **formats.get(file.suffix, {}))
