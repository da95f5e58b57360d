"""Checkpoints of a job: a folder a step, with a file a rank, whole or not there; the last good one is kept.

checkpoints/step000100/rank0.pt    weights, optimizer, the compressor's memory, carried state, random state
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class WrongCheckpoint(RuntimeError):
    """The checkpoint is of another number of ranks, or not of this job at all."""


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint of the job in `folder`."""
    return max((folder / "checkpoints").glob("step*"), default=None)


def step_of(checkpoint: Path) -> int:
    """How many steps were done when it was written."""
    return int(checkpoint.name.removeprefix("step"))


def save(
    folder: Path, step: int, state: dict[str, Any], rank: int, world_size: int, barrier: Callable[[], Any]
) -> None:
    """On all ranks. It gets its name when every rank has written its file, and only then are older ones removed."""
    aside, final = folder / "checkpoints" / f".step{step:06d}", folder / "checkpoints" / f"step{step:06d}"
    aside.mkdir(parents=True, exist_ok=True)
    torch.save({**state, "rank": rank, "world_size": world_size}, aside / f"rank{rank}.pt")
    barrier()
    if rank == 0:
        older = [path for path in (folder / "checkpoints").iterdir() if path not in (aside, final)]
        shutil.rmtree(final, ignore_errors=True)
        os.replace(aside, final)
        for path in older:
            shutil.rmtree(path)
    barrier()


def load(checkpoint: Path, rank: int, world_size: int) -> dict[str, Any]:
    """What this rank saved. Residuals belong to ranks, so another number of ranks is refused."""
    ranks = len(list(checkpoint.glob("rank*.pt")))
    if ranks != world_size:
        raise WrongCheckpoint(
            f"{checkpoint} was written by {ranks} ranks, this job has {world_size}: residuals belong to ranks and "
            "cannot be shared out anew; delete the checkpoints to start afresh"
        )
    return torch.load(checkpoint / f"rank{rank}.pt", weights_only=True)
