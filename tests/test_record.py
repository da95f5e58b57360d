"""Which code measured: a row of code that no commit holds says so, and one beside changed results does not."""

import subprocess

import pytest

from experiments import record


@pytest.fixture
def repository(tmp_path, monkeypatch):
    for name in ("sidco/topk.py", "conf/config.yaml", "results/reference/REPORT.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("as committed\n")
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    for words in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    monkeypatch.setattr(record, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize("changed", ["sidco/topk.py", "sidco/mine.py", "conf/compressor/mine.yaml"])
def test_code_that_no_commit_holds(repository, changed):
    (repository / changed).parent.mkdir(exist_ok=True)
    (repository / changed).write_text("otherwise\n")
    assert record.environment("code")["uncommitted_changes"] is True


@pytest.mark.parametrize("changed", ["results/reference/REPORT.md", "notes.txt", "sidco/__pycache__/topk.pyc"])
def test_what_is_no_code(repository, changed):
    (repository / changed).parent.mkdir(exist_ok=True)
    (repository / changed).write_text("otherwise\n")
    facts = record.environment("code")
    assert facts["uncommitted_changes"] is False
    assert len(facts["commit"]) == 40
