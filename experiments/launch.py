"""One job: its folder, its nodes, its ranks as fresh torchrun processes, and what became of it."""

import fcntl
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from experiments.build import Incompatible, build, check, digest, rate_mbit, scientific, target_ratio
from experiments.data.cache import DataMissing
from experiments.network import default_burst_kib, loopback_nodes, shaped_nodes
from experiments.ranks import Failed, torchrun, wait
from experiments.record import ROOT, environment, read_json, write_json

MEASURED = ("sidco", "experiments/models", "experiments/data")  # and the files below: what a number depends on
MEASURED_FILES = ("tasks", "loop", "worker", "ranks", "network")


class Outcome(NamedTuple):
    """What became of a job."""

    job: str
    state: str  # done | reused | skipped | failed | diverged | busy | missing
    reason: str = ""
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        return self.state in ("failed", "diverged")


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
        config = _effective(cfg, shaping)
    except Incompatible as reason:
        return _skipped(cfg, reason)
    folder, name = job_folder(config), job_name(config)
    if _finished(folder):
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


def look(cfg: DictConfig, shaping: str | None) -> Outcome:
    """What became of the job `cfg` describes, without running anything."""
    try:
        config = _effective(cfg, shaping)
    except Incompatible as reason:
        return _skipped(cfg, reason)
    folder, name = job_folder(config), job_name(config)
    if _finished(folder):
        return Outcome(name, "reused")
    known = read_json(folder / "status.json") or {"state": "missing"}
    if known["state"] in ("running", "done"):  # a lock tells who lives; a done job without its summary is not done
        with _sole_owner(folder) as alone:
            known = {"state": "missing" if alone else "busy"}
    return Outcome(name, known["state"], known.get("reason", ""))


def _effective(cfg: DictConfig, shaping: str | None) -> dict[str, Any]:
    """The checked configuration of what will really run: loopback where links cannot be shaped, and the row says so."""
    config = check(cfg)
    if config["network"]["shaped"] and shaping is not None:
        config["network"] = {"shaped": False, "rate": None, "burst_kib": None}
    return config


def _skipped(cfg: DictConfig, reason: Exception) -> Outcome:
    job = " ".join(str(cfg.names[part]) for part in ("model", "dataset", "compressor"))
    return Outcome(job, "skipped", str(reason))


def _finished(folder: Path) -> bool:
    return (folder / "summary.json").exists() and (read_json(folder / "status.json") or {}).get("state") == "done"


def job_name(config: dict[str, Any]) -> str:
    """What a person calls it: benchmark, compressor, ratio, link."""
    names, network = config["names"], config["network"]
    ratio = target_ratio(config)
    aim = "" if ratio is None else f" {ratio:g}"
    place = "virtual" if config["workers"]["virtual"] else network["rate"] or "loopback"
    return f"{names['benchmark']} {names['compressor']}{aim} {place}"


def job_folder(config: dict[str, Any]) -> Path:
    """The place of the result, computed from what is measured: if it exists, the job is done."""
    key = digest({"config": scientific(config), "code": fingerprint()})
    return Path(config["output"]) / "jobs" / f"{job_name(config).replace(' ', '-')}-{key}"


def _run(folder: Path, config: dict[str, Any]) -> None:
    data_sha256 = build(config["dataset"]).prepare()  # here, so that one process downloads and ranks only read
    OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
    network, workers = config["network"], config["workers"]
    facts: dict[str, Any] = {
        "network": "virtual" if workers["virtual"] else "shaped" if network["shaped"] else "loopback",
        "rate_mbit_per_s": None,
        "latency_emulated": False,
    }
    if network["shaped"]:
        rate = facts["rate_mbit_per_s"] = rate_mbit(network["rate"])
        facts["burst_kib"] = network["burst_kib"] or default_burst_kib(rate)
    write_json(
        folder / "env.json", {**environment(fingerprint()), **facts, "data_sha256": data_sha256, "origin": "measured"}
    )
    processes = 1 if workers["virtual"] else workers["world_size"]
    with ExitStack() as stack:
        if network["shaped"]:
            nodes = stack.enter_context(shaped_nodes(processes, rate_mbit(network["rate"]), network["burst_kib"]))
        else:
            nodes = stack.enter_context(loopback_nodes(1))
        ranks = [stack.enter_context(torchrun(folder, node, i, nodes, processes)) for i, node in enumerate(nodes)]
        wait(folder, ranks, time.time() + workers["job_timeout_s"])


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
    """Away with what an earlier, unfinished attempt left, but for a checkpoint and the steps that led to it."""
    for old in (*folder.glob("*.json"), *folder.glob("errors/*"), *folder.glob("logs/*")):
        if old.name != "status.json":
            old.unlink()
    for part in ("errors", "logs"):
        (folder / part).mkdir(exist_ok=True)


def _status(folder: Path, state: str, started: float, **more: Any) -> None:
    write_json(folder / "status.json", {"state": state, "started": started, "updated": time.time(), **more})
