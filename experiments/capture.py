"""Gradients kept as files, for the micro-benchmark and the artifacts about gradients.

captures/stepN.npy       this worker's own, before any averaging and compression
captures/stepN_ef.npy    with error feedback, what its compressor saw in that step: residual + scale * gradient
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sidco.feedback import ErrorFeedback
from sidco.method import Gathered, Method
from sidco.plan import Plan
from sidco.workers import VirtualWorkers, Workers

SEEN = "_ef"  # of the file's stem


@contextmanager
def captured(workers: Workers, path: Path, residual: Tensor | None = None) -> Iterator[None]:
    """Write the gradient of the first backward inside to `path`, flat float32 (n,), in the order of the parameters;
    beside it, where there is a residual (n,) to begin with, the sum that was compressed.

    What has no gradient counts as zeros. Nothing of the training changes; a file is whole or not there.
    """
    parameters = [p for p in workers.module.parameters() if p.requires_grad]
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
    gradient = torch.cat([part.detach().float().reshape(-1) for part in parts])
    _save(path, gradient)
    if residual is not None:
        _save(path.with_stem(path.stem + SEEN), residual.add_(gradient, alpha=workers.scale))


def residual(workers: Workers, method: Method[Any] | None, plan: Plan) -> Tensor | None:
    """A copy of what error feedback keeps back at this moment, of the first worker played here: (n,), in the order of
    the parameters. None without error feedback, and of any other memory.
    """
    if not (isinstance(method, Gathered) and isinstance(method.compressor, ErrorFeedback)):
        return None
    layout = tuple((name, p.shape) for name, p in workers.module.named_parameters() if p.requires_grad)
    states, parts = workers.state_dict(), {}
    for group in plan.groups(layout):
        state = states[group.name]
        kept, _ = state[0] if isinstance(workers, VirtualWorkers) else state  # a FeedbackState, as plain tuples
        sizes = [shape.numel() for _, shape in group.layout]
        parts |= zip((name for name, _ in group.layout), kept.split(sizes), strict=True)
    return torch.cat([parts[name] for name, _ in layout])


def _save(path: Path, vector: Tensor) -> None:
    path.parent.mkdir(exist_ok=True)
    aside = path.with_suffix(".partial")
    with aside.open("wb") as file:
        np.save(file, vector.cpu().numpy())
    os.replace(aside, path)
