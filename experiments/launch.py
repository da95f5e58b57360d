"""One job: its folder, its nodes, its ranks as fresh torchrun processes, and what became of it."""

import fcntl
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from experiments.build import Incompatible, build, check, digest, rate_mbit, scientific, target_ratio
from experiments.data.cache import DataMissing
from experiments.network import Node, default_burst_kib, loopback_nodes, shaped_nodes
from experiments.record import ROOT, environment, read_json, write_json

MEASURED = ("sidco", "experiments/models", "experiments/data")  # and the files below: what a number depends on
MEASURED_FILES = ("tasks", "build", "loop", "worker", "network")
PORT = 29511
GRACE_S = 10.0  # for the other ranks to notice that one is gone


class Outcome(NamedTuple):
    """What became of a job."""

    job: str
    state: str  # done | reused | skipped | failed | diverged | busy
    reason: str = ""
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        return self.state in ("failed", "diverged")


class Failed(RuntimeError):
    """The ranks did not end well; `kind` is the job's state."""

    def __init__(self, kind: str, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.kind, self.trace = kind, trace


def fingerprint() -> str:
    """Of the code whose speed and results a job measures: old and new kernels never share a folder."""
    files = [path for top in MEASURED for path in (ROOT / top).rglob("*.py")]
    files += [ROOT / "experiments" / f"{name}.py" for name in MEASURED_FILES]
    return digest({str(path.relative_to(ROOT)): path.read_text() for path in sorted(files)})


def run_job(cfg: DictConfig, shaping: str | None) -> Outcome:
    """Run the job `cfg` describes unless its result exists. `shaping`: why links cannot be shaped here, or None.

    Never raises for what goes wrong inside a job, so that a sweep goes on; ConfigError passes through.
    """
    try:
        config = check(cfg)
    except Incompatible as reason:
        return Outcome(
            " ".join(str(cfg.names[part]) for part in ("model", "dataset", "compressor")), "skipped", str(reason)
        )
    if config["network"]["shaped"] and shaping is not None:
        config["network"] = {"shaped": False, "rate": None, "burst_kib": None}  # the row will say loopback
    folder, name = job_folder(config), job_name(config)
    if (folder / "summary.json").exists() and (read_json(folder / "status.json") or {}).get("state") == "done":
        return Outcome(name, "reused")
    folder.mkdir(parents=True, exist_ok=True)
    start = time.time()
    with _sole_owner(folder) as owner:
        if not owner:
            return Outcome(name, "busy", f"another process is running it in {folder}")
        _status(folder, "running", start, pid=os.getpid())
        try:
            _clear(folder)
            _run(folder, config)
            (folder / "summary.json").stat()  # rank 0's last word: without it nothing was measured
        except Failed as error:
            _status(folder, error.kind, start, reason=str(error), traceback=error.trace)
            return Outcome(name, error.kind, str(error), time.time() - start)
        except DataMissing as error:
            _status(folder, "failed", start, reason=str(error))
            return Outcome(name, "failed", str(error), time.time() - start)
        except Exception as error:
            _status(folder, "failed", start, reason=str(error), traceback=traceback.format_exc())
            return Outcome(name, "failed", f"{type(error).__name__}: {error}", time.time() - start)
        except BaseException:
            _status(folder, "failed", start, reason="interrupted")
            raise
        _status(folder, "done", start)
    return Outcome(name, "done", "", time.time() - start)


def job_name(config: dict[str, Any]) -> str:
    """What a person calls it: benchmark, compressor, ratio, link."""
    names, network = config["names"], config["network"]
    ratio = target_ratio(config)
    aim = "" if ratio is None else f" {ratio:g}"
    return f"{names['benchmark']} {names['compressor']}{aim} {network['rate'] or 'loopback'}"


def job_folder(config: dict[str, Any]) -> Path:
    """The place of the result, computed from what is measured: if it exists, the job is done."""
    key = digest({"config": scientific(config), "code": fingerprint()})
    return Path(config["output"]) / "jobs" / f"{job_name(config).replace(' ', '-')}-{key}"


def _run(folder: Path, config: dict[str, Any]) -> None:
    data_sha256 = build(config["dataset"]).prepare()  # here, so that one process downloads and ranks only read
    OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
    network = config["network"]
    facts = {
        "network": "shaped" if network["shaped"] else "loopback",
        "rate_mbit_per_s": None,
        "latency_emulated": False,
    }
    if network["shaped"]:
        rate = facts["rate_mbit_per_s"] = rate_mbit(network["rate"])
        facts["burst_kib"] = network["burst_kib"] or default_burst_kib(rate)
    write_json(
        folder / "env.json", {**environment(fingerprint()), **facts, "data_sha256": data_sha256, "origin": "measured"}
    )
    world_size = config["workers"]["world_size"]
    with ExitStack() as stack:
        if network["shaped"]:
            nodes = stack.enter_context(shaped_nodes(world_size, rate_mbit(network["rate"]), network["burst_kib"]))
        else:
            nodes = stack.enter_context(loopback_nodes(1))
        ranks = [stack.enter_context(_node(folder, node, i, nodes, world_size)) for i, node in enumerate(nodes)]
        _wait(folder, ranks, time.time() + config["workers"]["job_timeout_s"])


@contextmanager
def _node(
    folder: Path, node: Node, index: int, nodes: list[Node], world_size: int
) -> Iterator[subprocess.Popen[bytes]]:
    """One torchrun inside one node; gone, with all it started, when the block ends."""
    command = [
        *node.enter, sys.executable, "-m", "torch.distributed.run",
        f"--nnodes={len(nodes)}", f"--node-rank={index}", f"--nproc-per-node={world_size // len(nodes)}",
        f"--master-addr={nodes[0].address}", f"--master-port={PORT if node.enter else _free_port()}",
        "--max-restarts=0", "-m", "experiments.worker", str(folder.resolve()),
    ]  # fmt: skip
    variables = {
        "GLOO_SOCKET_IFNAME": node.interface,
        "SIDCO_RANKS_HERE": str(world_size),
        "SIDCO_LAUNCHER": str(os.getpid()),
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // world_size)),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    with (folder / "logs" / f"{node.name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            _end(process)


def _wait(folder: Path, ranks: list[subprocess.Popen[bytes]], deadline: float) -> None:
    """Until all nodes are done, one has failed, or time is up."""
    while any(process.poll() is None for process in ranks):
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


@contextmanager
def _sole_owner(folder: Path) -> Iterator[bool]:
    """A lock that vanishes with its process: two sweeps never write into one folder."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _clear(folder: Path) -> None:
    """Away with what an earlier, unfinished attempt left."""
    for old in (*folder.glob("*.json"), *folder.glob("*.jsonl"), *folder.glob("errors/*"), *folder.glob("logs/*")):
        if old.name != "status.json":
            old.unlink()
    for part in ("errors", "logs"):
        (folder / part).mkdir(exist_ok=True)


def _status(folder: Path, state: str, started: float, **more: Any) -> None:
    write_json(folder / "status.json", {"state": state, "started": started, "updated": time.time(), **more})


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
