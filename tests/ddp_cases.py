"""What the ranks of tests/test_ddp.py run: all cases in one set of processes, results in a file a rank.

    RANK=0 WORLD_SIZE=3 … python tests/ddp_cases.py FOLDER

A case is a function of (rank, group): it runs on the ranks of the group and returns what the test then looks at.
The module is imported by the test too, which runs the same training on virtual workers.
"""

import faulthandler
import os
import sys
import warnings
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from ddp_runs import STEPS, Mixed, Training, Wide, fresh, loss_of, methods, trainings, weights
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel as DDP

from experiments.loop import Diverged, Trainer
from sidco.comm import Ranks
from sidco.compressors.cast import Cast
from sidco.compressors.topk import TopK
from sidco.feedback import ErrorFeedback
from sidco.hook import attach
from sidco.method import AllGather, AllReduce, Gathered
from sidco.methods.powersgd import PowerSGD
from sidco.plan import SizeCapped

WORLD = 3
CLIP = 0.25  # below the norms of the first step


class Groups(NamedTuple):
    """Of the same ranks: DDP's, and the one exchanges run on. Made once: a process group is dear, and its name depends
    on how many a process has made, which differs between ranks here.
    """

    ddp: dist.ProcessGroup
    ours: dist.ProcessGroup


def train_on_ranks(run: Training, rank: int, groups: Groups) -> dict:
    model = DDP(
        fresh(run.model), process_group=groups.ddp, bucket_cap_mb=run.bucket_cap_mb, find_unused_parameters=True
    )
    attachment = attach(model, run.method, plan=run.plan, seed=3, group=groups.ours)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(STEPS):
        loss_of(model, rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    result = {"weights": weights(model.module), "traffic": vars(attachment.traffic())}
    attachment.detach()
    return result


def plain_ddp(rank: int, groups: Groups) -> dict:
    """Case 3: the same steps through plain DDP, through `dense`, and after detach."""
    found = {}
    for way in ("plain", "dense", "detached"):
        model = DDP(fresh(Wide), process_group=groups.ddp)
        if way != "plain":
            attachment = attach(model, Gathered(Cast("float32")), group=groups.ours)
            if way == "detached":
                attachment.detach()
        for step in range(2):
            model.zero_grad()
            loss_of(model, rank, step).backward()
        found[way] = {name: p.grad.clone() for name, p in model.module.named_parameters()}
    return found


def gathers(rank: int, groups: Groups) -> dict:
    """Case 6: messages of 0, 1 and many elements, and ranks with nothing to say."""
    comm, found = Ranks(groups.ours), {}
    for name, sizes in {"mixed": (0, 1, 100_000), "none": (0, 0, 0), "one": (5, 0, 0), "last": (0, 0, 3)}.items():
        before = comm.traffic.copy()
        buffer = torch.arange(sizes[rank], dtype=torch.int32) + 1000 * rank
        found[name] = comm.answer(AllGather(buffer, 0))
        found[f"{name} bytes"] = comm.traffic.minus(before).sent_bytes
    found["silent"] = comm.answer(AllGather(None if rank == 1 else torch.ones(2), 0))
    before, message = comm.traffic.copy(), torch.tensor([3, rank], dtype=torch.int32)
    found["fixed"] = comm.answer(AllGather(message, 0, message.nbytes))
    found["fixed bytes"] = comm.traffic.minus(before).sent_bytes
    found["fixed silent"] = comm.answer(AllGather(None if rank == 1 else message, 0, message.nbytes))
    # case 19: the sum is no float16, the mean is
    found["half"] = comm.answer(AllReduce(torch.full((5,), 2.0**15, dtype=torch.float16), 5, "mean"))
    return found


def silence(rank: int, groups: Groups) -> dict:
    """Case 7: a zero gradient on one rank only, then on all."""
    model = DDP(fresh(Wide), process_group=groups.ddp)
    attachment = attach(model, methods(0.01)["sidco_e"], group=groups.ours)
    found = {}
    for name, silent in {"one": rank == 1, "all": True}.items():
        model.zero_grad()
        before = attachment.traffic()
        (loss_of(model, 0, 0) * (0.0 if silent else 1.0)).backward()
        found[name] = {n: p.grad.clone() for n, p in model.module.named_parameters()}
        found[f"{name} coordinates"] = attachment.traffic().minus(before).coordinates
        attachment.load_state_dict(  # nothing left over from the step before
            {g: (torch.zeros_like(s[0]), s[1]) for g, s in attachment.state_dict().items()}
        )
    return found


def disagreement(rank: int, groups: Groups) -> dict:
    """Case 8: rank 1 was given another ratio; then another width."""
    found = {}
    for name, method, width in (("ratio", 0.02 if rank else 0.01, 8), ("width", 0.01, 9 if rank else 8)):
        torch.manual_seed(0)
        module = nn.Linear(4, width)
        model = DDP(nn.Linear(4, 8), process_group=groups.ddp)
        model.module = module  # DDP itself would stop at another shape, in words that name no remedy
        found[name] = message(
            lambda model=model, method=method: attach(model, Gathered(TopK(method)), group=groups.ours)
        )
    return found


def misuse(rank: int, groups: Groups) -> dict:
    """Case 15: attach twice; a foreign hook; no DDP; sparse gradients (case 12)."""
    method = Gathered(TopK(0.1))
    model = DDP(nn.Linear(4, 4), process_group=groups.ddp)
    attachment = attach(model, method, group=groups.ours)
    found = {"twice": message(lambda: attach(model, method))}
    attachment.detach()
    attach(model, method, group=groups.ours).detach()
    foreign = DDP(nn.Linear(4, 4), process_group=groups.ddp)
    foreign.register_comm_hook(None, lambda state, bucket: torch.futures.Future())
    found["foreign"] = message(lambda: attach(foreign, method))
    found["no ddp"] = message(lambda: attach(nn.Linear(2, 2), method))
    model = Mixed()
    model.embed = nn.Embedding(50, 12, sparse=True)
    model = DDP(model, process_group=groups.ddp, find_unused_parameters=True)
    before = weights(model.module)
    found["sparse"] = message(lambda: attach(model, method, group=groups.ours))
    found["untouched"] = all(torch.equal(before[name], w) for name, w in weights(model.module).items())
    model.module.embed.sparse = False
    model = DDP(model.module, process_group=groups.ddp, find_unused_parameters=True)  # the old one remembers
    attachment = attach(model, method, group=groups.ours)
    loss_of(model, rank, 0).backward()
    found["remedy"] = any(bool(p.grad.any()) for p in model.parameters() if p.grad is not None)
    attachment.detach()
    return found


def updates(rank: int, groups: Groups) -> dict:
    """Cases 16 and 69: what the application's update takes off the weights; then with a NaN on rank 1, in plain DDP."""
    found: dict[str, Any] = {}
    for way in ("plain", "dense", "nan"):
        model = DDP(fresh(Wide), process_group=groups.ddp)
        attachment = attach(model, Gathered(Cast("float32")), group=groups.ours) if way == "dense" else None
        if way == "nan" and rank == 1:
            model.module.layers[2].weight.register_hook(lambda g: g * torch.nan)
        workers: Any = SimpleNamespace(module=model.module)
        nothing: Any = None
        training = {"clip_norm": CLIP, "local_clip": False, "step_space": False}
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer = Trainer(workers, nothing, nothing, optimizer, training, (rank,), 2, 0)
        before, loss = weights(model.module), loss_of(model, rank, 0)
        loss.backward()
        try:
            trainer.update(loss.item())
        except Diverged as error:
            found["said"] = str(error)
        found[way] = {name: before[name] - w for name, w in weights(model.module).items()}
        if attachment is not None:
            attachment.detach()
    return found


def bytes_of_topk(rank: int, groups: Groups) -> dict:
    """Case 22: Top-k 1 % of 1e6 elements."""
    model = DDP(nn.Linear(1000, 1000, bias=False), process_group=groups.ddp)
    attachment = attach(model, Gathered(ErrorFeedback(TopK(0.01))), group=groups.ours)
    generator = torch.Generator().manual_seed(rank)
    model(torch.randn(8, 1000, generator=generator)).pow(2).sum().backward()
    cost, _ = attachment.take_cost()
    return {**vars(attachment.traffic()), "cost": vars(cost)}


def resume(rank: int, groups: Groups) -> dict:
    """3 steps, state saved and loaded with weights_only into a new attachment, 2 more: the same as 5."""
    run = trainings({})["topk-capped-25/2"]
    whole = train_on_ranks(run, rank, groups)["weights"]
    model, optimizer, saved = None, None, {}
    for steps in (range(3), range(3, 5)):
        model = DDP(fresh(run.model), process_group=groups.ddp, find_unused_parameters=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        attachment = attach(model, run.method, plan=run.plan, seed=3, group=groups.ours)
        if saved:
            path = Path(sys.argv[1]) / f"state{rank}.pt"
            torch.save(saved, path)
            saved = torch.load(path, weights_only=True)
            model.module.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            attachment.load_state_dict(saved["attachment"])
        for step in steps:
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        saved = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "attachment": attachment.state_dict(),
        }
    wrong = message(lambda: attachment.load_state_dict({"other": ()}))
    return {"whole": whole, "halves": weights(model.module), "wrong": wrong}


def powersgd_like_torch(rank: int, groups: Groups) -> dict:
    """Ours takes over torch's residuals and factors after its first compressed step; then both go on."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(24, 20, bias=False), nn.Linear(20, 16))
    theirs, ours = (DDP(deepcopy(module), process_group=groups.ddp) for _ in range(2))
    state = powersgd.PowerSGDState(
        groups.ddp, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=2
    )
    order: list[torch.Size] = []

    def hook(state: powersgd.PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        order[:] = [p.shape for p in bucket.parameters()]
        return powersgd.powerSGD_hook(state, bucket)

    theirs.register_comm_hook(state, hook)
    attachment = attach(ours, Gathered(TopK(1.0)), group=groups.ours)
    attachment.detach()

    def gradient(model: DDP, step: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(10 * step + rank)
        model.zero_grad()
        model(torch.randn(9, 24, generator=generator)).square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    for step in range(3):  # two dense, one compressed
        gradient(theirs, step)
    method = PowerSGD(rank=2, min_rate=2.0)
    attachment = attach(ours, method, group=groups.ours)
    ((name, _),) = attachment.state_dict().items()
    shapes = [p.shape for p in ours.parameters()]
    parts = dict(zip(order, state.error_dict[0].split([shape.numel() for shape in order]), strict=True))
    compressed = [shape for shape in shapes if len(shape) == 2]
    in_bucket = [shape for shape in order if len(shape) == 2]
    qs = dict(zip(in_bucket, state.q_memory_dict[0].split([2 * shape[1] for shape in in_bucket]), strict=True))
    attachment.load_state_dict({
        name: (
            tuple(parts[shape].view(shape).clone() for shape in compressed),
            tuple(qs[shape].view(shape[1], 2).clone() for shape in compressed),
        )
    })  # fmt: skip
    return {"theirs": [gradient(theirs, s) for s in (3, 4)], "ours": [gradient(ours, s) for s in (3, 4)]}


def not_a_number(rank: int, groups: Groups) -> dict:
    """A NaN on rank 1 only. Last of all: a backward that was broken off leaves its DDP unusable."""
    model = DDP(fresh(Wide), process_group=groups.ddp)
    attachment = attach(model, Gathered(ErrorFeedback(TopK(0.01))), plan=SizeCapped(1.5), group=groups.ours)
    handle = model.module.layers[2].weight.register_hook(lambda g: g * torch.nan if rank == 1 else g)
    said = message(lambda: loss_of(model, rank, 0).backward())
    handle.remove()
    residuals = [state[0] for state in attachment.state_dict().values()]
    start = weights(fresh(Wide))
    untouched = all(torch.equal(start[name], w) for name, w in weights(model.module).items())
    return {"said": said, "clean": all(bool(torch.isfinite(r).all()) for r in residuals), "untouched": untouched}


CASES_AT_2 = (
    plain_ddp, silence, disagreement, misuse, updates, bytes_of_topk, resume, powersgd_like_torch, not_a_number,
)  # fmt: skip
CASES_AT_3 = (plain_ddp, gathers)


def message(act) -> str:
    """What an act that must fail says."""
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def main() -> None:
    warnings.simplefilter("ignore")
    rank = int(os.environ["RANK"])
    faulthandler.dump_traceback_later(120, exit=True)  # a hang shows where
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    pair = Groups(dist.new_group([0, 1]), dist.new_group([0, 1]))
    everyone = Groups(dist.group.WORLD, dist.new_group())
    found: dict[str, object] = {}

    for name, run in trainings(methods()).items():
        if rank < run.world:
            found[name] = train_on_ranks(run, rank, everyone if run.world == WORLD else pair)
    for case in CASES_AT_3:
        found[f"{case.__name__}/3"] = case(rank, everyone)
    for case in CASES_AT_2 if rank < 2 else ():
        found[f"{case.__name__}/2"] = case(rank, pair)
    torch.save(found, Path(sys.argv[1]) / f"rank{rank}.pt")
    os._exit(0)  # the broken DDP of the last case would wait for its peers


if __name__ == "__main__":
    main()
