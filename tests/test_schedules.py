"""The learning rate by hand, step by step; which parameters decay; epochs and time as the measure of a run."""

import json
import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
import yaml
from conftest import ROOT
from fabricated import MOMENTUM, write_job
from test_checkpoint import Memory, same_bits, trainer
from test_clip import weights
from test_train import jobs, read, train

from experiments import report, results
from experiments.artifacts.convergence import CONVERGENCE
from experiments.artifacts.speedup import SPEEDUP
from experiments.build import ConfigError, build, check
from experiments.data.images import Digits
from experiments.recipe import in_steps, recipe
from experiments.schedule import Schedule, groups
from sidco.workers import weights_sha256

CIFAR = {"warmup": 5, "milestones": [80, 120], "recipe_epochs": 140}
NODE = {"_target_": "experiments.schedule.Schedule"}


def factors(schedule, steps, per_epoch, total):
    return {step: pytest.approx(schedule.factor(step, per_epoch, total)) for step in steps}


# --- the factor ---


def test_a_constant_rate_is_one():
    assert {Schedule().factor(step, 3, 50) for step in range(50)} == {1.0}


def test_warm_up_and_decay_by_hand():
    """Ten steps an epoch: 50 steps of warm-up, of which the first already moves."""
    by_hand = {0: 1 / 50, 1: 2 / 50, 24: 0.5, 48: 49 / 50, 49: 1, 50: 1, 799: 1, 800: 0.1, 1199: 0.1, 1200: 0.01}
    assert factors(Schedule(**CIFAR), by_hand, per_epoch=10, total=1400) == by_hand


def test_milestones_are_epochs_whatever_the_length_of_the_run_unless_it_is_scaled():
    plain, scaled = Schedule(**CIFAR), Schedule(**CIFAR, scaled=True)
    by_hand = {0: 0.02, 49: 1, 279: 1}
    assert factors(plain, by_hand, per_epoch=10, total=280) == by_hand
    by_hand = {0: 0.1, 4: 0.5, 9: 1, 159: 1, 160: 0.1, 239: 0.1, 240: 0.01}  # 280 steps count as 140 epochs
    assert factors(scaled, by_hand, per_epoch=10, total=280) == by_hand


@pytest.mark.parametrize("total", [9, 776, 1001, 90_000])
def test_scaled_milestones_fall_on_the_first_step_past_their_share(total):
    schedule = Schedule(milestones=[30, 60, 80], recipe_epochs=90, scaled=True)
    drops = [step for step in range(1, total) if schedule.factor(step, 1, total) < schedule.factor(step - 1, 1, total)]
    assert drops == [math.ceil(total * share / 9) for share in (3, 6, 8)]


def test_a_linear_fall_by_hand():
    schedule = Schedule(warmup=1, to_zero=True)  # of 3 epochs of 4 steps
    rates = [schedule.factor(done, 4, 12) for done in range(12)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])
    assert str(schedule) == "1 warm-up epochs, then linearly to 0"


def test_the_linear_schedule_of_short_trainings(composed):
    schedule = build(check(composed("profile=convergence", "benchmark=resnet20_cifar10"))["schedule"])
    assert schedule == Schedule(warmup=0.5, to_zero=True)


def test_the_rate_is_divided_after_each_epoch():
    schedule = Schedule(divisor=1.01)
    by_hand = {0: 1, 4: 1, 5: 1 / 1.01, 9: 1 / 1.01, 10: 1 / 1.01**2, 749: 1.01**-149}
    assert factors(schedule, by_hand, per_epoch=5, total=750) == by_hand


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"warmup": -1}, "warmup must be at least 0 epochs, got -1"),
        ({"milestones": [80, 80]}, "milestones must be rising"),
        ({"milestones": [0, 80]}, "milestones must be rising"),
        ({"gamma": 0}, r"gamma must be in \(0, 1\]"),
        ({"gamma": math.nan}, r"gamma must be in \(0, 1\]"),
        ({"divisor": 0.5}, "divisor must be at least 1"),
        ({"recipe_epochs": 0}, "recipe_epochs must be null or above 0"),
        ({"scaled": True}, "scaled must be false where recipe_epochs is null"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(wrong, says):
    with pytest.raises(ValueError, match=f"schedule.{says}"):
        Schedule(**wrong)


@pytest.mark.parametrize(
    ("benchmark", "rate", "batch", "momentum", "decay", "schedule", "epochs", "cap", "clip"),
    [
        ("lstm_ptb", 22, 20, None, None, "constant", 30, None, 0.25),
        ("resnet20_cifar10", 0.1, 512, 0.9, 1e-4, "5 warm-up epochs, x0.1 at epochs 80 120", 140, None, None),
        ("vgg16_cifar10", 0.1, 512, 0.9, 1e-4, "5 warm-up epochs, x0.1 at epochs 80 120", 140, None, None),
        ("resnet50_imagenet", 0.2, 160, 0.875, 6.1e-5, "x0.1 at epochs 30 60 80", 90, 18_000, None),
        ("vgg19_imagenet", 0.05, 160, 0.875, 6.1e-5, "x0.1 at epochs 30 60 80", 90, 18_000, None),
    ],
)
def test_recipes_are_those_of_the_released_code(
    composed, benchmark, rate, batch, momentum, decay, schedule, epochs, cap, clip
):
    """PAPER.md section 4."""
    config = check(composed(f"benchmark={benchmark}", "profile=paper"))
    training, optimizer = config["training"], config["optimizer"]
    assert (optimizer["lr"], optimizer.get("momentum"), optimizer.get("weight_decay")) == (rate, momentum, decay)
    assert str(build(config["schedule"])) == schedule
    assert (training["batch_per_rank"], training["epochs"], training["time_cap_s"]) == (batch, epochs, cap)
    assert (training["clip_norm"], training["momentum"]) == (clip, momentum or 0)
    assert training["decay_1d"] is ("cifar10" not in benchmark)
    assert config["workers"]["world_size"] == 8


def test_the_speech_recipe_divides_the_rate_each_epoch(composed):
    assert str(build(check(composed("schedule=an4"))["schedule"])) == "/1.01 an epoch"


# --- in training ---


class Rates(Memory):
    """Keeps the learning rates too, and is rank 0's clock."""

    def __init__(self, clock=()):
        super().__init__()
        self.rates, self.clock = [], list(clock)

    def log(self, step, **scalars):
        super().log(step, **scalars)
        self.rates.append(scalars["learning_rate"])

    def agreed(self, seconds):
        return self.clock.pop(0)


def scheduled(config, steps, schedule):
    """Four steps are an epoch."""
    one = trainer(config, steps)
    one.schedule = schedule
    return one


def test_each_step_is_taken_at_its_rate_and_a_resumed_run_takes_the_same(composed):
    config, schedule = check(composed("compressor=topk", "ratio=0.05")), Schedule(warmup=1, milestones=[2])
    (whole := scheduled(config, 10, schedule)).run(book := Rates(), None)
    assert book.rates == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5, 0.5, 0.5, 0.5, 0.05, 0.05])

    (first := scheduled(config, 5, schedule)).run(halves := Rates(), None)
    state, second = first.state_dict(), scheduled(config, 10, schedule)
    second.load_state_dict(state)
    second.run(halves, None)
    assert (halves.rates, halves.steps) == (book.rates, book.steps)
    assert weights_sha256(second.workers.module) == weights_sha256(whole.workers.module)
    assert same_bits(second.optimizer.state_dict(), whole.optimizer.state_dict())


def test_the_rate_moves_the_weights(composed):
    config = check(composed("compressor=dense"))
    at_start, still = (scheduled(config, 1, Schedule(warmup=warmup)) for warmup in (0, 1e6))
    moved = []
    for one in (at_start, still):
        before = weights(one)
        one.run(Rates(), None)
        moved.append((weights(one) - before).abs().max().item())
    assert moved[0] > 1e-3
    assert 0 < moved[1] < 1e-6


def test_step_space_is_scaled_by_the_rate_of_the_step(composed):
    one = scheduled(check(composed("compressor=topk", "training.step_space=true")), 4, Schedule(warmup=2))
    seen, step = [], one.step
    one.step = lambda *args: (step(*args), seen.append(one.workers.scale))[0]
    one.run(Rates(), None)
    assert seen == pytest.approx([0.5 / 8, 0.5 / 4, 0.5 * 3 / 8, 0.5 / 2])


def test_step_space_with_several_rates_is_refused_at_the_start(composed):
    one = trainer(check(composed("compressor=topk", "training.step_space=true")), 4)
    first, *others = one.workers.module.parameters()
    several = torch.optim.SGD([{"params": [first], "lr": 0.25}, {"params": others}], lr=0.5)
    with pytest.raises(ValueError, match=r"step_space needs one learning rate for all parameters, got \[0\.25, 0\.5\]"):
        replace(one, optimizer=several)


# --- weight decay ---


def test_decay_leaves_one_dimension_alone_where_the_recipe_says_so():
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 1), torch.nn.BatchNorm2d(3), torch.nn.Linear(3, 2))
    for decay_1d in (True, False):
        found = groups(module, decay_1d)
        everything = [p for group in found for p in group["params"]]
        assert {id(p) for p in everything} == {id(p) for p in module.parameters()}
        assert len(everything) == 6
        torch.nn.init.ones_(module[0].bias)
        before = [p.detach().clone() for p in module.parameters()]
        optimizer = torch.optim.SGD(found, lr=0.1, weight_decay=0.5)
        for p in module.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        for p, q in zip(module.parameters(), before, strict=True):
            kept = 1.0 if p.dim() == 1 and not decay_1d else 1 - 0.1 * 0.5
            torch.testing.assert_close(p.detach(), kept * q)


# --- how long ---


def test_the_time_for_training_is_rank_0s_and_ends_between_steps(composed):
    one = trainer(check(composed("compressor=topk", "training.time_cap_s=60")), 50)
    one.seconds = 1e6  # its own clock decides nothing
    summary = one.run(book := Rates(clock=[0.0, 59.9, 60.0]), None)
    assert (summary["steps_done"], len(book.steps), book.clock) == (20, 20, [])
    assert [step for step, _ in book.points] == [3, 6, 9, 12, 15, 18]


def test_without_a_cap_nobody_is_asked(composed):
    assert trainer(check(composed("compressor=topk")), 12).run(Rates(), None)["steps_done"] == 12


@pytest.mark.usefixtures("folders")
def test_epochs_are_counted_in_steps_once_the_data_is_there(composed):
    often = ("training.evaluate_every=1", "training.checkpoint_every=2")
    words = ("benchmark=resnet20_digits", "training.epochs=2.5", "training.excluded_steps=3")
    config, data = check(composed(*words, *often)), Digits()
    assert config["training"]["steps"] is None, "of epochs nobody knows yet"
    data.prepare()
    counted = in_steps(config, data)["training"]  # 1500 images, 2 ranks of 64: 11 steps an epoch
    assert (counted["steps"], counted["excluded_steps"]) == (28 - 3, 3)
    assert (counted["evaluate_every"], counted["checkpoint_every"]) == (11, 22)
    assert in_steps(check(composed("benchmark=resnet20_digits")), data)["training"]["steps"] == 20
    for words in (["training.epochs=0.1"], ["training.epochs=2", "capture.steps=[22]"]):
        with pytest.raises(ConfigError, match=r"training\.epochs=.* are \d+ steps: expected more than"):
            in_steps(check(composed("benchmark=resnet20_digits", *words)), data)


def test_a_job_in_epochs_with_a_schedule_and_a_cap_on_real_ranks(tmp_path):
    """Eleven steps are an epoch; the clock is looked at before the eleventh."""
    words = ("training.epochs=1", "training.time_cap_s=1e-6", "training.evaluate_every=1", "schedule.warmup=1")
    status, said = train(tmp_path, "benchmark=resnet20_digits", "ratio=0.01", "training.decay_1d=false", *words)
    assert status == 0, said
    (folder,) = jobs(tmp_path)
    training = yaml.safe_load((folder / "config.yaml").read_text())["training"]
    assert (training["epochs"], training["steps"], training["evaluate_every"]) == (1.0, 10, 11)
    assert read(folder / "summary.json")["steps_done"] == 10
    assert read(folder / "summary.json")["top5"] >= read(folder / "summary.json")["metric_value"]
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert [step["learning_rate"] for step in steps] == pytest.approx([0.1 * (step + 1) / 11 for step in range(1, 10)])
    (row,) = results.read(tmp_path / "outputs" / "smoke").to_dict("records")
    assert (row["steps_timed"], row["steps_total"], row["schedule"]) == (9, 10, "1 warm-up epochs")


# --- in tables ---


def test_rows_state_the_schedule_and_rows_that_differ_in_it_are_no_baseline(tmp_path):
    same = {"optimizer": MOMENTUM, "schedule": {**NODE, **CIFAR}, "training": {"decay_1d": False}}
    write_job(tmp_path, "none", [50] * 3, **same)
    write_job(tmp_path, "topk", [50] * 3, ratio=0.1, **same)
    write_job(tmp_path, "dgc", [50] * 3, ratio=0.1, optimizer=MOMENTUM)
    table = report.write(tmp_path)["speedup"].table.set_index("label")
    assert table["schedule"].to_dict() == {
        "none": "5 warm-up epochs, x0.1 at epochs 80 120",
        "topk": "5 warm-up epochs, x0.1 at epochs 80 120",
        "dgc": "constant",
    }
    assert table["speedup_over_fp32"].isna().to_dict() == {"none": False, "topk": False, "dgc": True}
    text = (tmp_path / "REPORT.md").read_text()
    shared = "- all rows: no memory; momentum 0.9 after compression; weight decay 0.0001"
    rate = "learning rate 0.1; rate with 5 warm-up epochs, x0.1 at epochs 80 120"
    assert f"{shared} (not of 1-D parameters); {rate}" in text
    assert f"{shared}; learning rate 0.1; constant rate" in text


def test_the_artifacts_of_long_runs_state_the_schedule_too(tmp_path):
    same = {"optimizer": MOMENTUM, "schedule": {**NODE, **CIFAR}, "training": {"decay_1d": False}}
    for name, ratio in (("none", None), ("sidco_e", 0.1)):
        write_job(tmp_path, name, [50] * 120, ratio=ratio, **same)
    parts = report.write(tmp_path)
    for name in ("loss_curves", "estimation"):
        assert "(not of 1-D parameters); learning rate 0.1; rate with 5 warm-up epochs" in parts[name].body


def test_a_configuration_without_the_newer_keys_trained_at_a_constant_rate(tmp_path):
    path = write_job(tmp_path, "topk", [50] * 3, ratio=0.1, optimizer=MOMENTUM)
    old = yaml.safe_load((path / "config.yaml").read_text())
    assert not {"schedule"} & old.keys()
    assert not {"decay_1d", "epochs", "time_cap_s"} & old["training"].keys()
    said = recipe(old)
    assert (said["schedule"], said["decay_1d"]) == ("constant", True)


@pytest.mark.parametrize("artifact", [SPEEDUP, CONVERGENCE], ids=["speedup", "convergence"])
def test_a_published_table_without_the_newer_columns_can_still_be_drawn(tmp_path, artifact):
    for seed in (1, 2):
        write_job(tmp_path, "none", [50] * 4, seed=seed, every=2, quality=(400, 200))
    runs = results.read(tmp_path).drop(columns=["schedule", "decay_1d"])
    assert list(artifact.draw(runs)["schedule"]) == ["constant"]


def test_fewer_steps_than_planned_are_a_row_only_where_the_time_was_used_up(tmp_path):
    write_job(tmp_path, "topk", [50] * 3, ratio=0.1, training={"steps": 100}, summary={"steps_done": 7})
    write_job(tmp_path, "dgc", [50] * 3, ratio=0.1, training={"steps": 100})
    write_job(tmp_path, "none", [50] * 3, training={"steps": 100}, summary={"steps_done": 8})
    rows = results.read(tmp_path)
    assert list(rows["name_compressor"]) == ["topk"]
    assert (rows["steps_timed"][0], rows["steps_total"][0]) == (3, 7)
    reasons = results.states(tmp_path).set_index("job")["reason"]
    assert all("steps.jsonl is missing or cut short" in reasons[name] for name in reasons.index if "topk" not in name)


def test_tables_of_older_code_are_read():
    """They have none of the newer columns."""
    runs = pd.read_csv(ROOT / "results" / "reference" / "2x-amd-epyc" / "convergence" / "runs.csv")
    runs = runs.drop(columns=["schedule", "decay_1d"])
    assert set(CONVERGENCE.draw(CONVERGENCE.select(runs))["schedule"]) == {"constant"}
