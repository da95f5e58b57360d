"""A job that was killed goes on from its checkpoint, bit for bit; half-written ones are never taken for whole."""

import itertools
import signal
import subprocess
import time

import pytest
import torch
from conftest import ROOT
from test_train import HERE, command, jobs, ranks_of, read, train

from experiments.build import build, check
from experiments.checkpoint import WrongCheckpoint, latest, load, save, step_of
from experiments.loop import Trainer
from sidco.workers import VirtualWorkers, weights_sha256

COMPRESSORS = sorted(path.stem for path in (ROOT / "conf" / "compressor").glob("*.yaml"))


class Words:
    """A data set of random tokens, two epochs of which are less than the steps of the test."""

    def train_batches(self, rank, world_size, batch_size, epoch, seed):
        generator = torch.Generator().manual_seed(seed * 1000 + epoch * 10 + rank)
        for _ in range(self.steps_per_epoch(world_size, batch_size)):
            tokens = torch.randint(0, 30, (6, batch_size), generator=generator)
            yield tokens[:-1], tokens[1:]

    def valid_batches(self, batch_size):
        return self.train_batches(9, 1, batch_size, 0, 0)

    def steps_per_epoch(self, world_size, batch_size):
        return 4


def trainer(config, steps):
    """Two virtual workers on a small LSTM with dropout and carried state."""
    torch.manual_seed(1)
    model = build({**config["model"], "symbols": 30, "embedding": 8, "hidden": 16, "dropout": 0.3})
    workers = VirtualWorkers(model, build(config["method"]), build(config["plan"]), world_size=2, seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    training = {**config["training"], "steps": steps, "excluded_steps": 0, "compute_only_steps": 0}
    training |= {"valid_batches": 2, "evaluate_every": 3, "batch_per_rank": 3}
    torch.manual_seed(2)
    return Trainer(workers, build(config["task"]), Words(), optimizer, training, (0, 1), 2, 7)


class Memory:
    """A book that keeps what the test looks at."""

    def __init__(self):
        self.steps, self.points = [], []

    def log(self, step, **scalars):
        self.steps.append((step, scalars["loss"], scalars["payload_bytes"]))

    def quality(self, points):
        self.points = [(point["step"], point["metric_value"]) for point in points]

    def save(self, step, state):
        raise AssertionError("nobody asked for a checkpoint")


def same_bits(a, b):
    """Of two states: containers of tensors and numbers."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_bits(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same_bits(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@pytest.mark.case(2)
@pytest.mark.case(51)
@pytest.mark.parametrize("name", [name for name in COMPRESSORS if name != "none"])
def test_five_and_five_steps_are_ten(composed, tmp_path, name):
    config = check(composed(f"compressor={name}", "ratio=0.05"))
    whole, log = trainer(config, 10), Memory()
    whole.run(log, None)
    random_state = torch.get_rng_state()

    first, halves = trainer(config, 5), Memory()
    first.run(halves, None)
    save(tmp_path, first.done, first.state_dict(), 0, 1, lambda: None)
    checkpoint = latest(tmp_path)
    assert step_of(checkpoint) == 5
    second = trainer(config, 10)
    torch.manual_seed(99)  # whatever was before, the checkpoint's random state holds
    saved = torch.load(checkpoint / "rank0.pt", weights_only=True)  # what `load` does too: any reader may
    second.load_state_dict(load(checkpoint, 0, 1))
    assert same_bits(second.workers.state_dict(), saved["workers"])
    second.run(halves, None)
    assert halves.steps == log.steps
    assert halves.points == log.points
    assert [step for step, _ in log.points] == [3, 6, 9]
    assert weights_sha256(second.workers.module) == weights_sha256(whole.workers.module)
    # residuals, momentum, factors, stage controllers, seeds
    assert same_bits(second.workers.state_dict(), whole.workers.state_dict())
    assert same_bits(second.optimizer.state_dict(), whole.optimizer.state_dict())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_a_stage_controller_is_among_what_is_compared(composed):
    one = trainer(check(composed("compressor=sidco_e", "ratio=0.05")), 6)
    one.run(Memory(), None)
    ((first, _),) = one.workers.state_dict().values()
    residual, controller = first
    assert bool(residual.any())
    assert controller[4] == 1, "calls since the adaptation after the fifth"


@pytest.mark.case(2)
def test_another_number_of_ranks_is_refused(tmp_path):
    for rank in (1, 0):
        save(tmp_path, 3, {"done": 3}, rank, 2, lambda: None)
    assert load(latest(tmp_path), 1, 2) == {"done": 3, "rank": 1, "world_size": 2}
    with pytest.raises(WrongCheckpoint, match="written by 2 ranks, this job has 3"):
        load(latest(tmp_path), 0, 3)


def test_the_last_good_checkpoint_survives_a_half_written_one(tmp_path):
    save(tmp_path, 3, {"done": 3}, 0, 1, lambda: None)

    def killed():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # after its own file, while it waits for the other ranks
        save(tmp_path, 6, {"done": 6}, 0, 1, killed)
    assert step_of(latest(tmp_path)) == 3
    assert load(latest(tmp_path), 0, 1)["done"] == 3
    save(tmp_path, 6, {"done": 6}, 0, 1, lambda: None)
    assert [step_of(path) for path in (tmp_path / "checkpoints").iterdir()] == [6]


@pytest.mark.case(2)
@pytest.mark.case(47)
def test_a_killed_job_goes_on_from_its_checkpoint(tmp_path):
    words = ("benchmark=resnet20_digits", "ratio=0.01", "training.steps=150", "training.checkpoint_every=25")
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    status, said = train(tmp_path / "whole", *words)
    assert status == 0, said
    with subprocess.Popen(command(*words), cwd=tmp_path / "killed", env=HERE, stdout=subprocess.DEVNULL) as job:
        until = time.time() + 60
        while time.time() < until and not list(tmp_path.glob("killed/outputs/smoke/jobs/*/checkpoints/step*")):
            time.sleep(0.02)
        job.send_signal(signal.SIGKILL)
        job.wait(30)
    until = time.time() + 30
    while ranks_of(tmp_path / "killed") and time.time() < until:
        time.sleep(0.2)
    status, said = train(tmp_path / "killed", *words)
    assert status == 0, said
    (whole,), (resumed,) = jobs(tmp_path / "whole"), jobs(tmp_path / "killed")
    assert whole.name == resumed.name
    summaries = [read(folder / "summary.json") for folder in (whole, resumed)]
    assert summaries[1]["resumed_from_step"] in range(25, 151, 25)
    assert summaries[0]["weights_sha256"] == summaries[1]["weights_sha256"]
    steps = [[line.split(", ")[:2] for line in (f / "steps.jsonl").read_text().splitlines()] for f in (whole, resumed)]
    assert steps[0] == steps[1], "the same steps with the same losses, none twice and none missing"
    assert len(steps[0]) == 150


def test_virtual_workers_train_a_job(tmp_path):
    words = ("benchmark=resnet20_digits", "workers.virtual=true", "workers.world_size=4", "training.batch_per_rank=32")
    status, said = train(tmp_path, *words, "compressor=topk")
    assert status == 0, said
    (folder,) = jobs(tmp_path)
    assert read(folder / "env.json")["network"] == "virtual"
    assert read(folder / "summary.json")["world_size"] == 4
    losses = [line for line in itertools.chain((folder / "steps.jsonl").read_text().splitlines())]
    assert len(losses) == 2


@pytest.mark.parametrize(("target", "steps"), [(None, None), (1e9, 3), (0.0, None)])
def test_the_target_is_reached_when_the_metric_says_so_or_never(composed, target, steps):
    one = trainer(check(composed("compressor=topk")), 10)
    one.training |= {"target": target}
    summary, log = one.run(book := Memory(), None), book.points
    assert summary["steps_to_target"] == steps
    assert (summary["seconds_to_target"] is None) == (steps is None)
    assert len(log) == 3
