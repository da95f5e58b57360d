"""How far a sweep is: done, skipped, failed, time left; also where its jobs run elsewhere and leave word in files."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Thread

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from rich.console import Console
from rich.status import Status
from rich.table import Table

from experiments.launch import Outcome
from experiments.record import read_json, write_json

POLL_S = 1.0


def jobs_of_sweep(hydra: HydraConf, arguments: list[str]) -> list[list[str]]:
    """The overrides of each job that Hydra's basic sweeper makes of the grid in the configuration and this command."""
    params = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()]
    typed = [word for word in arguments if "=" in word and not word.startswith("-")]
    typed = [word for word in typed if not word.lstrip("+~").startswith(("hydra.", "hydra/"))]  # not of its jobs
    running = GlobalHydra.instance().hydra
    parser = OverridesParser.create(running.config_loader if running else None)  # which knows what a glob matches
    batches = BasicSweeper.split_arguments(parser.parse_overrides([*params, *typed]), max_batch_size=None)
    return [list(job) for batch in batches for job in batch]


def plain_console() -> Console:
    """As wide as the terminal; 120 columns where the output is a file."""
    return Console(width=None if sys.stdout.isatty() else 120)


class Progress:
    """One line a job and what is left, also where the output is a file."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._began = time.time()
        self._running: set[int] = set()
        self._status: Status | None = None
        self._some_ran = False
        self._counts = {"done": 0, "reused": 0, "skipped": 0, "busy": 0, "missing": 0, "failed": 0, "diverged": 0}

    def start(self, number: int) -> None:
        """Job `number` is running, perhaps beside others."""
        self._running.add(number)
        self._show()

    def end(self, number: int, outcome: Outcome) -> None:
        """It has ended, or was never started."""
        self.stop()
        self._running.discard(number)
        self._counts[outcome.state] += 1
        ended = sum(self._counts.values())
        self._some_ran |= outcome.state not in ("reused", "skipped", "missing")
        left = self._total - ended
        counts = ", ".join(f"{count} {state}" for state, count in self._counts.items() if count)
        # those to come are taken to be run or reused, and to run side by side, as those before
        seconds = (time.time() - self._began) * left / ended
        time_left = f", about {_minutes(seconds)} left" if left and self._some_ran else ""
        style = "red" if outcome.bad else "yellow" if outcome.reason else None
        self._console.print(
            f"[{ended}/{self._total}] {outcome.job}: {outcome.state} {outcome.reason} ({counts}{time_left})",
            style=style, markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        self._show()

    def stop(self) -> None:
        """Take the line that moves away."""
        if self._status:
            self._status.stop()
            self._status = None

    def _show(self) -> None:
        self.stop()
        if self._running:
            jobs = f"{len(self._running)} job{'s are' if len(self._running) > 1 else ' is'} running"
            self._status = self._console.status(f"{jobs}, {sum(self._counts.values())} of {self._total} ended")
            self._status.start()


def print_table(console: Console, outcomes: Sequence[Outcome]) -> None:
    """All jobs of a sweep, and where their records are."""
    table = Table("job", "state", "seconds", "reason", title="Jobs")
    for outcome in outcomes:
        seconds = f"{outcome.seconds:.1f}" if outcome.seconds else ""
        table.add_row(outcome.job, outcome.state, seconds, outcome.reason)
    if len(outcomes) > 1:
        console.print(table)
    for folder in {outcome.folder.parent.parent for outcome in outcomes if outcome.folder}:
        console.print(f"records: {folder}/jobs; the table: python -m experiments.report {folder}", soft_wrap=True)


class Letters:
    """The outcomes of jobs that run elsewhere: a file each in `folder`, read as they come."""

    def __init__(self, folder: Path, came: Callable[[int, Outcome], None]) -> None:
        """`came` is called in a thread of its own until `stop`."""
        self._folder, self._came = folder, came
        self._known: set[int] = set()
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read what is there, and no more."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            over = self._over.wait(POLL_S)
            for number, outcome in sorted(letters(self._folder).items()):
                if number not in self._known:
                    self._known.add(number)
                    self._came(number, outcome)
            if over:
                return


def leave_letter(folder: Path, number: int, outcome: Outcome) -> None:
    """What became of job `number`, for the command that started the sweep."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{number}.json", {**outcome._asdict(), "folder": outcome.folder and str(outcome.folder)})


def letters(folder: Path) -> dict[int, Outcome]:
    """What the jobs of a sweep have left so far, by their place in it."""
    found = {int(path.stem): read_json(path) for path in folder.glob("*.json")}
    return {
        number: Outcome(**{**content, "folder": Path(content["folder"]) if content["folder"] else None})
        for number, content in found.items()
        if content
    }


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
