"""Jobs beside one another and after one another: none overwrites, hinders or changes another."""

import json
import subprocess

import pytest
import yaml
from conftest import ROOT
from test_train import HERE, TIMEOUT_S, command, jobs, read, train
from test_wandb import of_type, records

SMALL = ("benchmark=resnet20_digits", "training.batch_per_rank=4", "training.valid_batches=0")
RATIOS = (0.5, 0.4, 0.3, 0.2, 0.1)


def at_once(folder, *commands):
    """What each of the commands, started together in one folder, says; all must end well."""
    running = [
        subprocess.Popen(
            command(*SMALL, "workers.virtual=true", *words), cwd=folder, env=HERE, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for words in commands
    ]  # fmt: skip
    try:
        said = [job.communicate(timeout=TIMEOUT_S)[0] for job in running]
    finally:
        for job in running:
            job.kill()
    assert [job.returncode for job in running] == [0] * len(running), "\n".join(said)
    return said


def content(folder):
    """Of every file, and when it was written."""
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*") if path.is_file()
    }  # fmt: skip


@pytest.mark.case(45)
def test_jobs_started_at_once_have_a_folder_each_and_overwrite_nothing(tmp_path):
    said = at_once(tmp_path, *[("compressor=topk", f"ratio={ratio}") for ratio in RATIOS])
    assert all("1 done" in text for text in said)
    five = {yaml.safe_load((job / "config.yaml").read_text())["compressor"]["ratio"]: job for job in jobs(tmp_path)}
    assert set(five) == set(RATIOS)
    assert len(jobs(tmp_path)) == 5
    for ratio, job in five.items():
        assert read(job / "status.json")["state"] == "done"
        steps = [json.loads(line) for line in (job / "steps.jsonl").read_text().splitlines()]
        assert [(step["step"], step["ratio"]) for step in steps] == [(1, ratio), (2, ratio)], "mixed files"

    before = content(tmp_path)
    again = ("compressor=topk", f"ratio={RATIOS[0]}")
    *same, reused = at_once(tmp_path, ("compressor=sign",), ("compressor=sign",), again)
    # who came second found the first at work, or its result
    assert sorted("1 done" in text for text in same) == [False, True], "\n".join(same)
    assert sum("1 busy" in text or "1 reused" in text for text in same) == 1, "\n".join(same)
    assert "1 reused" in reused
    assert len(jobs(tmp_path)) == 6
    (sign,) = (job for job in jobs(tmp_path) if job not in five.values())
    assert len((sign / "steps.jsonl").read_text().splitlines()) == 2, "two wrote into one folder"
    after = content(tmp_path)
    assert {path: after[path] for path in before} == before, "a finished folder was written to"


@pytest.mark.case(50)
def test_the_second_job_of_a_sweep_is_what_it_would_be_alone(tmp_path):
    """A process group, a port and a random state of its own: two ranks each, bit for bit."""
    sweep, alone = tmp_path / "sweep", tmp_path / "alone"
    for folder in (sweep, alone):
        folder.mkdir()
    status, said = train(sweep, "-m", *SMALL, "compressor=randomk", "ratio=0.2,0.1")
    assert (status, "(2 done)" in said) == (0, True), said
    status, said = train(alone, *SMALL, "compressor=randomk", "ratio=0.1")
    assert status == 0, said
    (single,) = jobs(alone)
    second = sweep / single.relative_to(alone)
    one, other = read(single / "summary.json"), read(second / "summary.json")
    assert one["replicas_agree"] is other["replicas_agree"] is True
    assert (one["world_size"], one["ranks_per_node"]) == (other["world_size"], other["ranks_per_node"]) == (2, 2)
    assert one["weights_sha256"] == other["weights_sha256"]
    rows = [[json.loads(line) for line in (job / "steps.jsonl").read_text().splitlines()] for job in (single, second)]
    for a, b in zip(*rows, strict=True):
        assert all(a[key] == b[key] for key in ("step", "loss", "density", "sent_bytes", "collectives"))
    first = next(job for job in jobs(sweep) if job != second)
    assert read(first / "summary.json")["weights_sha256"] != other["weights_sha256"]
    assert read(second / "status.json")["started"] > read(first / "status.json")["started"]


class Refuses:
    """A task that raises in its sixth loss: what a job's own error looks like."""

    metric, higher_is_better, unit = "top1", True, "images"

    def __init__(self):
        self.calls = 0

    def count(self, batch):
        return len(batch[1])

    def loss(self, model, batch, carry):
        self.calls += 1
        if self.calls > 5:
            raise ZeroDivisionError("at step 5")
        return model(batch[0]).logsumexp(1).mean(), carry


@pytest.mark.case(55)
@pytest.mark.case(56)
def test_every_run_has_its_own_job_s_configuration_and_a_job_that_raises_is_a_failed_run(tmp_path):
    tasks = ("experiments.tasks.Classification", "test_jobs.Refuses")
    words = (*SMALL, "logger=wandb", "workers.virtual=true", "workers.world_size=1", "training.steps=6")
    clean = {"HOME": str(tmp_path), "WANDB_MODE": None, "WANDB_API_KEY": None, "SIDCO_CACHE": str(tmp_path / "cache")}
    clean["PYTHONPATH"] = f"{ROOT}:{ROOT / 'tests'}"
    status, said = train(tmp_path, "-m", *words, "compressor=topk", f"task._target_={','.join(tasks)}", **clean)
    assert status == 1, said
    ids, ends = [], {}
    for job in jobs(tmp_path):
        (run,) = (job / "wandb").glob("offline-run-*")
        found, ours = records(run), yaml.safe_load((job / "config.yaml").read_text())
        begin, (end,) = of_type(found, "run")[0], of_type(found, "exit")
        theirs = begin["config"]["update"]
        assert {key: value for key, value in theirs.items() if key != "_wandb"} == ours
        ids.append(begin["run_id"])
        state = read(job / "status.json")
        ends[ours["task"]["_target_"]] = (state["state"], end.get("exit_code", 0))
        if state["state"] == "failed":
            assert "rank 0: at step 5" in state["reason"]
            assert "ZeroDivisionError" in state["traceback"]
            assert len((job / "steps.jsonl").read_text().splitlines()) == 4, "what was measured until then"
    assert ends == {tasks[0]: ("done", 0), tasks[1]: ("failed", 1)}
    assert len(ids) == len(set(ids)) == 2
