"""The runs of a folder as a table: one tidy row per finished job, computed from its files alone.

A job whose status is not `done`, or one of whose files is missing or cut short, is not a row; `states` says what
became of it. Times in milliseconds, bytes per step; times, bytes and density are those of rank 0, which records.
Virtual workers share one process and have no speed: their times and rates are blank.
"""

import json
import math
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from experiments.build import build, digest, target_ratio
from experiments.recipe import compared, compression, recipe
from experiments.record import read_json

Frame = (
    Any  # a pandas DataFrame as a parameter: pandas answers "Series | DataFrame" to every selection, so checks mislead
)
Z90 = 1.645  # two-sided 90 % of the normal distribution
PARTS = ("forward_backward", "compress", "exchange", "mean", "exposed", "optimizer")  # of a step
OPTIONAL = (
    "compute_only_ms",
    "host_reads",
    "metric_value",
    "target",
    "seconds_to_target",
    "steps_to_target",
)  # null: NaN
SPEEDS = ("units_per_second", "seconds_to_target", "train_seconds")  # beside all milliseconds
SETTING = (
    "hardware",
    "torch_version",
    "code_fingerprint",
    "network",
    "rate_mbit_per_s",
    "burst_kib",
    "data_sha256",
    "shared_node",
)


class NotARow(Exception):
    """The job has no result; `state` and the message say what became of it."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state = state


def read(folder: Path) -> pd.DataFrame:
    """One row per finished job below `folder/jobs`, of whatever code; empty, without columns, where there is none.

    Rows of one `cell` differ only in compression and seed: only those may be compared.
    """
    rows = []
    for job in _jobs(folder):
        try:
            rows.append(_row(job))
        except NotARow:
            continue
    return pd.DataFrame(rows)


def states(folder: Path) -> pd.DataFrame:
    """Job, state and reason of every job below `folder/jobs`, finished or not."""
    found = []
    for job in _jobs(folder):
        try:
            _row(job)
            found.append((job.name, "done", ""))
        except NotARow as error:
            found.append((job.name, error.state, str(error)))
    return pd.DataFrame(found, columns=["job", "state", "reason"])


def newest_code(runs: Frame) -> pd.DataFrame:
    """The rows of the code that finished a job last: rows of different code never share a table."""
    newest = runs.loc[runs["finished"].idxmax(), "code_fingerprint"]
    return runs[runs["code_fingerprint"] == newest]


def labels(runs: Frame) -> pd.Series:
    """The compressor's name, its wire format unless it is the plain one, and of its settings those in which the jobs of
    that name differ."""
    wires = runs.get("name_wire", pd.Series("plain", index=runs.index)).fillna("plain")
    names = runs["name_compressor"].where(wires == "plain", runs["name_compressor"] + " wire=" + wires)
    return _told_apart(names, runs["compression"], " ", " ")


def places(runs: Frame, names: Frame) -> pd.Series:
    """The name of each row's cell, and of its settings those in which the cells of that name differ."""
    return _told_apart(names, runs["setting"], ", ", ", ")


def _told_apart(names: Frame, settings: Frame, before: str, between: str) -> pd.Series:
    leaves, told = settings.map(lambda text: _leaves(json.loads(text))), names.copy()
    for name, same in leaves.groupby(names):
        keys = sorted({key for found in same for key in found})
        varied = [key for key in keys if len({found.get(key) for found in same}) > 1]
        for index, found in same.items():
            added = between.join(f"{key}={found[key]}" for key in varied if key in found)
            told[index] = f"{name}{added and before}{added}"
    return told


def apart_from(runs: Frame, names: Set[str]) -> pd.Series:
    """Each row's setting without the settings of those names: equal in rows that differ in nothing else."""
    return runs["setting"].map(lambda text: json.dumps(_without(json.loads(text), names), sort_keys=True))


def _without(node: Any, names: Set[str]) -> Any:
    if not isinstance(node, dict):
        return node
    return {key: _without(value, names) for key, value in node.items() if key not in names}


def geometric_mean(values: Frame) -> float:
    """NaN of no values."""
    return math.exp(np.log(values).mean()) if len(values) else math.nan


def _jobs(folder: Path) -> Iterator[Path]:
    return (path for path in sorted((folder / "jobs").glob("*")) if path.is_dir())


def _row(job: Path) -> dict[str, Any]:
    status = read_json(job / "status.json") or {}
    state = status.get("state", "unfinished")
    if state == "running":
        raise NotARow("unfinished", "still running, or ended without a word")
    if state != "done":
        raise NotARow(state, status.get("reason", "no readable status.json"))
    summary, env = (_whole(job / name, read_json(job / name)) for name in ("summary.json", "env.json"))
    config = _whole(job / "config.yaml", _config(job / "config.yaml"))
    planned = config["training"]["excluded_steps"] + config["training"]["steps"]
    done = summary.get("steps_done", planned)  # fewer where the time for training was used up
    steps = _whole(job / "steps.jsonl", _steps(job / "steps.jsonl", done - config["training"]["excluded_steps"]))
    points = _whole(job / "quality.json", _points(job / "quality.json", config["training"].get("evaluate_every"), done))
    row = {"job": job.name, "finished": status["updated"], **summary, **env, **_settings(config, env), **_means(steps)}
    row |= {name: math.nan for name in OPTIONAL if row.get(name) is None}
    row |= _ending(row, steps, points, config)
    units = row["units_per_step_per_rank"] * row["world_size"]
    row["units_per_second"] = units / (1e-3 * row["step_ms_median"])  # of all ranks together
    row["exposed_comm_ms"] = row["step_ms_median"] - row["compute_only_ms"]
    if row["network"] == "virtual":
        row |= {name: math.nan for name in row if name in SPEEDS or "_ms" in name}
    return row


def _whole(path: Path, content: Any) -> Any:
    if content is None:
        raise NotARow("incomplete", f"{path.name} is missing or cut short: delete the folder to run the job again")
    return content


def _config(path: Path) -> dict[str, Any] | None:
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(path))
        return content if {"training", "names", "method"} <= content.keys() else None
    except (OSError, YAMLError, OmegaConfBaseException):
        return None


def _steps(path: Path, expected: int) -> pd.DataFrame | None:
    """The timed steps, a line each; None where fewer are there than were asked for."""
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return pd.DataFrame(lines).astype(float) if 0 < len(lines) == expected else None


def _points(path: Path, every: int | None, done: int) -> list[dict[str, float]] | None:
    """The quality on the way; None where fewer are there than were asked for."""
    expected = done // every if every else 0
    found = read_json(path) if expected else []
    return found if found is not None and len(found) == expected else None


def _ending(
    row: dict[str, Any], steps: Frame, points: list[dict[str, float]], config: dict[str, Any]
) -> dict[str, Any]:
    """How far training went, how well it ended and how long it took."""
    last, task = steps.iloc[-1], build(config["task"])
    total, qualities = int(last["step"]) + 1, [row["metric_value"], *(point["metric_value"] for point in points)]
    known = [value for value in qualities if not math.isnan(value)]
    best = max if task.higher_is_better else min
    return {
        "higher_is_better": task.higher_is_better,
        "steps_total": total,
        "epochs": last["epoch"] * total / last["step"] if last.get("epoch") else math.nan,
        "train_seconds": last.get("seconds", math.nan),  # of all steps, without what lies between them
        "points": len(points),
        "metric_best": best(known, default=math.nan),
    }


def _settings(config: dict[str, Any], env: dict[str, Any]) -> dict[str, Any]:
    """What the configuration says of a row, and the `cell` of the rows it may be compared with."""
    setting = {"config": compared(config), "env": {key: env.get(key) for key in SETTING}}
    ratio = target_ratio(config)
    return {
        "ratio": math.nan if ratio is None else ratio,
        "seed": config["seed"],
        **{key: config["training"][key] for key in ("batch_per_rank", "steps", "excluded_steps")},
        **recipe(config),
        "compression": json.dumps(compression(config), sort_keys=True),
        "setting": json.dumps(setting, sort_keys=True),
        "cell": digest(setting),
    }


def _means(steps: Frame) -> dict[str, float]:
    """Over all timed steps. The confidence interval is the normal one, 1.645 s / sqrt(n), for independent steps."""
    khat = steps["khat_over_k"]
    return {
        "steps_timed": len(steps),
        "step_ms_median": steps["step_ms"].median(),
        "step_ms_p20": steps["step_ms"].quantile(0.2),
        "step_ms_p80": steps["step_ms"].quantile(0.8),
        **{f"{part}_ms_median": steps[f"{part}_ms"].median() for part in PARTS},
        "density": steps["density"].mean(),
        "khat_over_k_mean": khat.mean(),
        "khat_over_k_ci90": Z90 * khat.std() / math.sqrt(len(steps)),  # NaN of one step: s has n - 1 below
        "payload_bytes": steps["payload_bytes"].mean(),
        "sent_bytes": steps["sent_bytes"].mean(),
        "stages_last": steps["stages"].iloc[-1] if "stages" in steps else math.nan,
    }


def _leaves(node: Any, name: str = "") -> dict[str, str]:
    """Settings by their last name; a class counts as the value of what holds it. The ratio has a column of its own."""
    if not isinstance(node, dict):
        return {} if name == "ratio" else {name: str(node)}
    found: dict[str, str] = {}
    for key, value in node.items():
        found |= {name: value.rsplit(".", 1)[-1]} if key == "_target_" else _leaves(value, key)
    return found
