"""The real wandb, offline: a run a job, no prompt, and the same numbers as the files."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from test_train import TIMEOUT_S, jobs, read, train

from experiments.report import write

WANDB = Path(sys.executable).with_name("wandb")


def records(run):
    """What an offline run's log holds, by wandb's own reader."""
    said = subprocess.run(
        [str(WANDB), "leet", "inspect", "--json", str(run)], capture_output=True, text=True, timeout=60, check=True
    )
    return [json.loads(line) for line in said.stdout.splitlines()]


def of_type(found, kind):
    return [record[kind] for record in found if record["type"] == kind]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Three jobs, the last of which diverges; no account, no wandb settings, no input."""
    folder = tmp_path_factory.mktemp("sweep")
    clean = {"HOME": str(folder), "WANDB_MODE": None, "WANDB_API_KEY": None, "SIDCO_CACHE": str(folder / "cache")}
    status, said = train(
        folder, "-m", "benchmark=resnet20_digits", "logger=wandb", "compressor=topk", "experiment=speedup",
        "ratio=0.1,0.01", "optimizer.lr=0.1,1e30", "training.steps=3", **clean,
    )  # fmt: skip
    assert status == 1, said
    return folder


@pytest.mark.case(53)
@pytest.mark.case(54)
@pytest.mark.case(55)
def test_every_job_has_one_run_with_its_configuration(sweep):
    ids = []
    for job in jobs(sweep):
        (run,) = (job / "wandb").glob("offline-run-*")  # two ranks, one run
        (begin,) = of_type(records(run), "run")[:1]
        config = begin["config"]["update"]
        assert config["compressor"]["ratio"] in (0.1, 0.01)
        assert isinstance(config["optimizer"]["lr"], float)
        assert config["names"]["compressor"] == "topk"
        assert (begin["run_group"], begin["job_type"]) == ("speedup-smoke", "train")
        assert {"resnet20_digits", "topk"} <= set(begin["tags"])
        ids.append(begin["run_id"])
        assert job.name.endswith(begin["run_id"].split("-")[0])
    assert len(ids) == len(set(ids)) == 4


@pytest.mark.case(56)
def test_a_job_that_failed_is_a_run_that_failed(sweep):
    for job in jobs(sweep):
        (run,) = (job / "wandb").glob("offline-run-*")
        (end,) = of_type(records(run), "exit")
        assert end.get("exit_code", 0) == (0 if read(job / "status.json")["state"] == "done" else 1)


def test_offline_runs_hold_what_the_files_hold(sweep):
    for job in jobs(sweep):
        if read(job / "status.json")["state"] != "done":
            continue
        (run,) = (job / "wandb").glob("offline-run-*")
        found = records(run)
        steps = [json.loads(line) for line in (job / "steps.jsonl").read_text().splitlines()]
        history = [record["item"] for record in of_type(found, "history")]
        assert len(history) == len(steps) == 3
        for ours, theirs in zip(steps, history, strict=True):
            known = {name: value for name, value in ours.items() if value is not None}
            assert {name: theirs[name] for name in known} == pytest.approx(known)
        last = {}
        for update in of_type(found, "summary"):
            last |= update.get("update", {})
        summary = {name: value for name, value in read(job / "summary.json").items() if value is not None}
        assert {name: last[name] for name in summary} == pytest.approx(summary)


@pytest.mark.case(58)
def test_the_report_needs_no_wandb_and_logs_itself_once(sweep):
    folder = sweep / "outputs" / "smoke"
    report = [sys.executable, "-m", "experiments.report", str(folder)]
    for expected in (1, 1):
        subprocess.run(report, cwd=ROOT, check=True, timeout=TIMEOUT_S, capture_output=True)
        runs = list((folder / "wandb").glob("offline-run-*"))
        assert len(runs) == expected
    assert of_type(records(runs[0]), "run")[0]["job_type"] == "report"
    before = (folder / "tables" / "speedup.csv").read_text()
    for job in jobs(sweep):
        shutil.rmtree(job / "wandb")
    write(folder)
    assert (folder / "tables" / "speedup.csv").read_text() == before


def test_logger_none_does_not_import_wandb():
    code = "import sys, experiments.worker, experiments.train, experiments.report; assert 'wandb' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
