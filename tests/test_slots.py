"""Jobs at the same time on the slots of one node: who sits where, and that nobody disturbs or outlives another."""

import itertools
import json
import signal
import subprocess
import threading
import time

import pytest
from conftest import ROOT
from test_train import HERE, command, jobs, ranks_of, read, train

from experiments.build import ConfigError, check
from experiments.launch import job_folder
from experiments.network import unavailable
from experiments.slots import Pool, Seat, Ticket

PATIENCE_S = 60
WITNESS = """
import json, os, sys
from pathlib import Path
words = Path("/proc/self/cmdline").read_text().split("\\0")
if "experiments.worker" in words and "RANK" in os.environ:
    seen = {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")}
    Path(os.environ["SEEN"], f"{os.getpid()}.json").write_text(json.dumps({"folder": words[-2], **seen}))
"""


class Stage:
    """A pool whose jobs end when told to, and what was seen of them."""

    def __init__(self, slots):
        self.doors, self.seats, self.ended = {}, {}, {}
        self.pool = Pool(slots, began=lambda number: None, ended=self.ended.__setitem__)

    def add(self, number, needs=1, key=None):
        self.doors[number] = door = threading.Event()

        def run(seat):
            self.seats[number] = seat
            assert door.wait(PATIENCE_S)
            return f"{number} has run"

        self.pool.add(Ticket(number, needs, number if key is None else key, run))

    def sits(self, *numbers):
        """Wait until these have started; are they all?"""
        until = time.time() + PATIENCE_S
        while not set(numbers) <= self.seats.keys() and time.time() < until:
            time.sleep(0.01)
        return self.seats.keys() == set(numbers)

    def let_go(self, *numbers):
        """These end; the pool looks again when it is next spoken to."""
        for number in numbers:
            self.doors[number].set()
        until = time.time() + PATIENCE_S
        while not set(numbers) <= self.ended.keys() and time.time() < until:
            self.pool._advance(timeout=0.01)


@pytest.fixture
def stage(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = []
    yield lambda slots: made.append(Stage(slots)) or made[-1]
    for each in made:
        for door in each.doors.values():
            door.set()
        each.pool.stop()


def test_slots_are_taken_in_order_given_back_and_never_shared(stage):
    stage = stage(4)
    for number, needs in enumerate((2, 1, 3, 1)):
        stage.add(number, needs)
    assert stage.sits(0, 1), "three slots are free for nobody: the job of three waits, and none overtakes it"
    assert [stage.seats[n].slots for n in (0, 1)] == [(0, 1), (2,)]
    stage.let_go(0)
    assert stage.sits(0, 1, 2)
    assert stage.seats[2].slots == (0, 1, 3)
    stage.let_go(2)
    assert stage.sits(0, 1, 2, 3)
    stage.let_go(1, 3)
    stage.pool.wait()
    assert stage.ended == {n: f"{n} has run" for n in range(4)}


def test_twins_run_one_after_the_other_and_hold_nobody_up(stage):
    stage = stage(4)
    stage.add(0, key="dense")
    stage.add(1, key="dense")
    stage.add(2)
    assert stage.sits(0, 2)
    stage.let_go(0)
    assert stage.sits(0, 1, 2)


def test_stopping_tells_those_who_run_and_forgets_those_who_wait(stage):
    stage = stage(1)
    stage.add(0)
    stage.add(1)
    assert stage.sits(0)
    assert stage.seats[0].stop is not None
    threading.Thread(target=lambda: stage.seats[0].stop.wait(PATIENCE_S) and stage.doors[0].set()).start()
    stage.pool.stop()
    assert stage.ended == {0: "0 has run"}


@pytest.mark.parametrize(
    ("slots", "devices", "says"),
    [
        (0, None, "slots must be null or at least 1, got 0"),
        (4, "6,7", "slots=4 wants a GPU for each slot, but CUDA_VISIBLE_DEVICES=6,7 names 2: set slots=2"),
    ],
)
def test_slots_that_are_none_are_refused(monkeypatch, slots, devices, says):
    if devices:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    with pytest.raises(ConfigError, match=says):
        Pool(slots, began=print, ended=print)


@pytest.mark.parametrize(("given", "seen"), [("4,GPU-a,6,7", ("GPU-a", "6")), ("", ())])
def test_slots_are_those_of_the_devices_this_process_was_given(stage, monkeypatch, given, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    stage = stage(4)
    stage.add(0, needs=1)
    stage.add(1, needs=2)
    assert stage.sits(0, 1)
    seat = stage.seats[1]
    assert seat.variables(0, 2)["CUDA_VISIBLE_DEVICES"] == ",".join(seen)
    assert seat.variables(1, 1)["CUDA_VISIBLE_DEVICES"] == "".join(seen[1:])
    assert seat.port(29511) == 29511 + 1


def test_a_job_that_has_the_node_is_given_nothing_special():
    assert Seat().variables(0, 2) == {}
    assert Seat().port(29511) == 29511
    assert Seat().facts() == {"slots": None, "shared_node": False}
    assert Seat((0, 1), 2).facts() == {"slots": [0, 1], "shared_node": False}, "all slots: nobody beside it"


def test_slots_do_not_name_the_result(composed):
    assert len({job_folder(check(composed(f"slots={slots}"))) for slots in ("null", 1, 8)}) == 1


def overlap(a, b):
    return a["started"] < b["updated"] and b["started"] < a["updated"]


def test_two_jobs_at_a_time_and_a_failure_leaves_the_others_alone(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITNESS)
    (tmp_path / "seen").mkdir()
    status, said = train(
        tmp_path, "-m", "slots=4", "benchmark=resnet20_digits", "compressor=topk", "ratio=0.1,0.01",
        "training.batch_per_rank=16,100000", CUDA_VISIBLE_DEVICES=None,
        PYTHONPATH=f"{ROOT}:{tmp_path / 'site'}", SEEN=str(tmp_path / "seen"),
    )  # fmt: skip
    assert status == 1, said
    assert "[4/4]" in said
    assert "2 done, 2 failed" in said
    ended = {folder: read(folder / "status.json") for folder in jobs(tmp_path)}
    assert sorted(status["state"] for status in ended.values()) == ["done", "done", "failed", "failed"]
    seats = {folder: read(folder / "env.json") for folder in ended}
    assert all(seat["shared_node"] for seat in seats.values())
    together = [
        (seats[a]["slots"], seats[b]["slots"])
        for a, b in itertools.combinations(ended, 2)
        if overlap(ended[a], ended[b])
    ]
    assert together, "no two jobs ran at the same time"
    assert all(not set(a) & set(b) for a, b in together), "two jobs shared a slot"
    witnesses = [json.loads(path.read_text()) for path in (tmp_path / "seen").iterdir()]
    for folder, seat in seats.items():
        ranks = [seen for seen in witnesses if seen["folder"].endswith(folder.name)]
        assert {(seen["RANK"], seen["LOCAL_RANK"]) for seen in ranks} == {("0", "0"), ("1", "1")}
        assert {seen["CUDA_VISIBLE_DEVICES"] for seen in ranks} == {",".join(map(str, seat["slots"]))}
    assert not ranks_of(tmp_path)


def test_virtual_workers_take_one_slot_and_fail_fast_leaves_out_what_waits(tmp_path):
    status, said = train(
        tmp_path, "-m", "slots=1", "fail_fast=true", "benchmark=resnet20_digits", "compressor=topk",
        "workers.virtual=true", "training.batch_per_rank=100000,16",
    )  # fmt: skip
    assert status == 1, said
    assert "[2/2]" in said
    assert "1 skipped, 1 failed" in said
    (folder,) = jobs(tmp_path)
    assert read(folder / "env.json")["slots"] == [0]


def test_a_job_that_could_never_sit_is_refused_with_the_numbers(tmp_path):
    status, said = train(tmp_path, "slots=3", "workers.world_size=4", "benchmark=resnet20_digits")
    assert status == 1
    assert "configuration: the job needs 4 slots, one for each of workers.world_size=4, but there are slots=3" in said
    assert not (tmp_path / "outputs").exists()


def test_sigterm_takes_all_jobs_down(tmp_path):
    words = ("-m", "slots=4", "benchmark=resnet20_digits", "ratio=0.1,0.01", "training.steps=100000")
    with subprocess.Popen(command(*words), cwd=tmp_path, env=HERE, stdout=subprocess.PIPE, text=True) as sweep:
        until = time.time() + PATIENCE_S
        while time.time() < until and len(list(tmp_path.glob("outputs/smoke/jobs/*/steps.jsonl"))) < 2:
            time.sleep(0.1)
        assert len(ranks_of(tmp_path)) >= 4
        sweep.send_signal(signal.SIGTERM)
        try:
            sweep.wait(PATIENCE_S)
        finally:
            sweep.kill()
    assert sweep.returncode == 1
    assert not ranks_of(tmp_path)
    assert [read(folder / "status.json")["reason"] for folder in jobs(tmp_path)] == ["interrupted"] * 2


@pytest.mark.netns
def test_shaped_jobs_have_networks_of_their_own(tmp_path):
    """Namespaces, addresses and bridges have no name outside, so the same ones may exist twice."""
    reason = unavailable()
    if reason:
        pytest.skip(reason)
    status, said = train(
        tmp_path, "-m", "slots=4", "benchmark=resnet20_digits", "compressor=topk", "ratio=0.1",
        "network=shaped", "network.rate=100mbit,1gbit",
    )  # fmt: skip
    assert status == 0, said
    ended = [read(folder / "status.json") for folder in jobs(tmp_path)]
    assert any(overlap(a, b) for a, b in itertools.combinations(ended, 2))
    places = [read(folder / "env.json") for folder in jobs(tmp_path)]
    assert {(place["network"], place["rate_mbit_per_s"]) for place in places} == {("shaped", 100), ("shaped", 1000)}
    assert all(read(folder / "summary.json")["replicas_agree"] for folder in jobs(tmp_path))
