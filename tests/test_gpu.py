"""The cases of test_ddp.py over NCCL, where there are GPUs; and what a record says of them, which any machine can test.

As there, one set of processes carries every case: RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 … python tests/test_gpu.py FOLDER
runs one of them (over gloo on a machine without a GPU, to try the program itself).
"""

import faulthandler
import os
import socket
import subprocess
import sys
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import ddp_cases
import ddp_runs
import pytest
import torch
import torch.distributed as dist
from conftest import ROOT

from experiments.record import environment
from sidco.comm import Ranks
from sidco.method import AllGather

TIMEOUT_S = 600  # the ranks themselves give up before and show where they hang
WORLD = min(2, torch.cuda.device_count())
GATHERED = {"mixed": (1, 100_000), "none": (0, 0), "one": (5, 0), "last": (0, 3)}
CASES_AT_2 = (ddp_cases.silence, ddp_cases.resume, ddp_cases.not_a_number)  # the last breaks off a backward
on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: torch.cuda.is_available() is false"),
]
on_two = [*on_gpu, pytest.mark.skipif(WORLD == 1, reason="one CUDA device: NCCL wants one for each of two ranks")]


def marked(marks):
    def mark(test):
        for each in marks:
            test = each(test)
        return test

    return mark


def runs(world):
    """The trainings of test_ddp.py that it does at two ranks, at this many."""
    found = ddp_runs.trainings(ddp_runs.methods())
    return {name: replace(run, world=world) for name, run in found.items() if run.world == 2}


def gathers(rank, groups, device):
    """Case 6: messages of 0, 1 and many elements, and a rank with nothing to say."""
    comm, found = Ranks(groups.ours), {}
    for name, sizes in GATHERED.items():
        buffer = torch.arange(sizes[rank], dtype=torch.int32, device=device) + 1000 * rank
        found[name] = comm.answer(AllGather(buffer, 0))
    found["silent"] = comm.answer(AllGather(None if rank == 1 else torch.ones(2, device=device), 0))
    return found


def main(folder):
    """What a rank runs. The cases make models and batches by two functions, which here put them on the rank's device:
    nothing else may, or a tensor that the library makes on the wrong one would not be noticed.
    """
    warnings.simplefilter("ignore")
    faulthandler.dump_traceback_later(TIMEOUT_S - 60, exit=True)
    rank, world, cuda = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    fresh, batch = ddp_runs.fresh, ddp_runs.batch
    ddp_cases.fresh = ddp_runs.fresh = lambda kind: fresh(kind).to(device)
    ddp_runs.batch = lambda rank, step: tuple(part.to(device) for part in batch(rank, step))
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=120))
    groups = ddp_cases.Groups(dist.group.WORLD, dist.new_group())
    found = {}
    for name, run in runs(world).items():
        found[name] = ddp_cases.train_on_ranks(run, rank, groups)
        found[name]["virtual"] = ddp_runs.train_virtually(run) if rank == 0 else None
    found["plain_ddp"] = ddp_cases.plain_ddp(rank, groups)
    if world == 2:
        found["gathers"] = gathers(rank, groups, device)
        found |= {case.__name__: case(rank, groups) for case in CASES_AT_2}
    torch.save(found, Path(folder) / f"rank{rank}.pt")
    os._exit(0)  # the broken DDP of the last case would wait for its peers


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each rank returned, by case."""
    folder = tmp_path_factory.mktemp("gpu")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD)}
    common |= {"PYTHONPATH": str(ROOT), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # one order of sums in cuBLAS and cuDNN
    logs = [(folder / f"log{rank}").open("w+") for rank in range(WORLD)]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=logs[rank],
            stderr=logs[rank],
        )
        for rank in range(WORLD)
    ]
    try:
        codes = [process.wait(TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for log in logs:
        log.seek(0)
    assert codes == [0] * WORLD, "\n".join(log.read()[-3000:] for log in logs)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False, map_location="cpu") for rank in range(WORLD)]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def close(a, b):
    """As two orders of the same sums: a GPU's matrix products and scatters promise no bits."""
    return a.keys() == b.keys() and all(torch.allclose(a[name], b[name], rtol=1e-3, atol=1e-4) for name in a)


@marked(on_gpu)
@pytest.mark.parametrize("name", runs(2))
def test_ranks_over_nccl_equal_virtual_workers(ranks, name):
    for rank in range(WORLD):
        assert same(ranks[rank][name]["weights"], ranks[0][name]["weights"]), "replicas differ"
    found, virtual = ranks[0][name]["weights"], ranks[0][name]["virtual"]
    assert close(found, virtual)
    start = dict(ddp_runs.fresh(runs(2)[name].model).named_parameters())
    assert any(not torch.equal(virtual[n], start[n]) for n in virtual), "nothing was trained"


@marked(on_gpu)
@pytest.mark.parametrize("way", ["dense", "detached"])
def test_dense_through_the_hook_over_nccl_is_plain_ddp(ranks, way):
    for found in ranks:
        assert close(found["plain_ddp"][way], found["plain_ddp"]["plain"])


@marked(on_two)
def test_messages_of_unequal_length_arrive_whole_over_nccl(ranks):
    for rank in range(2):
        found = ranks[rank]["gathers"]
        for name, sizes in GATHERED.items():
            for peer, size in enumerate(sizes):
                assert torch.equal(found[name][peer], torch.arange(size, dtype=torch.int32) + 1000 * peer)
        assert [block is None for block in found["silent"]] == [rank == 1, True]


@marked(on_two)
def test_a_silent_rank_contributes_zero_over_nccl(ranks):
    for rank in range(2):
        found = ranks[rank]["silence"]
        assert any(bool(g.any()) for g in found["one"].values())
        assert (found["one coordinates"] == 0) == (rank == 1)
        assert not any(bool(g.any()) for g in found["all"].values())


@marked(on_two)
def test_saved_state_goes_on_where_it_stopped_on_a_gpu(ranks):
    for rank in range(2):
        assert close(ranks[rank]["resume"]["whole"], ranks[rank]["resume"]["halves"])


@marked(on_two)
def test_a_nan_stops_all_ranks_over_nccl_and_is_named(ranks):
    assert "layers.2.weight" in ranks[1]["not_a_number"]["said"]
    assert "NonFiniteGradient: the gradient of rank 1 is not finite" in ranks[0]["not_a_number"]["said"]
    assert all(rank["not_a_number"]["clean"] for rank in ranks)


def test_a_record_names_the_variables_of_nccl_and_how_gpus_are_linked(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$*" = "topo -m" ] && printf "\\tGPU0\\tGPU1\\nGPU0\\t X \\tNV18\\n"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    facts = environment("code")
    assert facts["nccl"] | {"NCCL_ALGO": "Ring", "NCCL_P2P_DISABLE": "1"} == facts["nccl"]
    assert facts["gpu_topology"].splitlines()[1].split() == ["GPU0", "X", "NV18"]
    tool.write_text("#!/bin/sh\necho 'no driver' >&2; exit 9\n")
    assert environment("code")["gpu_topology"] is None


if __name__ == "__main__":
    main(sys.argv[1])
