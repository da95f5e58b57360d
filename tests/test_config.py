"""What the command line accepts, and what it says to what it does not."""

import os
import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from conftest import ROOT
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, MissingConfigException

from experiments.build import ConfigError, Incompatible, build, check, digest, rate_mbit, scientific
from experiments.launch import job_folder
from experiments.progress import jobs_of_sweep
from experiments.recipe import compared
from experiments.tasks import Classification, LanguageModel
from sidco.compressors.sidco import Sidco
from sidco.feedback import MomentumCorrection
from sidco.method import Gathered

CONF = ROOT / "conf"
OF_THEIR_OWN = {"benchmark", "compressor", "method", "logger"}  # groups with tests of their own
COMBINED = ("model=vgg16,resnet20", "dataset=cifar10", "compressor=glob(sidco_*)")


def yamls(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


# each compressor on a text and on images; each benchmark plain, compressed, and with a momentum before compression
PAIRS = {(benchmark, name) for benchmark in yamls("benchmark") for name in ("none", "sidco_e", "dgc_full")}
PAIRS |= {(benchmark, name) for benchmark in ("lstm_ptb", "resnet20_cifar10") for name in yamls("compressor")}


@pytest.mark.parametrize(("benchmark", "compressor"), sorted(PAIRS))
def test_every_benchmark_takes_every_compressor(composed, benchmark, compressor):
    config = check(composed(f"benchmark={benchmark}", f"compressor={compressor}"))
    assert config["training"]["batch_per_rank"] > 0
    build(config["method"])
    build(config["optimizer"])


@pytest.mark.parametrize("group", sorted({path.name for path in CONF.iterdir() if path.is_dir()} - OF_THEIR_OWN))
def test_every_other_yaml_composes(composed, group):
    for name in yamls(group):
        with suppress(*([Incompatible] if group in ("model", "dataset") else [])):  # a model without its data
            check(composed(f"{group}={name}"))


@pytest.mark.case(49)
@pytest.mark.parametrize("ratio", ["1/1000", "0", "-1", "1.5", "nan", "'0,1'", "true", "null", "'1e-3'"])
def test_a_ratio_that_is_none_is_refused_with_the_range(composed, ratio):
    with pytest.raises(ConfigError, match=r"ratio must be a number in \(0, 1\], got .*write 0.001"):
        check(composed(f"ratio={ratio}"))


@pytest.mark.case(49)
def test_a_ratio_with_an_exponent_is_a_number(composed):
    assert build(check(composed("ratio=1e-3"))["compressor"]).ratio == 0.001


@pytest.mark.case(52)
@pytest.mark.parametrize(
    "typo", ["compresor=topk", "compressor.rato=0.1", "training.step=3", "+training.foo=3", "+schedule.foo=3"]
)
def test_an_unknown_key_is_refused(composed, typo):
    with pytest.raises((ConfigCompositionException, ConfigError)) as caught:
        check(composed(typo))
    assert typo.lstrip("+").split("=")[0].split(".")[-1] in str(caught.value)


@pytest.mark.case(52)
def test_an_unknown_choice_is_answered_with_the_list(composed):
    with pytest.raises(MissingConfigException, match=r"(?s)compressor/topkk.*topk"):
        composed("compressor=topkk")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["network.rate=100mbit"], "add network=shaped"),
        (["network=shaped", "network.rate=fast"], "100mbit or 1gbit, got 'fast'"),
        (["network=shaped", "network.rate=0mbit"], "number above 0"),
        (["network=shaped", "workers.world_size=1"], "at least 2"),
        (["network=shaped", "network.rate=null"], "needs network.rate"),
        (["training.steps=0"], "training.steps must be at least 1"),
        (["compressor=none", "feedback=ef"], "drop feedback="),
        (["compressor=none", "wire=bf16"], "drop wire="),
        (["compressor=sign", "wire=bf16"], "use wire=plain"),
        (["benchmark=resnet20_digits", "feedback=momentum"], "set optimizer.momentum=0"),
        (["training.local_clip=true"], "feedback.clip must be set"),
        (["training.target=90"], "needs training.evaluate_every"),
        (["training.evaluate_every=5", "training.valid_batches=0"], "needs training.valid_batches"),
        (["training.checkpoint_every=0"], "must be null or at least 1"),
        (["training.epochs=0"], r"training\.epochs must be null or above 0"),
        (["training.time_cap_s=-1"], r"training\.time_cap_s must be null or above 0"),
        (["schedule.warmup=-1"], r"schedule\.warmup must be at least 0 epochs, got -1"),
        (["schedule.milestones=[80,20]"], r"schedule\.milestones must be rising numbers"),
        (["schedule.scaled=true"], r"schedule\.scaled must be false where recipe_epochs is null"),
        (["compressor.rule=best"], "rule must be one of paper, sign, trend"),
        (["compressor.stages=0"], "stages must be"),
        (["plan=capped", "plan.mib=-1"], "mib must be"),
    ],
)
def test_contradictions_are_refused_with_the_remedy(composed, overrides, says):
    with pytest.raises(ConfigError, match=says):
        check(composed(*overrides))


def test_what_does_not_go_together_is_named(composed):
    with pytest.raises(Incompatible, match=r"model lstm_small needs dataset\.symbols, which dataset digits does not"):
        check(composed("dataset=digits"))


@pytest.fixture
def combined():
    """The jobs of a command that names a model, data and compressors, and no benchmark."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return jobs_of_sweep(compose("config", return_hydra_config=True).hydra, list(COMBINED))


def test_models_data_and_compressors_combine_without_a_benchmark(composed, combined):
    names, sizes = set(), set()
    for job in combined:
        config = check(composed(*job))
        names.add((config["names"]["benchmark"], config["names"]["compressor"]))
        with torch.device("meta"):
            model = build(config["model"])
        sizes.add(sum(p.numel() for p in model.parameters()))
        build(config["optimizer"])(model.parameters())
        assert type(build(config["task"])) is Classification
        assert (config["optimizer"]["lr"], config["training"]["clip_norm"]) == (0.1, None), "not those of a text"
        assert type(build(config["method"]).compressor.inner) is Sidco
    models, ours = ("vgg16+cifar10", "resnet20+cifar10"), [path.stem for path in CONF.glob("compressor/sidco_*.yaml")]
    assert len(combined) == len(models) * len(ours) > 4
    assert names == {(model, name) for model in models for name in ours}
    assert sizes == {14_728_266, 269_722}


def test_the_command_line_combines_them_too(tmp_path):
    """`glob` is resolved by Hydra, which counts the jobs for us too."""
    words = [sys.executable, "-m", "experiments.train", "-m", "--status", *COMBINED]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[8/8] resnet20+cifar10 sidco_p 0.01 loopback: missing" in done.stdout
    assert not list(tmp_path.glob("outputs/*/jobs"))


def test_text_and_images_bring_their_task_and_their_optimizer(composed):
    for data, task, momentum in (("ptb", LanguageModel, None), ("digits", Classification, 0.9)):
        config = check(composed(f"dataset={data}", "model=lstm" if data == "ptb" else "model=resnet20"))
        assert type(build(config["task"])) is task
        assert config["optimizer"].get("momentum") == momentum


@pytest.mark.parametrize(
    ("benchmark", "momentum"), [("lstm_ptb", 0), ("resnet20_cifar10", 0.9), ("vgg19_imagenet", 0.875)]
)
def test_momentum_before_compression_is_that_of_the_dense_recipe(composed, benchmark, momentum):
    dense, dgc = (check(composed(f"benchmark={benchmark}", f"compressor={name}")) for name in ("none", "dgc_full"))
    correction = build(dgc["method"]).compressor
    assert isinstance(correction, MomentumCorrection)
    assert correction.momentum == momentum == dgc["training"]["momentum"]
    assert (dgc["optimizer"].get("momentum") or 0) == 0
    assert compared(dense) == compared(dgc)


def test_groups_combine_freely(composed):
    config = check(
        composed("benchmark=lstm_ptb", "dataset=pd_lm", "model.hidden=300", "compressor=dgc", "feedback=none")
    )
    assert (config["dataset"]["name"], config["model"]["hidden"]) == ("pd_lm", 300)
    assert type(build(config["method"]).compressor).__name__ == "DgcSampling"


def test_the_method_is_what_the_yaml_says(composed):
    method = build(check(composed("compressor=sidco_e", "ratio=0.001", "compressor.stages=3"))["method"])
    assert isinstance(method, Gathered)
    assert isinstance(method.compressor.inner, Sidco)
    assert (method.compressor.inner.ratio, method.compressor.inner.stages) == (0.001, 3)
    assert check(composed("compressor=none"))["method"] is None


def test_rates_are_read_in_their_units():
    assert [rate_mbit(rate) for rate in ("100mbit", "1gbit", "2.5gbit", "500kbit")] == [100, 1000, 2500, 0.5]


def test_dense_jobs_of_a_grid_over_ratios_are_one(composed):
    folders = {str(job_folder(check(composed("compressor=none", f"ratio={ratio}")))) for ratio in (0.1, 0.01)}
    assert len(folders) == 1
    folders |= {str(job_folder(check(composed("compressor=topk", f"ratio={ratio}")))) for ratio in (0.1, 0.01)}
    assert len(folders) == 3


@pytest.mark.case(47)
def test_what_changes_a_measurement_changes_its_place(composed):
    places = [
        digest(scientific(check(composed(*overrides))))
        for overrides in (
            [],
            ["seed=2"],
            ["training.steps=21"],
            ["network=shaped"],
            ["plan=capped"],
            ["compressor.rule=sign"],
        )
    ]
    assert len(set(places)) == len(places)
    same = digest(scientific(check(composed("workers.job_timeout_s=5", "output=elsewhere"))))
    assert same == places[0]


def test_a_grid_over_feedback_leaves_out_what_sends_no_message(composed):
    with pytest.raises(Incompatible, match="no message to feed back"):
        check(composed("experiment=statistics", "compressor=none", "feedback=ef"))
    assert check(composed("experiment=statistics", "compressor=none", "feedback=none"))["method"] is None
