"""Run one job, or with `-m` the jobs of a grid: `python -m experiments.train -m experiment=speedup profile=quick`.

A job whose result exists is not run again, so a sweep that was killed resumes. Failures do not stop a sweep
(`fail_fast=true` does): all are listed at the end, and the exit status is then 1. `--status` runs nothing and prints
the state of every job of the grid.

Jobs run one after the other; with `slots=8` as many at the same time as this node's GPUs hold; with
`hydra/launcher=submitit_slurm` (the extra [slurm]) each as a SLURM job of its own. What Hydra and submitit write lies
under outputs/: multirun.yaml, .submitit/ (each SLURM job's log and pickles), .sweeps/ (outcomes of jobs run elsewhere).
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console

from experiments.build import ConfigError
from experiments.launch import Job, Outcome, finished, look, plan, run_job, settled
from experiments.network import unavailable
from experiments.progress import Letters, Progress, jobs_of_sweep, leave_letter, letters, plain_console, print_table
from experiments.slots import Pool, Seat, Ticket

FAIL_FAST = "fail_fast: an earlier job failed"


class Sweep:
    """The jobs of one command. A launcher that pickles it, to start jobs elsewhere, gets a `Messenger` in its place."""

    def __init__(self, console: Console, look_only: bool) -> None:
        self.console, self.look_only = console, look_only
        self.outcomes: dict[int, Outcome] = {}
        self._seen = 0
        self._one_failed = False  # read by threads too
        self._progress: Progress | None = None
        self._pool: Pool[Outcome] | None = None
        self._shaping: dict[str, str | None] = {}
        self._folder: Path | None = None  # where jobs that run elsewhere leave their outcomes
        self._jobs: list[str] = []  # and what they are called
        self._letters: Letters | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether another process has been given the jobs."""
        return self._folder is not None

    def job(self, cfg: DictConfig) -> None:
        """One job of the sweep, in Hydra's order: run, or queued for its slots."""
        number, self._seen = self._seen, self._seen + 1
        self._progress = self._progress or Progress(self.console, _total())
        if cfg.fail_fast and self._one_failed:
            outcome = Outcome(f"job {number + 1}", "skipped", FAIL_FAST)
        else:
            try:
                _check_launcher()
                job = plan(cfg, self._why_unshaped(cfg), number)
                outcome = job if isinstance(job, Outcome) else self._run(job, self._progress)
            except ConfigError as error:
                outcome = _refused(error)
        if outcome:
            self._ended(number, outcome)

    def _run(self, job: Job, progress: Progress) -> Outcome | None:
        """None: it has been queued."""
        slots = job.config["slots"]
        if self.look_only:
            return look(job)
        if slots is None or finished(job.folder):
            progress.start(job.number)
            return run_job(job)
        if job.config["network"]["cluster"]:
            raise ConfigError(f"slots={slots} are those of one node, network=cluster takes several: leave one out")
        self._pool = self._pool or Pool(slots, progress.start, self._ended)
        if slots != self._pool.slots:
            raise ConfigError(f"slots={slots} beside slots={self._pool.slots}: a sweep has one number of slots")
        self._pool.add(Ticket(job.number, job.slots, job.folder, partial(self._run_on_slots, job)))
        return None

    def _run_on_slots(self, job: Job, seat: Seat) -> Outcome:
        """In a thread of the pool."""
        skip = job.config["fail_fast"] and self._one_failed
        return Outcome(job.name, "skipped", FAIL_FAST) if skip else run_job(job, seat)

    def _ended(self, number: int, outcome: Outcome) -> None:
        self.outcomes[number] = outcome
        self._one_failed |= outcome.bad
        if self._progress:
            self._progress.end(number, outcome)

    def _why_unshaped(self, cfg: DictConfig) -> str | None:
        if not cfg.network.shaped:
            return None
        if not self._shaping:
            self._shaping["why"] = _unshaped(self.console.print)
        return self._shaping["why"]

    def __reduce__(self) -> tuple[type["Messenger"], tuple[Path]]:
        if self._folder is None:
            words = [word for word in sys.argv[1:] if "=" in word and not word.startswith("-")]
            running = GlobalHydra.instance().hydra
            assert running, "only a launcher pickles a sweep, and Hydra runs it"
            config = running.compose_config("config", words, RunMode.MULTIRUN, with_log_configuration=False).hydra
            name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
            self._folder = Path(config.sweep.dir, ".sweeps", name).resolve()
            self._jobs = [" ".join(job) for job in jobs_of_sweep(config, words)]
            self._progress = Progress(self.console, len(self._jobs))
            self._letters = Letters(self._folder, self._ended)
        return Messenger, (self._folder,)

    def finish(self) -> None:
        """Wait for all that was queued; what ran elsewhere has ended."""
        if self._pool:
            self._pool.wait()
        if self._letters:
            self._letters.stop()
        for number, job in enumerate(self._jobs):
            if number not in self.outcomes:
                self._ended(number, Outcome(job, "failed", "no word from it: killed or lost, see outputs/.submitit/"))

    def stop(self) -> None:
        """Take down what runs in this process's care."""
        if self._pool:
            self._pool.stop()
        if self._letters:
            self._letters.stop()

    def close(self) -> int:
        """The table of all jobs, and the exit status."""
        if self._progress:
            self._progress.stop()
        outcomes = [settled(self.outcomes[number]) for number in sorted(self.outcomes)]
        print_table(self.console, outcomes)
        return int(any(outcome.bad for outcome in outcomes))


class Messenger:
    """Takes the sweep's place in another process, perhaps on another machine: one job, its outcome left in a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def job(self, cfg: DictConfig) -> None:
        """Run it, and tell the command that started the sweep."""
        _take_down_on_signals()  # submitit would let SIGTERM pass by
        number = HydraConfig.get().job.num
        try:
            outcome = self._run(cfg, number)
        except ConfigError as error:
            outcome = _refused(error)
        except KeyboardInterrupt:
            outcome = Outcome(" ".join(HydraConfig.get().overrides.task), "failed", "interrupted")
        print(outcome)
        if os.environ.get("SLURM_PROCID", "0") == "0":  # of a job on several nodes, the one that owns it
            leave_letter(self._folder, number, outcome)

    def _run(self, cfg: DictConfig, number: int) -> Outcome:
        if cfg.slots is not None:
            raise ConfigError(f"slots={cfg.slots} are for jobs on this node, a launcher sends them elsewhere: drop one")
        if cfg.fail_fast and any(outcome.bad for outcome in letters(self._folder).values()):
            return Outcome(f"job {number + 1}", "skipped", FAIL_FAST)
        job = plan(cfg, _unshaped(print) if cfg.network.shaped else None, number)
        return job if isinstance(job, Outcome) else run_job(job)


def _refused(error: ConfigError) -> Outcome:
    return Outcome(" ".join(HydraConfig.get().overrides.task), "failed", f"configuration: {error}")


def _unshaped(say: Callable[[str], None]) -> str | None:
    why = unavailable()
    if why:
        say(
            f"[bold yellow]Links cannot be shaped here: {why}\n"
            "The jobs run over loopback instead, and their rows say so: not a result about slow links."
        )
    return why


def _total() -> int:
    config = HydraConfig.get()
    return len(jobs_of_sweep(config, sys.argv[1:])) if config.mode == RunMode.MULTIRUN else 1


def _check_launcher() -> None:
    config = HydraConfig.get()
    launcher = config.runtime.choices["hydra/launcher"]
    if config.mode == RunMode.RUN and launcher != "basic":
        raise ConfigError(f"hydra/launcher={launcher} starts the jobs of a sweep: add -m")


def _missing_extra(words: list[str]) -> str | None:
    if find_spec("submitit") or not any(word.startswith("hydra/launcher=submitit") for word in words):
        return None
    return "hydra/launcher=submitit_… comes with an extra that is not installed here: pip install -e '.[slurm]'"


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt  # SIGTERM unwinds like Ctrl-C: namespaces and ranks are taken down on the way


def _take_down_on_signals() -> None:
    for sign in (signal.SIGTERM, signal.SIGINT):  # a shell that starts us in the background has SIGINT ignored
        signal.signal(sign, _stop)


def main() -> None:
    look_only = "--status" in sys.argv
    if look_only:  # Hydra knows its own flags only; and what runs nothing is nothing to send elsewhere
        sys.argv[:] = [word for word in sys.argv if word != "--status" and not word.startswith("hydra/launcher=")]
    if missing := _missing_extra(sys.argv):
        sys.exit(missing)
    sweep = Sweep(plain_console(), look_only)
    _take_down_on_signals()

    @hydra.main(version_base="1.3", config_path="../conf", config_name="config")
    def run(cfg: DictConfig) -> None:
        sweep.job(cfg)

    started = time.time()
    try:
        run()
        sweep.finish()
    except KeyboardInterrupt:
        sweep.stop()
        sweep.close()
        others = "; jobs that were sent elsewhere go on (scancel ends them)" if sweep.elsewhere else ""
        sys.exit(f"interrupted after {time.time() - started:.0f} s: the same command goes on from here{others}")
    except SystemExit:  # Hydra's, which has said why: a launcher's, if jobs are elsewhere
        sweep.stop()
        if sweep.elsewhere:
            sweep.finish()
            sweep.close()
        raise
    sys.exit(sweep.close())


if __name__ == "__main__":
    main()
