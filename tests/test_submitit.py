"""Jobs that a launcher starts elsewhere: in processes of their own, and on two nodes of a SLURM that is pretended."""

import json
import os
import sys
import textwrap

import pytest
from conftest import ROOT
from test_train import jobs, ranks_of, read, train

from experiments import train as application
from experiments.launch import Outcome, settled
from experiments.progress import leave_letter, letters

SBATCH = """
    import os, re, subprocess, sys
    script = open(sys.argv[1]).read()
    last = re.search(r"#SBATCH --array=0-([0-9]+)", script)
    nodes = re.search(r"#SBATCH --nodes=([0-9]+)", script)[1]
    if os.fork() == 0:  # the queue: one job of the array after the other
        os.setsid()
        void = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(void, number)
        for task in range(int(last[1]) + 1):
            ours = {"SLURM_JOB_ID": str(7 + task), "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(task)}
            ours |= {"SLURM_JOB_NUM_NODES": nodes, "SLURM_JOB_NODELIST": f"127.0.0.[1-{nodes}]", "SLURM_NTASKS": nodes}
            subprocess.run(["bash", sys.argv[1]], env={**os.environ, **ours})
        os._exit(0)
    print("Submitted batch job 7")
"""
SRUN = """
    import os, subprocess, sys
    words = sys.argv[1:]
    while words[0].startswith("--"):  # --output FILE and --error FILE, --unbuffered
        words = words[1 if words[0] == "--unbuffered" else 2:]
    nodes = int(os.environ["SLURM_JOB_NUM_NODES"])
    places = [{"SLURM_NODEID": str(i), "SLURM_PROCID": str(i), "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"} for i in range(nodes)]
    tasks = [subprocess.Popen(words, env={**os.environ, **place}) for place in places]
    sys.exit(max(task.wait() for task in tasks))
"""  # noqa: E501
SACCT = """
    print("JobID|State|NodeList")
    for task in range(2):
        print(f"7_{task}|RUNNING|127.0.0.[1-2]")
"""


@pytest.fixture
def slurm(tmp_path):
    """PATH with the three commands of SLURM that submitit calls."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("sacct", SACCT)):
        (tools / name).write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
        (tools / name).chmod(0o755)
    return f"{tools}:{os.environ['PATH']}"


def test_jobs_in_processes_of_their_own_end_in_one_table(tmp_path):
    """Three cells, of which one fails and one cannot be; the dense job is one for both ratios."""
    status, said = train(
        tmp_path, "-m", "hydra/launcher=submitit_local", "compressor=none", "training.batch_per_rank=16,100000",
        "model=resnet20,lstm", "ratio=0.1",
    )  # fmt: skip
    assert status == 1, said
    table = said[said.index("Jobs") :]
    assert "[4/4]" in said
    assert [table.count(f"│ {state} ") for state in ("done", "failed", "skipped")] == [1, 1, 2]
    assert "training.batch_per_rank" in said
    assert "needs dataset.symbols, which dataset digits does not have" in said
    assert len(jobs(tmp_path)) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"outputs"}
    (sweep,) = (tmp_path / "outputs" / ".sweeps").iterdir()
    assert {path.stem for path in sweep.iterdir()} == {"0", "1", "2", "3"}
    assert list((tmp_path / "outputs" / ".submitit").rglob("*_log.out"))
    assert not ranks_of(tmp_path)

    status, said = train(
        tmp_path, "-m", "--status", "hydra/launcher=submitit_local", "compressor=none",
        "training.batch_per_rank=16,100000", "ratio=0.1,0.01",
    )  # fmt: skip
    assert "2 reused, 2 failed" in said, "looked up here, with nothing sent elsewhere"
    assert len(list((tmp_path / "outputs" / ".sweeps").iterdir())) == 1


def test_a_job_on_two_nodes_of_slurm(tmp_path, slurm):
    status, said = train(
        tmp_path, "-m", "hydra/launcher=submitit_slurm", "hydra.launcher.nodes=2", "network=cluster",
        "compressor=none,topk", "ratio=0.1", PATH=slurm, GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    assert status == 0, said
    assert "(2 done)" in said
    for folder in jobs(tmp_path):
        state, environment, summary = (read(folder / f"{name}.json") for name in ("status", "env", "summary"))
        assert state["sweep"] == f"slurm-{7 + state['number']}.0"
        assert environment["hosts"] == ["127.0.0.1", "127.0.0.2"]
        assert (summary["world_size"], summary["ranks_per_node"], summary["replicas_agree"]) == (2, 1, True)
        assert {path.name for path in (folder / "logs").iterdir()} == {"node0.log", "node1.log"}


def test_jobs_that_die_without_a_word_are_in_the_table_too(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import os\nif 'submitit.core._submit' in open('/proc/self/cmdline').read(): os.kill(os.getpid(), 9)\n"
    )
    status, said = train(
        tmp_path, "-m", "hydra/launcher=submitit_local", "compressor=topk", "ratio=0.1,0.01",
        PYTHONPATH=f"{ROOT}:{tmp_path / 'site'}",
    )  # fmt: skip
    assert status == 1
    assert "(2 failed)" in said
    assert said.count("no word from it") >= 2
    assert "compressor=topk ratio=0.01: failed" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["hydra/launcher=submitit_local"], "hydra/launcher=submitit_local starts the jobs of a sweep: add -m"),
        (["-m", "hydra/launcher=submitit_local", "slots=2"], "slots=2 are for jobs on this node"),
    ],
)
def test_what_a_launcher_cannot_do_is_refused(tmp_path, words, says):
    status, said = train(tmp_path, *words)
    assert status == 1
    assert says in said
    assert not (tmp_path / "outputs" / "smoke").exists()


def test_the_extra_is_asked_for_by_name(monkeypatch):
    monkeypatch.setattr(application, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["train", "-m", "hydra/launcher=submitit_slurm"])
    with pytest.raises(SystemExit, match=r"pip install -e '\.\[slurm\]'"):
        application.main()


@pytest.mark.parametrize(("state", "becomes"), [("done", "reused"), ("failed", "busy")])
def test_a_job_whose_twin_ran_elsewhere_is_what_that_has_come_to(tmp_path, state, becomes):
    for name in ("summary", "status"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"state": state}))
    assert settled(Outcome("a", "busy", "another process is running it", folder=tmp_path)).state == becomes


def test_a_letter_arrives_as_it_was_sent(tmp_path):
    sent = {3: Outcome("a", "failed", "why", 1.5), 10: Outcome("b", "done", folder=tmp_path / "jobs" / "b")}
    for number, outcome in sent.items():
        leave_letter(tmp_path / "letters", number, outcome)
    (tmp_path / "letters" / "4.json").write_text(json.dumps({"job": "half"})[:5])
    assert letters(tmp_path / "letters") == sent
