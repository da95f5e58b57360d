"""What a sweep would take: its jobs, their steps and messages, and hours that name where they come from."""

import pandas as pd
import pytest
from conftest import ROOT
from hydra import initialize_config_dir

from experiments import estimate
from experiments.build import ConfigError
from experiments.data.images import Digits
from experiments.estimate import Planned, measured, planned, table

DIGITS = ("benchmark=resnet20_digits",)
PARAMETERS = 269_434  # of ResNet-20 with one channel


@pytest.fixture
def sweep():
    """`sweep("compressor=none,topk")`: its jobs, and by reason those that would not run."""

    def plan(*words):
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            return planned(list(words))

    return plan


@pytest.fixture
def digits(sweep):
    """One dense job, and one for each compressor and ratio."""
    return sweep(*DIGITS, "compressor=none,bf16,topk,randomk,sign", "ratio=0.1,0.01")


def rows(*found):
    return pd.DataFrame(
        found, columns=["benchmark", "batch_per_rank", "seconds", "device", "hardware", "source"]
    ).astype({"seconds": float})


def test_equal_jobs_are_one(digits):
    jobs, refused = digits
    names = [job.config["names"]["compressor"] for job in jobs]
    assert names == ["none", "bf16", "topk", "topk", "randomk", "randomk", "sign"]
    assert not refused


def test_messages_are_what_is_aimed_at(digits):
    found = {(job.config["names"]["compressor"], job.config["ratio"]): job.message for job in digits[0]}
    assert {job.parameters for job in digits[0]} == {PARAMETERS}
    assert found["none", 0.01] == 4 * PARAMETERS
    assert found["bf16", 0.01] == 2 * PARAMETERS
    assert found["topk", 0.1] == 8 * 26_943  # a value and an index each
    assert found["randomk", 0.01] == 8 * 2_694
    assert found["sign", 0.01] is None, "no ratio: only a run can tell"


def test_a_coded_message_is_left_to_a_run(sweep):
    (job,), _ = sweep(*DIGITS, "compressor=topk", "wire=bf16")
    assert job.message is None


@pytest.mark.usefixtures("folders")
def test_steps_are_counted_or_said_to_be_unknown(sweep):
    Digits().prepare()
    (job,), _ = sweep(*DIGITS, "training.epochs=3", "compressor=topk")
    assert (job.steps, job.why) == (33, "")
    (job,), _ = sweep("benchmark=lstm_ptb", "training.epochs=3")
    assert job.steps is None
    assert "ptb.train.txt" in job.why
    (job,), _ = sweep("benchmark=lstm_ptb", "compressor=topk")
    assert job.steps == 24


@pytest.mark.usefixtures("folders")
def test_the_papers_profile_needs_no_images_to_be_planned(sweep):
    vision = "benchmark=resnet20_cifar10,vgg16_cifar10,resnet50_imagenet,vgg19_imagenet"
    jobs, refused = sweep("profile=paper", vision, "compressor=none,sidco_e")
    assert not refused
    found = {job.place for job in jobs}
    assert found == {
        ("resnet20_cifar10", 8, 512, 140 * 12),
        ("vgg16_cifar10", 8, 512, 140 * 12),
        ("resnet50_imagenet", 8, 160, 90 * 1000),
        ("vgg19_imagenet", 8, 160, 90 * 1000),
    }
    assert {job.parameters for job in jobs} == {269_722, 14_728_266, 25_557_032, 143_667_240}


def test_hours_are_those_of_all_devices_in_proportion_to_the_batch(digits):
    known = rows(("resnet20_digits", 32, 0.5, "GPU", "a", "b"), ("resnet20_digits", 64, 6.0, "CPU core", "a", "b"))
    (line,) = table(digits[0], known).to_dict("records")
    # seven jobs of 24 steps on two devices, a batch of 64: a second a step
    assert line["GPU-hours"] == f"{7 * 24 * 2 / 3600:.3g}"
    assert line["CPU core-hours"] == f"{7 * 24 * 2 * 6 / 3600:.3g}"
    assert (line["jobs"], line["steps a job"], line["workers x batch"]) == ("7", "24", "2 x 64")
    assert line["MB a message, by ratio"] == "dense 1.08/0.539, 0.1: 0.216, 0.01: 0.0216"


def test_what_was_not_measured_is_unknown_and_a_cap_is_a_bound(sweep, digits):
    other = rows(("lstm_ptb", 20, 1.0, "GPU", "a", "b"))
    assert table(digits[0], other)["GPU-hours"].tolist() == ["unknown"]
    capped, _ = sweep(*DIGITS, "compressor=none,topk", "training.time_cap_s=1800")
    assert table(capped, other)["GPU-hours"].tolist() == ["at most 2"]  # two jobs, two devices, half an hour
    slow = rows(("resnet20_digits", 64, 1e4, "GPU", "a", "b"))
    assert table(capped, slow)["GPU-hours"].tolist() == ["2"]


def test_jobs_that_do_not_go_together_are_skipped_and_typos_refused(sweep):
    jobs, refused = sweep(*DIGITS, "model=resnet20,lstm", "compressor=topk")
    assert len(jobs) == 1
    ((reason, words),) = refused.items()
    assert reason.startswith("skipped: model lstm needs dataset.symbols")
    assert "model=lstm" in words[0]
    jobs, refused = sweep("benchmark=resnet20_digits,resnet21", "compressor=topk", "ratio=0.1,2")
    assert len(jobs) == 1
    typo, ratio = sorted(refused)
    assert typo.startswith("refused: In 'config': Could not find 'benchmark/resnet21'")
    assert ratio.startswith("refused: ")
    assert "ratio must be a number in (0, 1], got 2" in ratio
    assert (len(refused[typo]), len(refused[ratio])) == (2, 1)


def test_the_whole_says_what_it_rests_on(capsys):
    status = estimate.main(["-m", *DIGITS, "compressor=none,topk", "ratio=0.01"])
    said = capsys.readouterr().out
    assert status == 0
    assert "ESTIMATE" in said
    assert "resnet20_digits" in said
    assert "unknown" in said
    assert "no row of a GPU: add one to results/seconds_per_step.csv" in said
    assert estimate.main(["benchmark=nonesuch"]) == 1
    assert "Could not find 'benchmark/nonesuch'" in capsys.readouterr().out


def test_the_seconds_that_are_committed_are_of_benchmarks_and_name_their_source():
    found = measured()
    assert set(found["benchmark"]) <= {path.stem for path in (ROOT / "conf" / "benchmark").glob("*.yaml")}
    assert (found["source"].str.len() > 20).all()


def test_seconds_without_a_source_are_refused(tmp_path):
    path = tmp_path / "seconds.csv"
    path.write_text("benchmark,batch_per_rank,seconds,device,hardware,source\nlstm_ptb,20,0.1,GPU,V100,\n")
    with pytest.raises(ConfigError, match="expected seconds above 0 and a source in each row"):
        measured(path)


def test_a_job_that_may_take_its_time_takes_all_its_steps(digits):
    job = digits[0][0]
    assert isinstance(job, Planned)
    assert job.hours(3600.0) == (24 * 2, False)
    assert job.hours(None) == (None, True)
