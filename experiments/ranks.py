"""A job's ranks as processes: one torchrun in each node, ended when the job is, and the reason if it was not well."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

from experiments.network import Node
from experiments.record import ROOT, read_json

PORT = 29511  # inside a node of its own nothing else listens
GRACE_S = 10.0  # for the other ranks to notice that one is gone


class Failed(RuntimeError):
    """The ranks did not end well; `kind` is the job's state."""

    def __init__(self, kind: str, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.kind, self.trace = kind, trace


@contextmanager
def torchrun(
    folder: Path,
    node: Node,
    index: int,
    nodes: list[Node],
    ranks_here: int,
    port: int | None = None,
    seat: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """One torchrun for the ranks of one node; gone, with all it started, when the block ends.

    `seat`: variables of the ranks where they have but a part of the machine (see slots.py).
    """
    if port is None:
        port = PORT if node.enter else _free_port()
    command = [
        *node.enter, sys.executable, "-m", "torch.distributed.run",
        f"--nnodes={len(nodes)}", f"--node-rank={index}", f"--nproc-per-node={ranks_here}",
        f"--master-addr={nodes[0].address}", f"--master-port={port}",
        "--max-restarts=0", "-m", "experiments.worker", str(folder.resolve()),
    ]  # fmt: skip
    sharing = ranks_here * (len(nodes) if node.enter else 1)  # emulated nodes share this machine's cores
    variables = {
        "SIDCO_RANKS_HERE": str(sharing),
        "SIDCO_LAUNCHER": str(os.getpid()),
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // sharing)),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    if node.interface:
        variables["GLOO_SOCKET_IFNAME"] = node.interface
    with (folder / "logs" / f"{node.name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **variables, **(seat or {})}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            _end(process)


def wait(folder: Path, ranks: list[subprocess.Popen[bytes]], deadline: float, stop: Event | None = None) -> None:
    """Until all nodes are done, one has failed, time is up, or `stop` is set: a signal reaches the main thread only,
    and this may be another.
    """
    while any(process.poll() is None for process in ranks):
        if stop and stop.is_set():
            raise KeyboardInterrupt
        if time.time() > deadline:
            raise Failed("failed", "the job ran past workers.job_timeout_s and was ended")
        if any(process.poll() for process in ranks):
            break
        time.sleep(0.05)
    until = time.time() + GRACE_S
    while any(process.poll() is None for process in ranks) and time.time() < until:
        time.sleep(0.05)
    if any(process.poll() != 0 for process in ranks):
        raise _first_failure(folder)


def _first_failure(folder: Path) -> Failed:
    """The earliest of what the ranks wrote: the others only lost their peer."""
    errors = [read_json(path) for path in (folder / "errors").glob("rank*.json")]
    known = sorted((error for error in errors if error), key=lambda error: (error["kind"] != "diverged", error["time"]))
    if not known:
        logs = sorted((folder / "logs").glob("*.log"))
        tail = "\n".join(log.read_text(errors="replace")[-2000:] for log in logs)
        return Failed("failed", f"a rank died without a word: see {folder / 'logs'}", tail)
    first = known[0]
    return Failed(first["kind"], f"rank {first['rank']}: {first['error']}", first["traceback"])


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and its session: torchrun's workers first get the chance to leave."""
    for sign, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        if process.poll() is not None:
            break
        os.killpg(process.pid, sign)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # workers that outlived their agent


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
