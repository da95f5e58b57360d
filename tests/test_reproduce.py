"""`make report`: which grids it runs, on which data, and what becomes of one that fails or is killed."""

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT
from hydra import initialize_config_dir

from experiments import reproduce
from experiments.estimate import planned
from experiments.report import ARTIFACTS

CONVERGENCE = next(artifact for artifact in ARTIFACTS if artifact.name == "convergence")
MICROBENCH = next(artifact for artifact in ARTIFACTS if artifact.name == "microbench")


def words_of(profile, only=None):
    return [command.words for command in reproduce.commands(profile, only, "cpu")]


def grids(profile):
    return {word.removeprefix("experiment=") for words in words_of(profile) for word in words if "experiment=" in word}


def test_the_quick_profile_runs_a_grid_for_every_artifact(folders):
    # convergence is evaluated in the grid of the loss curves
    assert grids("quick") == {artifact.experiment for artifact in ARTIFACTS} - {"convergence"}
    assert "convergence" in grids("paper")
    assert words_of("quick", CONVERGENCE) == [words for words in words_of("quick") if "experiment=loss_curves" in words]


def test_profiles_of_convergence_run_that_grid_alone(folders):
    assert grids("convergence") == grids("convergence_an4") == {"convergence"}
    _, more = words_of("convergence")
    assert {"compressor=none,sidco_e", "ratio=0.001", "seed=2,3"} < set(more)


def test_one_artifact_needs_its_grid_alone(folders):
    (capture, bench) = words_of("smoke", MICROBENCH)
    assert capture[:3] == ["experiments.train", "-m", "experiment=microbench"]
    assert bench[0] == "experiments.bench"
    assert "outputs/smoke/bench/jobs" in bench
    assert "output=outputs/smoke/bench" in capture


def test_the_heaviest_benchmarks_have_four_methods_and_two_ratios(folders):
    (large,) = [words for words in words_of("quick") if {"profile=quick_large", "experiment=speedup"} <= set(words)]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        jobs, refused = planned([word for word in large[2:] if not word.startswith("output=")])
    assert not refused
    names = {job.config["names"]["benchmark"] for job in jobs}
    assert names == {"vgg16_synthetic", "resnet50_synthetic", "vgg19_synthetic", "lstm_speech"}
    methods = {job.config["names"]["compressor"] for job in jobs}
    assert methods == {"none", "topk", "dgc", "sidco_e"}
    assert len(jobs) == 4 * (1 + 3 * 2)


def test_real_data_take_the_place_of_stand_ins_where_they_are(folders):
    def benchmarks():
        words = [word for words in words_of("quick") for word in words if word.startswith("benchmark=")]
        return {name for word in words for name in word.removeprefix("benchmark=").split(",")}

    without = benchmarks()
    assert without == {name for of_profile in reproduce.STAND_INS.values() for name in of_profile}
    text = folders / "data" / "pd_lm"
    text.mkdir(parents=True)
    for split in ("train", "valid"):
        (text / f"pd.{split}.txt").write_text("a b\n")
    assert benchmarks() == without - {"lstm_stdlib"} | {"lstm_pd_lm_small"}


def test_every_benchmark_that_may_be_taken_exists():
    for of_profile in reproduce.STAND_INS.values():
        for name in filter(None, (*of_profile, *of_profile.values())):
            assert (ROOT / "conf" / "benchmark" / f"{name}.yaml").exists()


def test_a_grid_that_fails_does_not_stop_the_others(monkeypatch, capsys, folders):
    ran = []

    def run(command):
        ran.append(command.name)
        return int(command.name.startswith("scaling")), 60.0, 0.5

    monkeypatch.setattr(reproduce, "run", run)
    with pytest.raises(SystemExit, match=r"not without failures: scaling \(smoke\); the same command"):
        reproduce.main(["smoke"])
    assert ran[-2:] == ["bench (cpu)", "report"]
    assert "report: 1.0 min, largest process 0.5 GiB, exit 0" in capsys.readouterr().out


def test_what_a_command_took_and_how_it_ended(capfd):
    status, seconds, memory = reproduce.run(reproduce.Command("bad", ["sidco_no_such_module"]))
    assert status == 1
    assert seconds > 0
    assert memory > 0.001
    assert "No module named sidco_no_such_module" in capfd.readouterr().err


KILLED = """
import sys, types
from experiments import reproduce
reproduce.commands = lambda *_: [reproduce.Command("long", ["timeit", "-n1", "-r1", "import time; time.sleep(60)"])]
print("begins", flush=True)
reproduce.main(["smoke"])
"""


def test_killed_it_takes_its_grid_down_and_says_how_to_go_on():
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "begins\n"
    while not (children := _children(process.pid)):
        time.sleep(0.05)
    time.sleep(0.5)  # its parent must know it before it can take it down
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "the same command goes on from here" in said
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as found:
        return found.read().split()
