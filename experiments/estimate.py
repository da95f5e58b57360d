"""What a sweep would take, without running it: `python -m experiments.estimate experiment=speedup profile=paper`.

Jobs, steps and bytes follow from the configurations. Hours are an ESTIMATE: steps times the seconds that computing one
took where it was measured, scaled with the batch, the exchange left out. They come from results/seconds_per_step.csv,
which names device and source of each; where it has no row they are unknown, and a cap on the time is an upper bound.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from rich import box
from rich.console import Console
from rich.table import Column, Table

from experiments.build import ConfigError, Incompatible, build, check, digest, scientific, target_ratio
from experiments.data.cache import DataMissing
from experiments.progress import jobs_of_sweep, plain_console
from experiments.recipe import in_steps
from experiments.record import ROOT
from experiments.results import Frame
from sidco.compressor import target_count

SECONDS = ROOT / "results" / "seconds_per_step.csv"
GPU = "GPU"  # a device's name in that file; others are told beside it
UNKNOWN = "unknown"
MESSAGES = "MB a message, by ratio"


class Planned(NamedTuple):
    """A job that would run."""

    config: dict[str, Any]
    parameters: int
    steps: int | None  # excluded ones included; None: unknown
    why: str  # it is

    @property
    def place(self) -> tuple[str, int, int, int | None]:
        """What jobs of one line of the table share: benchmark, workers, batch, steps."""
        training, workers = self.config["training"], self.config["workers"]
        return self.config["names"]["benchmark"], workers["world_size"], training["batch_per_rank"], self.steps

    @property
    def message(self) -> int | None:
        """Bytes that a worker's message takes in a step, at the ratio aimed at; None where only a run can tell."""
        config, ratio = self.config, target_ratio(self.config)
        if config["method"] is None:
            return 4 * self.parameters
        if ratio is not None:  # a float32 value and an int32 index each
            return 8 * target_count(self.parameters, ratio) if config["wire"] == config["compressor"] else None
        dtype = (config["compressor"] or {}).get("dtype")
        return dtype and self.parameters * getattr(torch, dtype).itemsize

    def hours(self, seconds: float | None) -> tuple[float | None, bool]:
        """Of its workers' devices together, a step taking that long, and whether that is a bound only."""
        cap = self.config["training"]["time_cap_s"]
        took = None if seconds is None or self.steps is None else seconds * self.steps
        known = [value for value in (took, cap) if value is not None]
        whole = min(known) * self.config["workers"]["world_size"] / 3600 if known else None
        return whole, took is None


def planned(words: list[str]) -> tuple[list[Planned], dict[str, list[str]]]:
    """The jobs of the sweep, equal ones once, and by reason those that would not run."""
    jobs: dict[str, Planned] = {}
    refused: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}  # of what many jobs share
    lengths: dict[str, tuple[int | None, str]] = {}
    for job in _jobs(words):
        try:
            config = _config(job)
            model, run = _text(config, "model"), _text(config, "dataset", "training", "workers")
            sizes[model] = sizes.get(model) or _parameters(config)
        except Incompatible as reason:
            refused.setdefault(f"skipped: {reason}", []).append(" ".join(job))
            continue
        except (ConfigError, HydraException) as reason:
            refused.setdefault(f"refused: {str(reason).splitlines()[0]}", []).append(" ".join(job))
            continue
        lengths[run] = lengths.get(run) or _steps(config)
        jobs[digest(scientific(config))] = Planned(config, sizes[model], *lengths[run])
    return list(jobs.values()), refused


def _text(config: dict[str, Any], *parts: str) -> str:
    return json.dumps([config[part] for part in parts], sort_keys=True)


def _jobs(words: list[str]) -> list[list[str]]:
    running = GlobalHydra.instance().hydra
    assert running, "inside initialize_config_dir"
    whole = running.compose_config("config", words, RunMode.MULTIRUN, with_log_configuration=False)
    return jobs_of_sweep(whole.hydra, words)


def _config(job: list[str]) -> dict[str, Any]:
    whole = compose("config", overrides=job, return_hydra_config=True)
    HydraConfig.instance().set_config(whole)  # the names of what was chosen come from there
    return check(OmegaConf.masked_copy(whole, [str(key) for key in whole if key != "hydra"]))


def _parameters(config: dict[str, Any]) -> int:
    with torch.device("meta"):  # a count needs no memory
        return sum(p.numel() for p in build(config["model"]).parameters())


def _steps(config: dict[str, Any]) -> tuple[int | None, str]:
    """Of the job, or why they are unknown."""
    dataset = build(config["dataset"])
    try:
        try:
            training = in_steps(config, dataset)["training"]
        except DataMissing:
            dataset.prepare()  # files that lie here have been read by no job yet
            training = in_steps(config, dataset)["training"]
    except (DataMissing, ValueError) as reason:
        return None, str(reason)
    return training["excluded_steps"] + training["steps"], ""


def measured(path: Path = SECONDS) -> pd.DataFrame:
    """Seconds of computing a step: benchmark, batch_per_rank, seconds, device, hardware, source."""
    rows: Frame = pd.read_csv(path)
    bare = rows[rows["source"].isna() | ~(rows["seconds"] > 0)]
    if len(bare):
        got = bare.to_dict("records")
        raise ConfigError(f"{path.name}: expected seconds above 0 and a source in each row, got {got}")
    return rows


def table(jobs: list[Planned], rows: Frame) -> pd.DataFrame:
    """A line for each benchmark, as text."""
    lines: dict[tuple[Any, ...], list[Planned]] = {}
    for job in jobs:
        lines.setdefault(job.place, []).append(job)
    devices = [GPU, *sorted(set(rows["device"]) - {GPU})]
    return pd.DataFrame([_line(place, same, rows, devices) for place, same in lines.items()])


def _line(place: tuple[Any, ...], same: list[Planned], rows: Frame, devices: list[str]) -> dict[str, str]:
    benchmark, workers, batch, steps = place
    cap = same[0].config["training"]["time_cap_s"]
    line = {
        "benchmark": benchmark,
        "jobs": f"{len(same)}",
        "workers x batch": f"{workers} x {batch}",
        "parameters": f"{same[0].parameters:,}",
        "steps a job": UNKNOWN if steps is None else f"{steps:,}",
        MESSAGES: ", ".join(_messages(same)),
        "cap": "" if cap is None else f"{cap / 3600:g} h",
    }
    for device in devices:
        known = rows[(rows["device"] == device) & (rows["benchmark"] == benchmark)]
        seconds = None if known.empty else known["seconds"].iloc[0] * batch / known["batch_per_rank"].iloc[0]
        line[f"{device}-hours"] = _hours(job.hours(seconds) for job in same)
    return line


def _messages(same: list[Planned]) -> Iterator[str]:
    """Dense, then by falling ratio; those that only a run can tell are left out."""
    sizes = {(target_ratio(job.config), job.message) for job in same}
    dense = {size for ratio, size in sizes if size and ratio is None}
    sparse = {ratio: size for ratio, size in sizes if size and ratio is not None}
    if dense:
        yield f"dense {'/'.join(f'{size / 1e6:.3g}' for size in sorted(dense, reverse=True))}"
    yield from (f"{ratio:g}: {sparse[ratio] / 1e6:.3g}" for ratio in sorted(sparse, reverse=True))


def _hours(found: Iterable[tuple[float | None, bool]]) -> str:
    pairs = list(found)
    known = [hours for hours, _ in pairs if hours is not None]
    if len(known) < len(pairs):
        return UNKNOWN
    whole, bound = sum(known), [is_bound for _, is_bound in pairs]
    return f"{'at most ' if any(bound) else ''}{whole:{',.0f' if whole >= 100 else '.3g'}}"


def show(jobs: list[Planned], refused: dict[str, list[str]], rows: Frame, console: Console) -> None:
    """The table, and on what it rests."""
    text = table(jobs, rows)
    heads = [Column(name, no_wrap=name != MESSAGES) for name in text]
    title = f"{len(jobs)} jobs; hours are an ESTIMATE, see below"
    printed = Table(*heads, title=title, box=box.SIMPLE_HEAD, collapse_padding=True)
    for cells in text.to_numpy().tolist():
        printed.add_row(*cells)
    console.print(printed)
    used = rows[rows["benchmark"].isin({job.place[0] for job in jobs})]
    lines = [
        "Hours: of all workers' devices and all jobs of the line together. Steps times the seconds of computing one,",
        "in proportion to the batch; exchange, evaluation and start are left out, a job ends at its cap. Assumed:",
        *(
            f"  {row.benchmark}: {row.seconds:g} s a step of {row.batch_per_rank} on one {row.device} of "
            f"{row.hardware} ({row.source})"
            for row in used.itertuples()
        ),
        *([] if (used["device"] == GPU).any() else [f"  no row of a {GPU}: add one to results/{SECONDS.name}"]),
        *sorted({f"{job.place[0]}: steps unknown: {job.why}" for job in jobs if job.steps is None}),
        *(f"{len(words)} jobs {reason} ({words[0]} …)" for reason, words in refused.items()),
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def main(words: list[str]) -> int:
    """1 if a job would be refused."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        try:
            jobs, refused = planned([word for word in words if word not in ("-m", "--multirun")])
        except HydraException as reason:  # in what all jobs share
            print(reason)
            return 1
    if jobs:
        show(jobs, refused, measured(), plain_console())
    else:
        print(f"no jobs: {'; '.join(refused)}")
    return int(any(reason.startswith("refused") for reason in refused))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
