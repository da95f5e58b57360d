"""What a job writes down. Files are the truth; a name says its unit.

config.yaml    the resolved configuration        env.json       machine, software, commit, code fingerprint
steps.jsonl    one line a timed step (rank 0)    summary.json   one flat row: exists only if the job is done
status.json    running | done | failed | diverged | skipped, with reason and traceback
logs/          what each node printed            errors/        what each rank that failed raised
quality.json   the metric on the way, and checkpoints/ the last whole one, where asked for
"""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parent.parent
CODE = ("sidco", "experiments", "conf", "pyproject.toml", "constraints.txt")  # what a number depends on


def write_json(path: Path, content: Any) -> None:
    """Whole or not at all."""
    aside = path.with_suffix(".partial")
    aside.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(aside, path)


def read_json(path: Path) -> Any:
    """None where the file is absent or cut short."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


class Sink(Protocol):
    """One more place for what is recorded."""

    def log(self, step: int, **scalars: float | None) -> None: ...

    def close(self, exit_code: int, **summary: Any) -> None: ...


class Book(Protocol):
    """Where a training is written down."""

    @property
    def folder(self) -> Path:
        """Of the job."""
        ...

    @property
    def rank(self) -> int: ...

    def log(self, step: int, **scalars: float | None) -> None:
        """A timed step."""
        ...

    def quality(self, points: list[dict[str, float]]) -> None:
        """All qualities measured so far."""
        ...

    def save(self, step: int, state: dict[str, Any]) -> None:
        """A checkpoint."""
        ...

    def agreed(self, seconds: float) -> float:
        """Rank 0's, on all ranks."""
        ...


class Recorder:
    """Writes steps as they come and the summary at the end. Rank 0 has one."""

    def __init__(self, folder: Path, done: int = 0, sinks: Sequence[Sink] = ()) -> None:
        """`done`: steps that a checkpoint has behind it; what an earlier attempt recorded beyond them is dropped."""
        self._sinks = sinks
        self._folder, path = folder, folder / "steps.jsonl"
        kept = path.read_text().splitlines(keepends=True) if done and path.exists() else []
        self._steps = path.open("w")
        self._steps.writelines(line for line in kept if line.endswith("\n") and json.loads(line)["step"] < done)

    def log(self, step: int, **scalars: float | None) -> None:
        self._steps.write(json.dumps({"step": step, **scalars}) + "\n")
        self._steps.flush()  # a job that is killed leaves what it measured
        for sink in self._sinks:
            sink.log(step, **scalars)

    def quality(self, points: list[dict[str, float]]) -> None:
        write_json(self._folder / "quality.json", points)

    def close(self, **summary: Any) -> None:
        self._steps.close()
        write_json(self._folder / "summary.json", summary)
        for sink in self._sinks:
            sink.close(0, **summary)

    def abandon(self) -> None:
        """The job has failed: what was recorded stays, and no summary is written."""
        self._steps.close()
        for sink in self._sinks:
            sink.close(1)


def environment(fingerprint: str) -> dict[str, Any]:
    """Where and with what a number was measured."""
    import torch

    commit = _git("rev-parse", "HEAD")
    try:  # how GPUs reach each other and the network: NVLink or PCIe decides what a collective costs
        links = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60)
        topology = links.stdout.strip() if links.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired):
        topology = None  # no NVIDIA driver here
    return {
        "hardware": hardware(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(terse=True),
        "python_version": platform.python_version(),
        "torch_version": torch.__version__,
        "commit": commit or "unknown",
        "uncommitted_changes": uncommitted() if commit else None,
        "code_fingerprint": fingerprint,
        "nccl": {name: value for name, value in os.environ.items() if name.startswith("NCCL_")},
        "gpu_topology": topology,
    }


def hardware() -> str:
    """The processor's name and the number of cores, and the GPUs if there are any."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{os.cpu_count()}x {model}" + (f" + {len(gpus)}x {gpus[0]}" if gpus else "")


def uncommitted() -> bool:
    """Is any code or setting not as the commit has it, or not in it? What is written about results does not count."""
    return bool(_git("status", "--porcelain", "--untracked-files=all", "--", *CODE))


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
