"""Compressors on vectors: `python -m experiments.bench`, or `make bench`.

Writes bench.csv (tidy, a row for each vector, ratio, cache and compressor), figures/ and BENCH.md below
outputs/bench/NAME; after each vector and ratio, so that a run that is stopped leaves what it measured.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from experiments.bench import report
from experiments.bench.clock import Clock, Scratch, cache_bytes
from experiments.bench.memory import Extra, available_bytes, extra
from experiments.bench.plan import PRESETS, Case, Plan, normal
from experiments.bench.rounds import COLD, HOT, measure
from experiments.bench.subjects import subjects
from experiments.bench.vectors import BadGradients, captured
from experiments.build import ConfigError
from experiments.launch import fingerprint
from experiments.record import environment, read_json, write_json

KEPT = (
    "hardware",
    "cores",
    "system",
    "torch_version",
    "python_version",
    "commit",
    "uncommitted_changes",
    "code_fingerprint",
)
SCRATCH_OF_TOPK = 24  # bytes a float: |x|, and torch's own pairs of value and 64-bit place


def run(plan: Plan, device: torch.device, folder: Path) -> pd.DataFrame:
    """Measure all cases of the plan into `folder`; the rows."""
    began, facts, left_out = time.time(), _facts(), []
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for case in plan.cases:
        last = case is plan.cases[-1]
        needed = _needed_bytes(case)
        if device.type == "cpu" and needed > available_bytes():
            left_out.append(f"{case.vector.name}: needs {needed / 1e9:.1f} GB, {available_bytes() / 1e9:.1f} were free")
            print(left_out[-1], flush=True)
        else:
            for found in _case(case, plan, device):
                rows += [{**row, **facts} for row in found]
                pd.DataFrame(rows).to_csv(folder / report.CSV, index=False)
        # what the report must say beside the rows
        told = {"seconds": time.time() - began, "left_out": left_out, "complete": last}
        write_json(folder / report.RUN, {**told, **_identity(plan)})
    return pd.DataFrame(rows)


def measured(plan: Plan, folder: Path) -> bool:
    """Whether a run of this code has measured all of the plan into `folder`."""
    found = read_json(folder / report.RUN) or {}
    wanted = json.loads(json.dumps({"complete": True, **_identity(plan)}))  # a tuple is a list there
    return all(found.get(key) == value for key, value in wanted.items())


def _identity(plan: Plan) -> dict[str, Any]:
    cases = [[case.vector.name, case.ratios, case.compressors] for case in plan.cases]
    return {"plan": _told(plan), "cases": cases, "code": fingerprint()}


def _case(case: Case, plan: Plan, device: torch.device) -> Iterator[list[dict[str, Any]]]:
    """The rows of one ratio after the other. Memory first: its process needs as much of it as we do."""
    vector, clock, cache = case.vector, Clock.of(device), cache_bytes(device)
    chosen = {ratio: subjects(case.compressors, ratio, alone=case.alone) for ratio in case.ratios}
    used = [subject for same in chosen.values() for subject in same if subject.as_jobs]
    start = time.monotonic()
    peaks = iter(extra(vector, used, device))
    print(f"{vector.name}: memory of {len(used)} compressors, {time.monotonic() - start:.0f} s", flush=True)
    known = {ratio: [next(peaks) if s.as_jobs else None for s in same] for ratio, same in chosen.items()}
    gradients, scratch = vector.gradients(device), Scratch(cache, device)
    # gradient, residual, and the gradient of the call before
    caches = (COLD, HOT) if 3 * vector.nbytes <= cache else (COLD,)
    shared = {
        "vector": vector.name, "numel": vector.numel, "captured": bool(vector.paths), "gradients": vector.distinct,
        "rotation": vector.rotation, "device": device.type, "cache_bytes": cache, "threads": torch.get_num_threads(),
    }  # fmt: skip
    for ratio, same in chosen.items():
        start = time.monotonic()
        rows = measure(same, gradients, caches, plan, clock, scratch)
        memory = [_memory(one) for _ in caches for one in known[ratio]]
        yield [{**shared, "ratio": ratio, **row, **peak} for row, peak in zip(rows, memory, strict=True)]
        print(f"{vector.name}, ratio {ratio:g}: {len(same)} compressors, {time.monotonic() - start:.0f} s", flush=True)


def _memory(found: Extra | None) -> dict[str, float | None]:
    return {"extra_bytes": found and found.peak, "extra_message_bytes": found and found.message}


def _needed_bytes(case: Case) -> float:
    """Gradients, a residual for each compressor (DGC has two memories), the mean, and Top-k's scratch."""
    count = sum(s.as_jobs for s in subjects(case.compressors, case.ratios[0], alone=False))
    return case.vector.held_bytes + (count + 2) * case.vector.nbytes + SCRATCH_OF_TOPK * case.vector.numel


def _facts() -> dict[str, Any]:
    """Where the rows come from; `load_before`: how many processes wanted a core, before there was ours."""
    known = environment(fingerprint())
    return {"origin": "measured", **{key: known[key] for key in KEPT}, "load_before": os.getloadavg()[0]}


def _told(plan: Plan) -> dict[str, Any]:
    return {key: value for key, value in asdict(plan).items() if key != "cases"}


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.bench", description="Compressors on vectors.")
    parser.add_argument("--preset", choices=PRESETS, default="standard", help="standard: about ten minutes")
    parser.add_argument("--quick", action="store_const", const="quick", dest="preset", help="does it run? for tests")
    parser.add_argument("--sizes", type=int, nargs="*", help="floats of the normal vectors; none: only --gradients")
    parser.add_argument("--gradients", type=Path, nargs="+", default=[], help="captured .npy files, or their folders")
    parser.add_argument("--ratios", type=float, nargs="+")
    parser.add_argument("--compressors", nargs="+", help="names of conf/compressor/*.yaml; add_ and topk always run")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="cpu, cuda")
    parser.add_argument("--threads", type=int, help="of torch and of the kernels; torch's choice if left out")
    parser.add_argument("--warmup", type=int, help="calls before the first timed one")
    parser.add_argument("--rounds", type=int, help="timed calls of each compressor")
    parser.add_argument("--output", type=Path, default=Path("outputs/bench"))
    parser.add_argument("--name", default=time.strftime("%Y%m%d-%H%M%S"), help="of the folder below --output")
    parser.add_argument("--once", action="store_true", help="not again, if --name holds all of it, of this code")
    parser.add_argument("--draw", action="store_true", help="only figures and BENCH.md of --name again, from its files")
    return parser.parse_args(words)


def plan_of(given: argparse.Namespace) -> Plan:
    """The preset, with what the command line says instead."""
    plan = PRESETS[given.preset]
    cases = plan.cases if given.sizes is None else normal(*given.sizes)
    cases = (*(Case(vector) for vector in captured(given.gradients)), *cases) if given.gradients else cases
    if given.ratios:
        cases = tuple(replace(case, ratios=tuple(given.ratios)) for case in cases)
    if given.compressors:
        cases = tuple(replace(case, compressors=tuple(given.compressors)) for case in cases)
    counts = {key: getattr(given, key) for key in ("warmup", "rounds") if getattr(given, key) is not None}
    bad = [f"--{key} {value}" for key, value in counts.items() if value < 1]
    bad += [f"--sizes {size}" for size in given.sizes or () if size < 1]
    if bad or not cases:
        raise ConfigError(f"expected numbers of at least 1 and a vector to measure on, got {', '.join(bad) or 'none'}")
    return replace(plan, cases=cases, **counts)


def main(words: Sequence[str] | None = None) -> None:
    given = _arguments(words)
    folder = given.output / given.name
    try:
        if not given.draw:
            plan = plan_of(given)
            if given.threads:
                torch.set_num_threads(given.threads)
            if given.once and measured(plan, folder):
                print(f"{folder}: measured already")
            else:
                run(plan, given.device, folder)
        print(f"report: {report.write(folder)}")
    except (ConfigError, BadGradients, report.NothingMeasured) as reason:
        sys.exit(str(reason))


if __name__ == "__main__":
    main()
