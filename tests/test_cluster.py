"""The same command on every node: pretended SLURM variables on emulated nodes, a hostfile, and N copies of one job."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT
from test_train import HERE, TIMEOUT_S, command, jobs, read

from experiments.build import ConfigError
from experiments.cluster import Place, expand, here, ranks_per_node
from experiments.network import shaped_nodes, unavailable


@pytest.mark.parametrize(
    ("nodelist", "hosts"),
    [
        ("gpu7", ("gpu7",)),
        ("a,b", ("a", "b")),
        ("gpu[1-3,7],login", ("gpu1", "gpu2", "gpu3", "gpu7", "login")),
        ("n[008-010]-ib", ("n008-ib", "n009-ib", "n010-ib")),
        ("10.77.0.[1-2]", ("10.77.0.1", "10.77.0.2")),
    ],
)
def test_a_nodelist_is_expanded_as_slurm_does(nodelist, hosts):
    assert expand(nodelist) == hosts


def test_the_place_comes_from_the_environment():
    slurm = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NODEID": "1", "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "3"}
    assert here(slurm) == Place(1, ("n1", "n2"), "slurm-42.3")
    by_hand = {"SIDCO_NODES": "a,b", "SIDCO_NODE_RANK": "0", "SIDCO_SWEEP": "s"}
    assert here(by_hand) == Place(0, ("a", "b"), "s")


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, "start it by srun"),
        ({"SIDCO_NODES": "a,b"}, "not SIDCO_NODE_RANK and SIDCO_SWEEP"),
        ({"SIDCO_NODES": "a", "SIDCO_NODE_RANK": "1", "SIDCO_SWEEP": "s"}, "node rank 1 is not among the 1 nodes"),
    ],
)
def test_a_place_that_is_none_is_refused(environment, says):
    with pytest.raises(ConfigError, match=says):
        here(environment)


def test_ranks_are_shared_out_evenly_or_not_at_all():
    place = Place(0, ("a", "b"), "s")
    assert ranks_per_node(place, 4) == 2
    with pytest.raises(ConfigError, match="world_size=3 cannot be shared out evenly over 2 nodes"):
        ranks_per_node(place, 3)


@pytest.mark.netns
@pytest.mark.case(50)
def test_two_nodes_of_two_ranks_run_a_sweep(tmp_path):
    """Four jobs, two of which fail, each on both nodes; the two copies never race on a folder."""
    reason = unavailable()
    if reason:
        pytest.skip(reason)
    words = (
        "network=cluster",
        "workers.world_size=4",
        "benchmark=resnet20_digits",
        "compressor=topk",
        "ratio=0.1,0.01",
    )
    words += ("training.batch_per_rank=16,100000",)
    with shaped_nodes(2, rate_mbit=1000) as nodes:
        copies = [
            subprocess.Popen(
                [*node.enter, *command("-m", *words)],
                cwd=tmp_path,
                env={
                    **HERE,
                    "SLURM_JOB_NODELIST": "10.77.0.[1-2]",
                    "SLURM_NODEID": str(rank),
                    "SLURM_JOB_ID": "7",
                    "GLOO_SOCKET_IFNAME": node.interface,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank, node in enumerate(nodes)
        ]
        try:
            said = [copy.communicate(timeout=TIMEOUT_S)[0] for copy in copies]
        finally:
            for copy in copies:
                copy.kill()
    assert [copy.returncode for copy in copies] == [1, 1], said
    assert len(jobs(tmp_path)) == 4
    for folder in jobs(tmp_path):
        status = read(folder / "status.json")
        assert status["sweep"] == "slurm-7.0"
        assert {path.name for path in (folder / "logs").iterdir()} == {"node0.log", "node1.log"}
        if status["state"] == "done":
            environment, summary = read(folder / "env.json"), read(folder / "summary.json")
            assert environment["network"] == "cluster"
            assert environment["hosts"] == ["10.77.0.1", "10.77.0.2"]
            assert (summary["world_size"], summary["ranks_per_node"], summary["replicas_agree"]) == (4, 2, True)
            assert len((folder / "steps.jsonl").read_text().splitlines()) == 2, "only global rank 0 writes"
        else:
            assert "training.batch_per_rank" in status["reason"]
    for text in said:
        assert "(2 done, 2 failed)" in text


def test_a_hostfile_starts_the_command_on_every_host(tmp_path):
    (tmp_path / "hosts").write_text("# the lab\none slots=1\n\ntwo\n")
    (tmp_path / "ssh").write_text('#!/bin/sh\nshift\nexec sh -c "$1"\n')  # an ssh that stays here
    (tmp_path / "ssh").chmod(0o755)
    names = ("SIDCO_NODES", "SIDCO_NODE_RANK", "SIDCO_SWEEP")
    # one write a host: print makes several where Python is unbuffered, and hosts share the terminal
    show = f"import os; os.write(1, (' '.join(os.environ[n] for n in {names}) + ' a b\\n').encode())"
    done = subprocess.run(
        [str(ROOT / "scripts" / "on_hosts.sh"), "hosts", sys.executable, "-c", show],
        cwd=tmp_path,
        env={**os.environ, "SIDCO_SSH": str(tmp_path / "ssh")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(line.split(maxsplit=3) for line in done.stdout.splitlines())
    assert [line[:2] for line in lines] == [["one,two", "0"], ["one,two", "1"]]
    assert lines[0][2] == lines[1][2], "one sweep"
    assert lines[0][3] == "a b", "arguments arrive as they were"


def test_a_host_that_fails_is_the_status(tmp_path):
    (tmp_path / "hosts").write_text("one\ntwo\n")
    (tmp_path / "ssh").write_text('#!/bin/sh\n[ "$1" = two ] && exit 3\nexit 0\n')
    (tmp_path / "ssh").chmod(0o755)
    done = subprocess.run(
        [str(ROOT / "scripts" / "on_hosts.sh"), "hosts", "true"],
        cwd=tmp_path, env={**os.environ, "SIDCO_SSH": str(tmp_path / "ssh")}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
