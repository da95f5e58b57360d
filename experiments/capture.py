"""Gradients kept as files, for the micro-benchmark: this rank's own, before any averaging and compression."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def captured(model: nn.Module, path: Path) -> Iterator[None]:
    """Write the gradient of the first backward inside to `path`, flat float32 (n,), in the order of the parameters.

    What has none counts as zeros. Nothing of the training changes; the file is whole or not there.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    found: dict[int, Tensor] = {}

    def keep(place: int, gradient: Tensor) -> None:
        found.setdefault(place, gradient.detach().clone())  # of virtual workers the first

    handles = [
        p.register_hook(lambda gradient, place=place: keep(place, gradient)) for place, p in enumerate(parameters)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    parts = [found.get(place, torch.zeros_like(p)) for place, p in enumerate(parameters)]
    _save(path, torch.cat([part.detach().float().reshape(-1) for part in parts]))


def _save(path: Path, vector: Tensor) -> None:
    path.parent.mkdir(exist_ok=True)
    aside = path.with_suffix(".partial")
    with aside.open("wb") as file:
        np.save(file, vector.cpu().numpy())
    os.replace(aside, path)
