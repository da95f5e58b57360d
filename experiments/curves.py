"""How training went on the way: quality where it was evaluated, the training loss, smoothed, and every timed step."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.record import read_json
from experiments.results import Frame

QUALITY, LOSS = "quality", "train loss"
POINTS = 100  # of a smoothed curve, at most


def curves(folder: Path, runs: Frame) -> pd.DataFrame:
    """Tidy points of the jobs of `runs` below `folder`: job, curve, step, epoch, seconds, value.

    Seconds are those of training steps, and blank for virtual workers, which have no speed.
    """
    found: list[dict[str, Any]] = []
    for run in runs.itertuples():
        job = folder / "jobs" / run.job
        blank = {"seconds": math.nan} if run.network == "virtual" else {}
        found += [{**point, **blank, "job": run.job} for point in (*_quality(job, run), *_smooth(job))]
    return pd.DataFrame(found, columns=["job", "curve", "step", "epoch", "seconds", "value"])


def series(folder: Path, runs: Frame, names: Sequence[str]) -> pd.DataFrame:
    """Every timed step of the jobs of `runs` below `folder`: job, step, and the columns `names`, NaN where one lacks.

    Steps are counted from 0, the first of training: excluded steps are not recorded.
    """
    found = [_steps(folder / "jobs" / job).reindex(columns=["step", *names]).assign(job=job) for job in runs["job"]]
    return pd.concat([pd.DataFrame(columns=["job", "step", *names], dtype=float), *found], ignore_index=True)


def _quality(job: Path, run: Any) -> list[dict[str, Any]]:
    """The evaluations on the way, and the one at the end where it is not the last of them."""
    points = [{**point, "value": point["metric_value"]} for point in read_json(job / "quality.json") or []]
    if not math.isnan(run.metric_value) and (not points or points[-1]["step"] < run.steps_total):
        end = {"step": run.steps_total, "epoch": run.epochs, "seconds": run.train_seconds, "value": run.metric_value}
        points.append(end)
    return [{**point, "curve": QUALITY} for point in points]


def _smooth(job: Path) -> list[dict[str, Any]]:
    """Means of the loss over blocks of steps, at the end of each block."""
    steps = _steps(job).reindex(columns=["step", "epoch", "seconds", "loss"])  # older records lack two of them
    size = math.ceil(len(steps) / POINTS)
    blocks = steps.groupby(steps.index // size)
    ends = blocks.last().assign(curve=LOSS, value=blocks["loss"].mean())
    ends["step"] += 1  # counted as quality is: steps done
    return ends.drop(columns="loss").to_dict("records")


def _steps(job: Path) -> pd.DataFrame:
    return pd.DataFrame([json.loads(line) for line in (job / "steps.jsonl").read_text().splitlines()])
