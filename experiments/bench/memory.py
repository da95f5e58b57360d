"""How much memory a call of `compress` takes at its peak, beyond what stood before it: its message included.

On a CPU: the high-water mark of resident memory (VmHWM, reset through /proc/self/clear_refs), in a process of its own
whose allocator gives large blocks back at once and whose pages are small. It sees torch's, numpy's and numba's memory
alike, where it has been touched; it is exact to about 0.25 MB. On a GPU: the peak of torch's caching allocator.
"""

import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.bench.subjects import Subject
from experiments.bench.vectors import Vector
from experiments.build import build

CLEAR, STATUS, MEMINFO = Path("/proc/self/clear_refs"), Path("/proc/self/status"), Path("/proc/meminfo")
UNMEASURED = 2  # calls before the first one measured: code is compiled, tables are made
SETTLED = 20  # of a compressor whose state must settle, for its message to be of the size that is aimed at
CALLS = 3  # the median is taken of
# a block of its own for all that is larger: freed memory does not stay resident and hide the next peak
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "NUMPY_MADVISE_HUGEPAGE": "0"}


class Extra(NamedTuple):
    """Bytes of one call."""

    peak: float  # beyond what stood before it
    message: float  # of them, the message as it is sent


def extra(vector: Vector, subjects: Sequence[Subject], device: torch.device) -> list[Extra | None]:
    """Of each subject; None where the system does not tell."""
    if device.type != "cpu":
        return _measured(vector, subjects, device)
    if not os.access(CLEAR, os.W_OK):
        return [None] * len(subjects)
    task = {"vector": asdict(vector), "subjects": subjects, "threads": torch.get_num_threads()}
    done = subprocess.run(
        [sys.executable, "-m", "experiments.bench.memory"], input=json.dumps(task), stdout=subprocess.PIPE, text=True,
        env={**os.environ, **ALLOCATOR}, check=True,
    )  # fmt: skip
    return [Extra(*pair) for pair in json.loads(done.stdout)]


def available_bytes() -> float:
    """Memory that could be had now; infinite where the system does not tell."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", MEMINFO.read_text()) if MEMINFO.exists() else None
    return 1024 * int(found[1]) if found else float("inf")


def _measured(vector: Vector, subjects: Sequence[Subject], device: torch.device) -> list[Any]:
    gradients = vector.gradients(device)
    peak = _resident if device.type == "cpu" else _allocated
    return [_of(subject, gradients, peak) for subject in subjects]


def _of(subject: Subject, gradients: Sequence[torch.Tensor], peak: Callable[[Callable[[], Any]], Any]) -> Extra:
    compressor = build(subject.node)
    state, peaks, messages = compressor.init(gradients[0]), [], []
    unmeasured = SETTLED if compressor.report(state) else UNMEASURED  # what reports on its state has one that settles
    for number in range(unmeasured + CALLS):
        x = gradients[number % len(gradients)]
        before = state
        (payload, state), nbytes = peak(lambda before=before, x=x: compressor.compress(x, before))
        peaks.append(nbytes)
        messages.append(payload.pack().nbytes)
        del payload  # or its memory would be free for the next call's
    return Extra(statistics.median(peaks[unmeasured:]), statistics.median(messages[unmeasured:]))


def _resident(call: Callable[[], Any]) -> tuple[Any, int]:
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5")  # the mark falls to what is resident now
    before = _high_water()
    result = call()
    return result, max(0, _high_water() - before)


def _high_water() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
    assert found, f"{STATUS} has a line VmHWM on Linux"
    return 1024 * int(found[1])


def _allocated(call: Callable[[], Any]) -> tuple[Any, int]:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    return result, torch.cuda.max_memory_allocated() - before


def main() -> None:
    task = json.load(sys.stdin)
    torch.set_num_threads(task["threads"])
    kind = task["vector"]
    vector = Vector(kind["name"], kind["numel"], tuple(kind["paths"]))
    subjects = [Subject(*fields) for fields in task["subjects"]]
    json.dump(_measured(vector, subjects, torch.device("cpu")), sys.stdout)


if __name__ == "__main__":
    main()
