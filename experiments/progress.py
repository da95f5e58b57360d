"""How far a sweep is: done, skipped, failed, time left."""

import sys
import time

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.conf import HydraConf
from hydra.core.override_parser.overrides_parser import OverridesParser
from rich.console import Console
from rich.status import Status

from experiments.launch import Outcome


def jobs_in_sweep(hydra: HydraConf, arguments: list[str]) -> int:
    """How many jobs Hydra's basic sweeper makes of the grid in the configuration and this command line."""
    params = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()]
    typed = [word for word in arguments if "=" in word and not word.startswith("-")]
    overrides = OverridesParser.create().parse_overrides([*params, *typed])
    return sum(len(batch) for batch in BasicSweeper.split_arguments(overrides, max_batch_size=None))


def plain_console() -> Console:
    """As wide as the terminal; 120 columns where the output is a file."""
    return Console(width=None if sys.stdout.isatty() else 120)


class Progress:
    """One line a job and what is left, also where the output is a file."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._began = 0.0
        self._status: Status | None = None
        self._run_seconds: list[float] = []
        self._counts = {"done": 0, "reused": 0, "skipped": 0, "busy": 0, "missing": 0, "failed": 0, "diverged": 0}

    def start(self, index: int) -> None:
        self._began = time.time()
        self._status = self._console.status(f"job {index + 1} of {self._total} is running")
        self._status.start()

    def end(self, outcome: Outcome) -> None:
        self.stop()
        self._counts[outcome.state] += 1
        ended = sum(self._counts.values())
        if outcome.state not in ("reused", "skipped", "missing"):
            self._run_seconds.append(time.time() - self._began)
        left = self._total - ended
        mean = sum(self._run_seconds) / len(self._run_seconds) if self._run_seconds else 0.0
        counts = ", ".join(f"{count} {state}" for state, count in self._counts.items() if count)
        time_left = (
            f", about {_minutes(mean * left * len(self._run_seconds) / ended)} left"
            if left and self._run_seconds
            else ""
        )
        style = "red" if outcome.bad else "yellow" if outcome.reason else None
        self._console.print(
            f"[{ended}/{self._total}] {outcome.job}: {outcome.state} {outcome.reason} ({counts}{time_left})",
            style=style, markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip

    def stop(self) -> None:
        """Take the line that moves away."""
        if self._status:
            self._status.stop()
            self._status = None


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
