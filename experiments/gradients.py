"""Gradients to look at: those that a job has kept, or, where none has, those of a small training made on the spot."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from torch import Tensor

from experiments.build import build
from experiments.capture import SEEN
from experiments.record import ROOT

DIGITS = "resnet20_digits"  # the benchmark whose data comes with scikit-learn: nothing to download
MANY = 1_000_000  # values that a picture needs


def kept(outputs: Path) -> dict[str, Path]:
    """Of the job that captured last, below any folder of `outputs`: its first step, and all there is of its last; {}
    where none has. By what they are; files of a flat float32 vector (n,) each, as capture.steps=[0,100] makes them.
    """
    found = outputs.glob("*/jobs/*/captures/step*.npy")
    newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        return {}
    files = sorted(newest.parent.glob("step*.npy"), key=lambda path: (_step(path), path.stem))
    last = [path for path in files if _step(path) == _step(files[-1])]
    return {f"step {_step(path)}{_seen(path)}": path for path in (files[0], *last)}


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step").removesuffix(SEEN))


def _seen(path: Path) -> str:
    """A compressor behind error feedback sees more than the gradient; that is kept beside it."""
    return ", with error feedback" if path.stem.endswith(SEEN) else ""


def of_digits(seed: int = 1) -> Iterator[Tensor]:
    """(269434,) float32: the gradient of each step of a training without end, of one worker that compresses nothing.

    ResNet-20 on the digits, as conf/benchmark has it; the global random state is left as it was.
    """
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", overrides=[f"benchmark={DIGITS}"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(config.model)
    task, dataset, optimizer = build(config.task), build(config.dataset), build(config.optimizer)(model.parameters())
    dataset.prepare()
    for epoch in count():
        for batch in dataset.train_batches(0, 1, config.training.batch_per_rank, epoch, seed):
            optimizer.zero_grad()
            task.loss(model, batch, None)[0].backward()
            yield torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            optimizer.step()


def thinned(path: Path) -> Tensor:
    """A captured gradient, float32; of a long one every so many-th value, about a million of them: of all layers."""
    whole = np.load(path, mmap_mode="r")
    return torch.from_numpy(whole[:: max(1, len(whole) // MANY)].copy())
