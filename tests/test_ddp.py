"""Real ranks over gloo against virtual workers and plain DDP. One set of processes carries every case."""

import os
import socket
import subprocess
import sys

import ddp_cases
import ddp_runs
import pytest
import torch
from conftest import ROOT

from sidco.method import AllGather, Gathered

TIMEOUT_S = 150  # the ranks themselves give up after 120 and show where they hang
TRAININGS = ddp_runs.trainings(ddp_runs.methods())


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each rank returned, by case."""
    folder = tmp_path_factory.mktemp("ddp")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ddp_cases.WORLD)}
    common |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    logs = [(folder / f"log{rank}").open("w+") for rank in range(ddp_cases.WORLD)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "ddp_cases.py"), str(folder)],
            env={**common, "RANK": str(rank), "PYTHONHASHSEED": str(rank + 1)},  # case 11: no order from a set
            stdout=logs[rank],
            stderr=logs[rank],
        )
        for rank in range(ddp_cases.WORLD)
    ]
    try:
        codes = [process.wait(TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for log in logs:
        log.seek(0)
    assert codes == [0] * len(codes), "\n".join(log.read()[-3000:] for log in logs)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(ddp_cases.WORLD)]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def tolerance_of_the_sum(run):
    """0 where messages are gathered; else what the order of gloo's sum, which is not rank order, may change."""
    shape = torch.Size([40, 30])
    state = run.method.init(torch.zeros(shape.numel()), layout=(("w", shape),), seed=0)
    first = next(run.method.aggregate([torch.ones(shape)], state))
    if isinstance(first, AllGather):
        return 0.0
    if first.buffer.dtype.itemsize < 4:
        return 1e-2
    return 1e-6 if isinstance(run.method, Gathered) else 1e-4  # several rounds: the second sums what the first gave


@pytest.mark.case(1)
@pytest.mark.case(5)
@pytest.mark.case(6)
@pytest.mark.case(11)
@pytest.mark.parametrize("name", TRAININGS)
def test_ranks_equal_virtual_workers(ranks, name):
    run = TRAININGS[name]
    virtual = ddp_runs.train_virtually(run)
    for rank in range(run.world):
        found = ranks[rank][name]["weights"]
        assert same(found, ranks[0][name]["weights"]), "replicas differ"
        tolerance = tolerance_of_the_sum(run) if run.world == 3 else 0.0
        if tolerance:
            assert all(torch.allclose(found[n], virtual[n], rtol=tolerance, atol=tolerance) for n in virtual)
        else:
            assert same(found, virtual), "ranks and virtual workers differ"
    start = dict(ddp_runs.fresh(run.model).named_parameters())
    assert any(not torch.equal(virtual[n], start[n]) for n in virtual), "nothing was trained"


@pytest.mark.case(3)
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("way", ["dense", "detached"])
def test_dense_through_the_hook_is_plain_ddp(ranks, world, way):
    for rank in range(world):
        found = ranks[rank][f"plain_ddp/{world}"]
        if world == 2:
            assert same(found[way], found["plain"])
        else:
            assert all(torch.allclose(found[way][n], g, rtol=1e-5, atol=1e-8) for n, g in found["plain"].items())


@pytest.mark.case(6)
def test_messages_of_unequal_length_arrive_whole(ranks):
    for rank in range(3):
        found = ranks[rank]["gathers/3"]
        for name, sizes in {"mixed": (0, 1, 100_000), "none": (0, 0, 0), "one": (5, 0, 0), "last": (0, 0, 3)}.items():
            for peer, size in enumerate(sizes):
                assert torch.equal(found[name][peer], torch.arange(size, dtype=torch.int32) + 1000 * peer)
            passed_on = sum(sizes) - sizes[(rank + 1) % 3]
            assert found[f"{name} bytes"] == 4 * passed_on + 2 * 8
        assert [block is None for block in found["silent"]] == [rank == 1, True, rank == 1]


def test_messages_of_fixed_length_need_no_sizes(ranks):
    for rank in range(3):
        found = ranks[rank]["gathers/3"]
        assert [block.tolist() for block in found["fixed"]] == [[3, 0], [3, 1], [3, 2]]
        assert found["fixed bytes"] == 2 * 8
        assert [block is None for block in found["fixed silent"]] == [rank == 1, True, rank == 1]


@pytest.mark.case(19)
def test_half_precision_divides_before_it_sums(ranks):
    for rank in range(3):
        assert torch.allclose(ranks[rank]["gathers/3"]["half"].float(), torch.tensor(2.0**15), rtol=1e-3)


@pytest.mark.case(7)
def test_a_silent_rank_contributes_zero(ranks):
    for rank in range(2):
        found = ranks[rank]["silence/2"]
        assert any(bool(g.any()) for g in found["one"].values())
        assert (found["one coordinates"] == 0) == (rank == 1)
        assert not any(bool(g.any()) for g in found["all"].values())
        assert found["all coordinates"] == 0
    assert same(ranks[0]["silence/2"]["one"], ranks[1]["silence/2"]["one"])


@pytest.mark.case(8)
def test_ranks_that_were_given_different_things_all_say_so(ranks):
    for rank in range(2):
        found = ranks[rank]["disagreement/2"]
        assert found["ratio"].startswith("ValueError: rank 1 was given Gathered(compressor=TopK(ratio=0.02))")
        assert "rank 1 has other parameters than rank 0: [('bias'" in found["width"]


@pytest.mark.case(12)
@pytest.mark.case(15)
def test_misuse_is_explained(ranks):
    found = ranks[0]["misuse/2"]
    assert "call its detach() first" in found["twice"]
    assert "another comm hook" in found["foreign"]
    assert "wrap it in DDP first" in found["no ddp"]
    for rank in range(2):
        refused = ranks[rank]["misuse/2"]
        assert refused["sparse"].startswith("ValueError: embed gives sparse gradients")
        assert "compressed twice: set sparse=False" in refused["sparse"]
        assert refused["untouched"]
        assert refused["remedy"], "with sparse=False the same model trains"


@pytest.mark.case(16)
@pytest.mark.parametrize("way", ["plain", "dense"])
def test_what_is_clipped_is_the_averaged_gradient(ranks, way):
    model = ddp_runs.fresh(ddp_runs.Wide)
    torch.stack([ddp_runs.loss_of(model, rank, 0) for rank in range(2)]).mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), ddp_cases.CLIP)  # in one process
    assert norm > 2 * ddp_cases.CLIP
    for rank in range(2):
        found = ranks[rank]["updates/2"][way]
        assert same(found, ranks[0]["updates/2"][way])
        for name, p in model.named_parameters():
            assert torch.allclose(found[name], p.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.case(69)
def test_a_nan_in_plain_ddp_stops_both_ranks_before_the_update(ranks):
    for rank in range(2):
        found = ranks[rank]["updates/2"]
        assert "norm of the averaged gradient nan" in found["said"]
        assert not any(bool(taken.any()) for taken in found["nan"].values())


@pytest.mark.case(22)
def test_bytes_are_counted_as_sent(ranks):
    found = ranks[0]["bytes_of_topk/2"]
    k = 10_000
    assert found["coordinates"] == k
    assert found["payload_bytes"] == k * (4 + 4)
    assert found["sent_bytes"] == k * (4 + 4) + 8  # and the size, once
    assert found["collectives"] == 1
    assert all(seconds > 0 for seconds in found["cost"].values())


@pytest.mark.case(2)
@pytest.mark.case(51)
def test_saved_state_goes_on_where_it_stopped(ranks):
    for rank in range(2):
        found = ranks[rank]["resume/2"]
        assert same(found["whole"], found["halves"])
        assert "use the plan and the model it was saved with" in found["wrong"]


def test_powersgd_is_torchs(ranks):
    for rank in range(2):
        found = ranks[rank]["powersgd_like_torch/2"]
        for theirs, ours in zip(found["theirs"], found["ours"], strict=True):
            for a, b in zip(theirs, ours, strict=True):
                assert torch.allclose(a, b, rtol=1e-4, atol=1e-5 * a.abs().max().item())


@pytest.mark.case(37)
@pytest.mark.case(69)
def test_a_nan_stops_all_ranks_and_is_named(ranks):
    bad, other = ranks[1]["not_a_number/2"], ranks[0]["not_a_number/2"]
    assert "NonFiniteGradient" in bad["said"]
    assert "layers.2.weight" in bad["said"]
    assert "NonFiniteGradient: the gradient of rank 1 is not finite" in other["said"]
    for rank in (bad, other):
        assert rank["clean"]
        assert rank["untouched"]
