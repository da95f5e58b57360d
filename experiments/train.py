"""Run one job, or with `-m` the jobs of a grid: `python -m experiments.train -m experiment=speedup profile=quick`.

A job whose result exists is not run again, so a sweep that was killed resumes. Failures do not stop a sweep
(`fail_fast=true` does): all are listed at the end, and the exit status is then 1. `--status` runs nothing and prints
the state of every job of the grid.
"""

import signal
import sys
import time
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from experiments.build import ConfigError
from experiments.launch import Outcome, look, run_job
from experiments.network import unavailable
from experiments.progress import Progress, jobs_in_sweep, plain_console


class Sweep:
    """The jobs of one command, one after the other."""

    def __init__(self, console: Console, look_only: bool) -> None:
        self.console, self.look_only = console, look_only
        self.outcomes: list[Outcome] = []
        self._progress: Progress | None = None
        self._shaping: dict[str, str | None] = {}

    def job(self, cfg: DictConfig) -> None:
        """One job of the sweep, in Hydra's order."""
        progress = self._progress = self._progress or Progress(self.console, _total())
        if cfg.fail_fast and any(outcome.bad for outcome in self.outcomes):
            outcome = Outcome(f"job {len(self.outcomes) + 1}", "skipped", "fail_fast: an earlier job failed")
        else:
            progress.start(len(self.outcomes))
            try:
                why, number = self._why_unshaped(cfg), len(self.outcomes)
                outcome = look(cfg, why) if self.look_only else run_job(cfg, why, number)
            except ConfigError as error:
                outcome = Outcome(" ".join(HydraConfig.get().overrides.task), "failed", f"configuration: {error}")
        self.outcomes.append(outcome)
        progress.end(outcome)

    def _why_unshaped(self, cfg: DictConfig) -> str | None:
        if not cfg.network.shaped:
            return None
        if not self._shaping:
            self._shaping["why"] = unavailable()
            if self._shaping["why"]:
                self.console.print(
                    f"[bold yellow]Links cannot be shaped here: {self._shaping['why']}\n"
                    "The jobs run over loopback instead, and their rows say so: not a result about slow links."
                )
        return self._shaping["why"]

    def close(self) -> int:
        """The table of all jobs, and the exit status."""
        if self._progress:
            self._progress.stop()
        table = Table("job", "state", "seconds", "reason", title="Jobs")
        for outcome in self.outcomes:
            seconds = f"{outcome.seconds:.1f}" if outcome.seconds else ""
            table.add_row(outcome.job, outcome.state, seconds, outcome.reason)
        if len(self.outcomes) > 1:
            self.console.print(table)
        for folder in {outcome.folder.parent.parent for outcome in self.outcomes if outcome.folder}:
            self.console.print(
                f"records: {folder}/jobs; the table: python -m experiments.report {folder}", soft_wrap=True
            )
        return int(any(outcome.bad for outcome in self.outcomes))


def _total() -> int:
    config = HydraConfig.get()
    return jobs_in_sweep(config, sys.argv[1:]) if config.mode == RunMode.MULTIRUN else 1


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt  # SIGTERM unwinds like Ctrl-C: namespaces and ranks are taken down on the way


def main() -> None:
    look_only = "--status" in sys.argv
    if look_only:
        sys.argv.remove("--status")  # Hydra knows its own flags only
    sweep = Sweep(plain_console(), look_only)
    for sign in (signal.SIGTERM, signal.SIGINT):  # a shell that starts us in the background has SIGINT ignored
        signal.signal(sign, _stop)

    @hydra.main(version_base="1.3", config_path="../conf", config_name="config")
    def run(cfg: DictConfig) -> None:
        sweep.job(cfg)

    started = time.time()
    try:
        run()
    except KeyboardInterrupt:
        sweep.close()
        sys.exit(f"interrupted after {time.time() - started:.0f} s: the same command goes on from here")
    sys.exit(sweep.close())


if __name__ == "__main__":
    main()
