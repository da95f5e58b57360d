"""Whole jobs from the command line: real ranks, their files, their failures, sweeps that are killed and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from experiments.network import unavailable

TIMEOUT_S = 240
HERE = {**os.environ, "PYTHONPATH": str(ROOT)}  # a run writes to outputs/ of the folder it is started in


def command(*words):
    flags = [word for word in words if word.startswith("-")]
    rest = [word for word in words if word not in flags]
    return [sys.executable, "-m", "experiments.train", *flags, "profile=smoke", *rest]


def train(folder, *words, **environment):
    environment = {name: value for name, value in {**HERE, **environment}.items() if value is not None}
    done = subprocess.run(
        command(*words), cwd=folder, env=environment, timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def jobs(folder):
    return sorted((folder / "outputs" / "smoke" / "jobs").iterdir())


def read(path):
    return json.loads(path.read_text())


def ranks_of(folder):
    """Pids of processes that work on a job below `folder`."""
    found = []
    for proc in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{proc}/cmdline").read_text() if proc.isdigit() else ""
        except OSError:
            continue
        if str(folder) in words and "experiments.worker" in words:
            found.append(proc)
    return found


def holders():
    """How many network namespaces there are besides this one's."""
    found = set()
    for proc in os.listdir("/proc"):
        if proc.isdigit():
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{proc}/ns/net"))
    return len(found)


@pytest.mark.case(22)
@pytest.mark.case(44)
def test_a_job_leaves_one_folder_with_all_its_records(tmp_path):
    status, said = train(tmp_path, "benchmark=resnet20_digits", "ratio=0.01")
    assert status == 0, said
    (folder,) = jobs(tmp_path)
    assert len(list(tmp_path.rglob("config.yaml"))) == 1
    assert yaml.safe_load((folder / "config.yaml").read_text())["compressor"]["ratio"] == 0.01
    assert read(folder / "status.json")["state"] == "done"
    environment = read(folder / "env.json")
    assert environment["network"] == "loopback"
    assert environment["origin"] == "measured"
    assert all(environment[key] for key in ("hardware", "torch_version", "code_fingerprint", "data_sha256"))
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2], "the first step is excluded"
    summary = read(folder / "summary.json")
    for step in steps:
        sent = step["payload_bytes"] / 8
        assert step["density"] == pytest.approx(sent / summary["parameters"])
        assert step["khat_over_k"] == pytest.approx(sent / int(0.01 * summary["parameters"]))
        parts = sum(step[f"{part}_ms"] for part in ("forward_backward", "exposed", "optimizer"))
        assert parts == pytest.approx(step["step_ms"], rel=1e-3), "times that are kept apart add up"
        assert step["compress_ms"] + step["exchange_ms"] + step["mean_ms"] <= step["exposed_ms"]
    assert summary["replicas_agree"] is True
    assert summary["host_reads"] >= 3, "is the gradient finite, how many exceed the threshold, how much comes"
    assert (folder / "logs" / "node0.log").exists()

    status, said = train(tmp_path, "benchmark=resnet20_digits", "ratio=0.01")
    assert (status, "1 reused" in said) == (0, True), said
    assert len(jobs(tmp_path)) == 1


@pytest.mark.case(34)
@pytest.mark.case(46)
def test_a_sweep_outlives_its_failures_and_lists_them(tmp_path):
    status, said = train(
        tmp_path, "-m", "benchmark=resnet20_digits", "training.batch_per_rank=16,100000", "optimizer.lr=0.1,1e30",
        "model=resnet20,lstm", "training.steps=3",
    )  # fmt: skip
    assert status == 1, said
    table = said[said.index("Jobs") :]
    assert "4 skipped" in said
    assert "needs dataset.symbols, which dataset digits does not have" in said
    states = {}
    for folder in jobs(tmp_path):
        state = read(folder / "status.json")
        states.setdefault(state["state"], []).append(state)
    assert {name: len(found) for name, found in states.items()} == {"done": 1, "diverged": 1, "failed": 2}
    assert re.search(
        r": diverged rank [01]: the gradient is not finite on this rank: conv\.weight, .* and \d+ more", said
    )
    assert re.search(r": failed rank [01]: .*training.batch_per_rank", said)
    assert [len(re.findall(rf"│ {state} +│", table)) for state in ("done", "diverged", "failed")] == [1, 1, 2]
    assert all("Traceback" in state["traceback"] for state in states["failed"] + states["diverged"])
    assert not ranks_of(tmp_path)


@pytest.mark.case(47)
def test_a_killed_sweep_resumes(tmp_path):
    words = ("-m", "benchmark=resnet20_digits", "compressor=topk,none", "ratio=0.1,0.01")
    with subprocess.Popen(command(*words), cwd=tmp_path, env=HERE, stdout=subprocess.PIPE, text=True) as sweep:
        assert sweep.stdout is not None
        assert "done" in sweep.stdout.readline()
        until = time.time() + 60
        while not ranks_of(tmp_path) and time.time() < until:
            time.sleep(0.1)
        sweep.send_signal(signal.SIGKILL)  # no chance to tidy up
        sweep.wait(30)
    until = time.time() + 30
    while ranks_of(tmp_path) and time.time() < until:
        time.sleep(0.2)
    assert not ranks_of(tmp_path), "ranks outlived their launcher"

    status, said = train(tmp_path, *words, "--status")
    assert status == 0, said
    assert "1 reused, 3 missing" in said

    status, said = train(tmp_path, *words)
    assert status == 0, said
    assert "2 done, 2 reused" in said, "one was there, and dense has no ratio"

    status, said = train(tmp_path, *words)
    assert "4 reused" in said


@pytest.mark.netns
def test_ctrl_c_takes_everything_down(tmp_path):
    reason = unavailable()
    if reason:
        pytest.skip(reason)
    before = holders()
    words = ("benchmark=resnet20_digits", "network=shaped", "network.rate=100mbit", "training.steps=100000")
    with subprocess.Popen(command(*words), cwd=tmp_path, env=HERE, stdout=subprocess.PIPE, text=True) as job:
        until = time.time() + 60
        while time.time() < until and not list(tmp_path.glob("outputs/smoke/jobs/*/steps.jsonl")):
            time.sleep(0.1)
        assert ranks_of(tmp_path)
        assert holders() > before
        job.send_signal(signal.SIGINT)
        try:
            job.wait(60)
        finally:
            job.kill()
    assert job.returncode == 1
    until = time.time() + 20
    while time.time() < until and (ranks_of(tmp_path) or holders() > before):
        time.sleep(0.2)
    assert not ranks_of(tmp_path)
    assert holders() <= before, "a namespace outlived its sweep"
    (folder,) = jobs(tmp_path)
    assert read(folder / "status.json")["reason"] == "interrupted"


@pytest.mark.case(61)
def test_missing_data_is_said_before_any_rank_starts(tmp_path):
    status, said = train(tmp_path, "benchmark=lstm_ptb", SIDCO_DATA=str(tmp_path / "data"), SIDCO_CACHE=str(tmp_path))
    assert status == 1
    said = re.sub(r"\s+", " ", said)
    assert str(tmp_path / "data" / "ptb") in said
    assert "benchmark=lstm_stdlib" in said
    assert read(jobs(tmp_path)[0] / "status.json")["state"] == "failed"


@pytest.mark.case(49)
@pytest.mark.case(52)
@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("ratio=1/1000", "ratio must be a number in (0, 1], got '1/1000'"),
        ("compresor=topk", "compresor"),
        ("compressor=topkk", "sidco_e"),
    ],
)
def test_bad_words_end_at_once_and_leave_nothing(tmp_path, word, says):
    status, said = train(tmp_path, word)
    assert status != 0
    assert says in said
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_shaped_runs_over_loopback_and_says_so(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "ip").symlink_to("/bin/false")  # found first, and refuses everything
    (tools / "tc").symlink_to("/bin/false")
    (tools / "unshare").symlink_to("/bin/false")
    words = ("benchmark=resnet20_digits", "network=shaped")
    status, said = train(tmp_path, *words, PATH=f"{tools}:{os.environ['PATH']}")
    assert status == 0, said
    assert "Links cannot be shaped here" in said
    (folder,) = jobs(tmp_path)
    assert "loopback" in folder.name
    assert read(folder / "env.json")["network"] == "loopback"
