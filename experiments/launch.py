"""One job: its folder, its nodes, its ranks as fresh torchrun processes, and what became of it."""

import fcntl
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from experiments import cluster
from experiments.build import Incompatible, build, check, digest, rate_mbit, scientific, target_ratio
from experiments.data.cache import DataMissing
from experiments.network import default_burst_kib, loopback_nodes, shaped_nodes
from experiments.ranks import Failed, torchrun, wait
from experiments.recipe import in_steps
from experiments.record import ROOT, environment, read_json, write_json
from experiments.slots import Seat

MEASURED = ("sidco", "experiments/models", "experiments/data")  # and the files below: what a number depends on
MEASURED_FILES = ("tasks", "loop", "schedule", "worker", "ranks", "network")


class Job(NamedTuple):
    """A job whose configuration is checked and resolved: nothing of what follows asks Hydra, so it may be a thread."""

    config: dict[str, Any]
    folder: Path
    name: str
    number: int  # its place in the sweep

    @property
    def slots(self) -> int:
        """How many it needs: one for each process that computes."""
        workers = self.config["workers"]
        return 1 if workers["virtual"] else workers["world_size"]


class Outcome(NamedTuple):
    """What became of a job."""

    job: str
    state: str  # done | reused | skipped | failed | diverged | busy | missing
    reason: str = ""
    seconds: float = 0.0
    folder: Path | None = None  # where its records are

    @property
    def bad(self) -> bool:
        return self.state in ("failed", "diverged")


def fingerprint() -> str:
    """Of the code whose speed and results a job measures: old and new kernels never share a folder."""
    files = [path for top in MEASURED for path in (ROOT / top).rglob("*.py")]
    files += [ROOT / "experiments" / f"{name}.py" for name in MEASURED_FILES]
    return digest({str(path.relative_to(ROOT)): path.read_text() for path in sorted(files)})


def plan(cfg: DictConfig, shaping: str | None, number: int = 0) -> Job | Outcome:
    """The job `cfg` describes; the outcome where it is a cell of a grid to be skipped. `shaping`: why links cannot be
    shaped here, or None; `number`: its place in the sweep. Raises ConfigError.
    """
    try:
        config = _effective(cfg, shaping)
    except Incompatible as reason:
        job = " ".join(str(cfg.names[part]) for part in ("model", "dataset", "compressor"))
        return Outcome(job, "skipped", str(reason))
    return Job(config, job_folder(config), job_name(config), number)


def run_job(job: Job, seat: Seat | None = None) -> Outcome:
    """Run it unless its result exists. `seat`: what of this node it may use, where others run beside it.

    Never raises for what goes wrong inside a job, so that a sweep goes on; ConfigError passes through.
    """
    (config, folder, name, number), start = job, time.time()
    place = cluster.here() if config["network"]["cluster"] else None
    if place:
        cluster.ranks_per_node(place, config["workers"]["world_size"])
    if place and place.node_rank:
        state, why = cluster.follow(folder, place, number, config, finished)
        return Outcome(name, state, why, time.time() - start, folder)
    if finished(folder):
        return Outcome(name, "reused", folder=folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _sole_owner(folder) as owner:
        if not owner:
            return Outcome(name, "busy", f"another process is running it in {folder}", folder=folder)
        state, why = _own(job, place, seat or Seat(), {"started": start, "sweep": place and place.sweep})
    return Outcome(name, state, why, time.time() - start, folder)


def _own(job: Job, place: cluster.Place | None, seat: Seat, identity: dict[str, Any]) -> tuple[str, str]:
    """Run the job in its folder, which is ours, and write its status: (state, reason)."""
    folder, identity = job.folder, {**identity, "number": job.number}

    def status(state: str, reason: str = "", trace: str = "") -> tuple[str, str]:
        more = {name: text for name, text in (("reason", reason), ("traceback", trace)) if text}
        write_json(folder / "status.json", {"state": state, **identity, "updated": time.time(), **more})
        return state, reason

    try:
        _clear(folder)
        with seat.alone:
            _prepare(folder, job.config, place, seat)
        status("running")
        _run(folder, job.config, place, seat)
        (folder / "summary.json").stat()  # rank 0's last word: without it nothing was measured
    except Failed as error:
        return status(error.kind, str(error), error.trace)
    except DataMissing as error:
        return status("failed", str(error))
    except Exception as error:
        return status("failed", f"{type(error).__name__}: {error}", traceback.format_exc())
    except BaseException:
        status("failed", "interrupted")
        raise
    return status("done")


def look(job: Job) -> Outcome:
    """What became of it, without running anything."""
    folder, name = job.folder, job.name
    if finished(folder):
        return Outcome(name, "reused", folder=folder)
    known = read_json(folder / "status.json") or {"state": "missing"}
    if known["state"] in ("running", "done"):  # a lock tells who lives; a done job without its summary is not done
        with _sole_owner(folder) as alone:
            known = {"state": "missing" if alone else "busy"}
    return Outcome(name, known["state"], known.get("reason", ""))


def _effective(cfg: DictConfig, shaping: str | None) -> dict[str, Any]:
    """The checked configuration of what will really run: loopback where links cannot be shaped, and the row says so."""
    config = check(cfg)
    if config["network"]["shaped"] and shaping is not None:
        config["network"] |= {"shaped": False, "rate": None, "burst_kib": None}
    return config


def settled(outcome: Outcome) -> Outcome:
    """What has become meanwhile of a job that found another process at its work."""
    over = outcome.state == "busy" and outcome.folder and finished(outcome.folder)
    return Outcome(outcome.job, "reused", folder=outcome.folder) if over else outcome


def finished(folder: Path) -> bool:
    """Whether the result exists."""
    return (folder / "summary.json").exists() and (read_json(folder / "status.json") or {}).get("state") == "done"


def job_name(config: dict[str, Any]) -> str:
    """What a person calls it: benchmark, compressor, ratio, link."""
    names, network = config["names"], config["network"]
    ratio = target_ratio(config)
    aim = "" if ratio is None else f" {ratio:g}"
    link = "virtual" if config["workers"]["virtual"] else "cluster" if network["cluster"] else network["rate"]
    wire = "" if names["wire"] == "plain" else f" {names['wire']}"
    return f"{names['benchmark']} {names['compressor']}{aim}{wire} {link or 'loopback'}"


def job_folder(config: dict[str, Any]) -> Path:
    """The place of the result, computed from what is measured: if it exists, the job is done."""
    key = digest({"config": scientific(config), "code": fingerprint()})
    return Path(config["output"]) / "jobs" / f"{job_name(config).replace(' ', '-')}-{key}"


def _prepare(folder: Path, config: dict[str, Any], place: cluster.Place | None, seat: Seat) -> None:
    """What ranks read, and what a row must be able to say of where it comes from."""
    dataset = build(config["dataset"])
    data_sha256 = dataset.prepare()  # here, so that one process downloads and ranks only read
    OmegaConf.save(OmegaConf.create(in_steps(config, dataset)), folder / "config.yaml")
    network, virtual = config["network"], config["workers"]["virtual"]
    kind = "virtual" if virtual else "cluster" if place else "shaped" if network["shaped"] else "loopback"
    facts: dict[str, Any] = {"network": kind, "rate_mbit_per_s": None, "latency_emulated": False, "origin": "measured"}
    if network["shaped"]:
        rate = facts["rate_mbit_per_s"] = rate_mbit(network["rate"])
        facts["burst_kib"] = network["burst_kib"] or default_burst_kib(rate)
    if place:
        facts["hosts"] = list(place.hosts)
    facts |= {**seat.facts(), "data_sha256": data_sha256}
    write_json(folder / "env.json", {**environment(fingerprint()), **facts})


def _run(folder: Path, config: dict[str, Any], place: cluster.Place | None, seat: Seat) -> None:
    network, workers = config["network"], config["workers"]
    ranks = 1 if workers["virtual"] else workers["world_size"]
    with ExitStack() as stack:
        if place:
            nodes, ours = cluster.nodes_of(place), [place.node_rank]
        elif network["shaped"]:
            nodes = stack.enter_context(shaped_nodes(ranks, rate_mbit(network["rate"]), network["burst_kib"]))
            ours = range(len(nodes))
        else:
            nodes, ours = stack.enter_context(loopback_nodes(1)), [0]
        each, port = ranks // len(nodes), seat.port(network["port"])
        agents = [
            stack.enter_context(torchrun(folder, nodes[i], i, nodes, each, port, seat.variables(i * each, each)))
            for i in ours
        ]
        wait(folder, agents, time.time() + workers["job_timeout_s"], seat.stop)


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
