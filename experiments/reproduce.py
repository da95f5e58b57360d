"""Everything a profile has to say: `python -m experiments.reproduce quick`, or `make report`.

All grids that fill an artifact, one after the other, then the micro-benchmark and the report; with `--only ARTIFACT`
what that one needs. What exists is not run again, so a command that was killed goes on where it was. A grid with
failed jobs does not stop the others; the exit status is then 1.

The quick profile also has the four heaviest benchmarks, with fewer methods and steps (profile=quick_large). Where real
data lie in $SIDCO_DATA they take the place of its stand-ins.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from omegaconf import OmegaConf

from experiments.artifacts import Artifact
from experiments.build import build
from experiments.data.cache import DataMissing
from experiments.record import ROOT
from experiments.report import ARTIFACTS

PROFILES = tuple(sorted(path.stem for path in (ROOT / "conf" / "profile").glob("*.yaml")))
UNTIMED = ("estimation", "rules", "statistics", "microbench")  # grids of virtual workers, whose jobs may share a node
CONVERGENCE = "convergence"  # its profiles are of virtual workers too: no other grid makes sense in them
MORE_SEEDS = ("compressor=none,sidco_e", "ratio=0.001", "seed=2,3")  # of what convergence is about, beside seed 1
LARGE = {  # of the quick profile: grid -> what it is cut down to on the four heaviest benchmarks
    "speedup": ("compressor=none,topk,dgc,sidco_e", "ratio=0.01,0.001"),
    "rules": ("compressor=sidco_e", "compressor.rule=trend,paper", "ratio=0.01,0.001"),
}
STAND_INS = {  # profile -> its benchmarks, each with the one on real data that is taken where they are
    "quick": {"lstm_stdlib": "lstm_pd_lm_small", "resnet20_digits": "resnet20_cifar10_small"},
    "quick_large": {
        "vgg16_synthetic": "vgg16_cifar10_small", "resnet50_synthetic": None, "vgg19_synthetic": None,
        "lstm_speech": "lstm_an4_small",
    },
}  # fmt: skip
BENCH = ("sidco_e", "sidco_gp", "sidco_p", "dgc", "redsync", "gaussiank")
BENCH_SIZES = (1 << 18, 10 << 18, 100 << 18)  # floats


class Command(NamedTuple):
    """A part of the work, as a module with its words."""

    name: str
    words: list[str]


def commands(profile: str, only: Artifact | None, device: str) -> list[Command]:
    """What is run, in this order."""
    output = f"outputs/{profile}"
    if profile.startswith(CONVERGENCE):
        return [_sweep(CONVERGENCE, profile, output), _sweep(CONVERGENCE, profile, output, *MORE_SEEDS)]
    wanted = [artifact.experiment for artifact in ([only] if only else ARTIFACTS)]
    if profile != "paper":  # in small, the quality on the way is that of the loss curves' grid
        wanted = ["loss_curves" if grid == CONVERGENCE else grid for grid in wanted]
    grids = list(dict.fromkeys(wanted))
    found = [_sweep(grid, profile, f"{output}/bench" if grid == "microbench" else output) for grid in grids]
    if profile == "quick":
        found += [_sweep(grid, "quick_large", output, *LARGE[grid]) for grid in grids if grid in LARGE]
    if "microbench" in grids:
        found.append(_bench(f"{output}/bench", device))
    return found


def _sweep(grid: str, profile: str, output: str, *words: str) -> Command:
    more = [f"slots={_slots()}"] if grid in UNTIMED or profile.startswith(CONVERGENCE) else []
    if profile in STAND_INS:
        more.append(f"benchmark={','.join(_benchmarks(profile))}")
    chosen = [f"experiment={grid}", f"profile={profile}", f"output={output}", *words, *more]
    return Command(f"{grid} ({profile})", ["experiments.train", "-m", *chosen])


def _bench(output: str, device: str) -> Command:
    """Of the gradients that the grid `microbench` has captured, and of noise."""
    sizes = map(str, BENCH_SIZES)
    words = ["--gradients", f"{output}/jobs", "--sizes", *sizes, "--rounds", "11", "--compressors", *BENCH]
    where = ["--device", device, "--output", output, "--name", device, "--once"]
    return Command(f"bench ({device})", ["experiments.bench", *words, *where])


def _slots() -> int:
    """Jobs at the same time: a GPU each, or a core."""
    return torch.cuda.device_count() or os.cpu_count() or 1


def _benchmarks(profile: str) -> list[str]:
    """The profile's own, those on real data where these are here."""
    return [real if real and _has_data(real) else small for small, real in STAND_INS[profile].items()]


def _has_data(benchmark: str) -> bool:
    try:
        return bool(_dataset(benchmark).sources())
    except DataMissing:
        return False


def _dataset(benchmark: str) -> Any:
    """The data set that the benchmark's file chooses, or the file it begins with."""
    parts = _yaml("benchmark", benchmark)["defaults"]
    chosen = [part["override /dataset"] for part in parts if not isinstance(part, str) and "override /dataset" in part]
    if not chosen:
        return _dataset(next(part for part in parts if isinstance(part, str)))
    return build(_yaml("dataset", chosen[0])["dataset"])


def _yaml(group: str, name: str) -> Any:
    return OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / group / f"{name}.yaml"))


def run(command: Command) -> tuple[int, float, float]:
    """(exit status, seconds, the largest of its processes in GiB: never less than this one, as Linux counts a fork)."""
    began = time.time()
    process = subprocess.Popen([sys.executable, "-m", *command.words], cwd=ROOT)
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except KeyboardInterrupt:  # Ctrl-C reaches it too, SIGTERM does not
        process.terminate()
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, time.time() - began, usage.ru_maxrss / 2**20


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="All grids of a profile, then its report.")
    parser.add_argument("profile", choices=PROFILES)
    parser.add_argument("--only", choices=[artifact.name for artifact in ARTIFACTS], help="what this artifact needs")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the micro-benchmark")
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    given = _arguments(words)
    only = next((artifact for artifact in ARTIFACTS if artifact.name == given.only), None)
    work = commands(given.profile, only, given.device)
    folder = f"outputs/{given.profile}{'/bench' if only and only.experiment == 'microbench' else ''}"
    report = ["experiments.report", folder, *(["--only", only.name] if only else [])]
    if given.list:
        print("\n".join(" ".join(["python", "-m", *each]) for each in [*(c.words for c in work), report]))
        return
    signal.signal(signal.SIGTERM, _stop)
    began, bad, told = time.time(), [], []
    try:
        for command in [*work, Command("report", report)]:
            status, seconds, memory = run(command)
            bad += [command.name] * (status != 0)
            told.append(f"{command.name}: {seconds / 60:.1f} min, largest process {memory:.1f} GiB, exit {status}")
            print(told[-1], flush=True)
    except KeyboardInterrupt:
        sys.exit(f"interrupted after {time.time() - began:.0f} s: the same command goes on from here")
    print("\n".join(["", *told, f"all: {(time.time() - began) / 60:.1f} min"]))
    if bad:
        sys.exit(f"not without failures: {', '.join(bad)}; the same command tries those again")


if __name__ == "__main__":
    main()
