"""The notebooks: in step with their pairs, small, and running wherever they are, with runs of one's own and without."""

import json
import os
import sys
from functools import partial

import jupytext
import matplotlib.pyplot as plt
import numpy as np
import pytest
from conftest import ROOT
from fabricated import write_job

from experiments.gradients import MANY, kept, of_digits, thinned

sys.path.insert(0, str(ROOT / "scripts"))
import notebooks

NAMES = ("adding_a_compressor", "gradient_statistics", "speedup_curves", "threshold_quality")
SAID = {
    "adding_a_compressor": "obeyed  keeps_its_density",
    "gradient_statistics": "made here (no job has kept a gradient): ResNet-20",
    "speedup_curves": "the committed reference",
    "threshold_quality": "the committed reference",
}


@pytest.fixture
def elsewhere(tmp_path, folders, monkeypatch):
    """A folder called notebooks with nothing beside it; all that a kernel writes goes there too."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    (tmp_path / "notebooks").mkdir()
    return tmp_path / "notebooks"


@pytest.fixture
def sweep(tmp_path):
    """Finished jobs in outputs/quick, beside that folder."""
    job = partial(write_job, tmp_path / "outputs" / "quick")
    job("none", [100, 100, 100])
    job("bf16", [80, 80, 80])
    for ratio in (0.1, 0.001):
        job("sidco_e", [40, 40, 80], ratio=ratio, khat=(2.0, 1.5, 1.0))
        job("topk", [50, 50, 50], ratio=ratio)
    return tmp_path / "outputs" / "quick"


def keep(folder, job, steps, numel=5000):
    """Captures of a job; each value tells its step."""
    captures = folder / "adhoc" / "jobs" / job / "captures"
    captures.mkdir(parents=True)
    for step in steps:
        draw = np.random.default_rng(0).laplace(size=numel)
        np.save(captures / f"step{step}.npy", draw.astype(np.float32))
    return captures


def in_this_process(name, capsys):
    """What the cells print, run here, where everything is imported already. Figures are drawn, and not shown."""
    plt.switch_backend("Agg")
    scope = {"__name__": "__main__"}
    for cell in jupytext.read(notebooks.NOTEBOOKS / f"{name}.py").cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, name, "exec"), scope)
    plt.close("all")
    return capsys.readouterr().out


def test_all_of_them_are_here():
    assert tuple(path.stem for path in notebooks.sources()) == NAMES
    assert tuple(path.stem for path in sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_its_source_without_outputs(name):
    source = notebooks.NOTEBOOKS / f"{name}.py"
    text = source.with_suffix(".ipynb").read_text()
    assert text == notebooks.paired(source), "the .ipynb is not that of the .py: run `make notebooks`"
    cells = json.loads(text)["cells"]
    assert len(cells) < 15
    assert cells[0]["cell_type"] == "markdown"
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_without_runs_of_ones_own(name, elsewhere):
    done = notebooks.executed(notebooks.NOTEBOOKS / f"{name}.py", elsewhere)
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    said = "".join(output["text"] for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert SAID[name] in said
    assert "BROKEN" not in said  # law
    assert list(elsewhere.iterdir()) == []  # nothing is written beside a notebook
    found = notebooks.pictures(done)
    assert {picture for picture in found if not (notebooks.PICTURES / f"{picture}.png").exists()} == set()
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= max(1, len(found))


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg")
@pytest.mark.parametrize("name", ["speedup_curves", "threshold_quality"])
def test_ones_own_runs_come_first(name, elsewhere, sweep, monkeypatch, capsys):
    monkeypatch.chdir(elsewhere)
    said = in_this_process(name, capsys)
    assert "your own runs: outputs/quick\nhardware: 2x Abacus" in said
    figure = {
        "speedup_curves": "sidco_e at 0.1: 2.50 times dense fp32, 2.00 times the better dense one (bf16)",
        "threshold_quality": "2 of 4 rows have a mean outside 0.8 to 1.25",
    }
    assert figure[name] in said
    assert "no steps here" not in said


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg")
def test_ones_own_gradients_come_first(elsewhere, tmp_path, monkeypatch, capsys):
    keep(tmp_path / "outputs", "mine-0.01", ("0", "9", "10", "10_ef"))
    monkeypatch.chdir(elsewhere)
    said = in_this_process("gradient_statistics", capsys)
    assert "captured by a job of yours: mine-0.01" in said
    for name in ("step 0", "step 10", "step 10, with error feedback"):
        assert f"{name}: 5,000 values, 0 of them zero" in said
    assert "step 9:" not in said


def test_of_several_jobs_the_last_capture_counts(tmp_path):
    assert kept(tmp_path) == {}
    for age, job in enumerate(("newer", "a-later-name-but-older")):
        for path in keep(tmp_path, job, ("100", "9"), numel=3).iterdir():
            os.utime(path, (10 - age, 10 - age))
    assert list(kept(tmp_path)) == ["step 9", "step 100"]
    assert {path.parent.parent.name for path in kept(tmp_path).values()} == {"newer"}


def test_a_job_that_kept_one_step_has_one(tmp_path):
    keep(tmp_path, "job", ("7",), numel=3)
    assert list(kept(tmp_path)) == ["step 7"]


def test_a_long_gradient_is_thinned_out(tmp_path):
    np.save(tmp_path / "long.npy", np.arange(3 * MANY, dtype=np.float32))
    np.save(tmp_path / "short.npy", np.arange(7, dtype=np.float32))
    assert thinned(tmp_path / "long.npy")[:3].tolist() == [0, 3, 6]
    assert thinned(tmp_path / "long.npy").shape == (MANY,)
    assert thinned(tmp_path / "short.npy").tolist() == list(range(7))


def test_gradients_of_the_digits(folders):
    first, second = (next(of_digits()) for _ in range(2))
    assert first.shape == (269_434,)
    assert first.equal(second)
    stream = of_digits()
    assert not next(stream).equal(next(stream))
    assert not next(of_digits(seed=2)).equal(first)
