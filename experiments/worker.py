"""What each rank runs: `torchrun -m experiments.worker JOB_FOLDER`.

Rank 0 writes; a rank that fails says why in a file of its own.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import OmegaConf

from experiments.build import build, target_ratio
from experiments.capture import residual
from experiments.checkpoint import latest, load, save, step_of
from experiments.loop import Diverged, Trainer
from experiments.record import Recorder, read_json, write_json
from experiments.schedule import groups
from sidco.comm import Ranks
from sidco.compressors.cast import Cast
from sidco.method import AllGather, Gathered, NonFiniteGradient
from sidco.workers import DDPWorkers, VirtualWorkers

PROBE_SIZES = (100_000, 1_000_000, 10_000_000)  # bytes
PROBE_S = 0.5  # which a message must not take: at 100 Mb/s the largest would cost each job three seconds


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    if "SIDCO_LAUNCHER" in os.environ:
        threading.Thread(target=_watch, args=(int(os.environ["SIDCO_LAUNCHER"]),), daemon=True).start()
    try:
        _run(folder, rank)
    except BaseException as error:
        kind = "diverged" if isinstance(error, Diverged | NonFiniteGradient) else "failed"
        content = {"kind": kind, "rank": rank, "time": time.time(), "error": str(error) or type(error).__name__}
        write_json(folder / "errors" / f"rank{rank}.json", {**content, "traceback": traceback.format_exc()})
        traceback.print_exc()
        # not sys.exit: a peer is perhaps in a collective with us, and the interpreter would wait for its threads
        sys.stderr.flush()
        os._exit(1)


@dataclass(frozen=True)
class _Book:
    """Rank 0 records; all ranks save."""

    folder: Path
    rank: int
    world_size: int
    recorder: Recorder | None

    def log(self, step: int, **scalars: float | None) -> None:
        if self.recorder:
            self.recorder.log(step, **scalars)

    def quality(self, points: list[dict[str, float]]) -> None:
        if self.recorder:
            self.recorder.quality(points)

    def save(self, step: int, state: dict[str, Any]) -> None:
        save(self.folder, step, state, self.rank, self.world_size, dist.barrier)

    def agreed(self, seconds: float) -> float:
        box = [seconds]
        dist.broadcast_object_list(box)
        return box[0]


def _run(folder: Path, rank: int) -> None:
    config, world_size = _config(folder), int(os.environ["WORLD_SIZE"])
    settings = config["workers"]
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    here = int(os.environ.get("SIDCO_RANKS_HERE", local))  # emulated nodes share one machine's cores
    torch.set_num_threads(settings["threads"] or max(1, (os.cpu_count() or 1) // here))
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        device, backend = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(seconds=settings["timeout_s"]))
    link = _probe(dist.group.WORLD, device) if dist.group.WORLD and world_size > 1 else {}
    trainer = _trainer(config, rank, device)
    start = latest(folder)
    if start is not None:
        trainer.load_state_dict(load(start, rank, world_size))
    recorder = None
    if rank == 0:
        logger = build(config["logger"])
        recorder = Recorder(folder, trainer.done, [logger(folder, config)] if logger else [])
    try:
        summary = trainer.run(_Book(folder, rank, world_size, recorder), target_ratio(config))
        if not summary["replicas_agree"]:
            raise RuntimeError("replicas differ after training: ranks applied different updates")
    except BaseException:
        if recorder:
            recorder.abandon()
        raise
    if recorder:
        started = read_json(folder / "status.json")
        recorder.close(
            **{f"name_{k}": v for k, v in config["names"].items()},
            **summary, **link,
            parameters=sum(p.numel() for p in trainer.workers.module.parameters()),
            world_size=settings["world_size"], ranks_per_node=local, threads_per_rank=torch.get_num_threads(),
            resumed_from_step=None if start is None else step_of(start),
            job_seconds=round(time.time() - started["started"], 1),
        )  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()


def _config(folder: Path) -> dict[str, Any]:
    loaded = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    assert isinstance(loaded, dict)
    return {str(key): value for key, value in loaded.items()}


def _trainer(config: dict[str, Any], rank: int, device: torch.device) -> Trainer:
    settings, seed, training = config["workers"], config["seed"], config["training"]
    torch.manual_seed(seed)  # the same start on all ranks; DDP sends rank 0's all the same
    model, method, plan = build(config["model"]), build(config["method"]), build(config["plan"])
    model = model.to(device)
    if training["channels_last"]:
        model = model.to(memory_format=torch.channels_last)
    if settings["virtual"]:  # without a hook there is no plain DDP: the same sum, taken by the dense method
        method = Gathered(Cast("float32")) if method is None else method
        workers = VirtualWorkers(model, method, plan, world_size=settings["world_size"], seed=seed)
        shares = tuple(range(settings["world_size"]))
    else:
        workers, shares = DDPWorkers(model, method, plan, seed=seed), (rank,)
    optimizer = build(config["optimizer"])(groups(workers.module, training["decay_1d"]))
    torch.manual_seed(seed * 1000 + rank)  # dropout differs between ranks
    task, dataset = build(config["task"]), build(config["dataset"])
    return Trainer(
        workers, task, dataset, optimizer, training, shares, settings["world_size"], seed, device,
        residual=partial(residual, workers, method, plan),
        schedule=build(config["schedule"]),
    )  # fmt: skip


def _probe(group: dist.ProcessGroup, device: torch.device) -> dict[str, float]:
    """Mb/s that leave this rank in the backend's all-reduce and all-gather and in our gather: what the link gives.

    Each first runs once untimed, for connections to be made. A burst lets a small message through faster than the rate.
    Sizes end with the first after which the next, ten times as large, would take too long on the slowest way.
    """
    rates, comm, world_size = {}, Ranks(group), dist.get_world_size(group)
    for nbytes in PROBE_SIZES:
        buffer = torch.zeros(nbytes // 4, device=device)
        parts = [torch.empty_like(buffer) for _ in range(world_size)]
        gathered = (world_size - 1) * nbytes
        ways: dict[str, tuple[Callable[[], Any], float]] = {
            "all_reduce": (partial(dist.all_reduce, buffer, group=group), 2 * gathered / world_size),
            "all_gather": (partial(dist.all_gather, parts, buffer, group=group), gathered),
            "gather": (partial(comm.answer, AllGather(buffer, 0)), gathered),
        }
        slowest = torch.zeros(1, device=device)
        for name, (run, sent) in ways.items():
            if nbytes == PROBE_SIZES[0]:
                run()
            dist.barrier(group)
            start = time.perf_counter()
            run()
            buffer.sum().item()  # on a GPU: wait until it is there
            took = time.perf_counter() - start
            rates[f"probe_{name}_{nbytes // 1000}kb_mbit_per_s"] = 8e-6 * sent / took
            slowest.clamp_(min=took)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)  # ranks stop together
        if 10 * slowest.item() > PROBE_S:
            break
    return rates


def _watch(launcher: int) -> None:
    """End with the launcher, however it ended: a rank left alone would wait for peers, or hold the next job's port."""
    while True:
        time.sleep(2)
        if not Path(f"/proc/{launcher}").exists():
            os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
