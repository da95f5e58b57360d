"""Where training ends, on fabricated jobs: one process that plays all workers, and ranks that were evaluated."""

import math
from functools import partial

import pandas as pd
import pytest
from fabricated import NO_LINK, write_job
from rich.cells import cell_len

from experiments import report
from experiments.artifacts import Cell
from experiments.artifacts.convergence import CONVERGENCE
from experiments.curves import LOSS, POINTS, QUALITY, curves
from experiments.publish import publish
from experiments.results import read

FEEDBACK = {"_target_": "sidco.feedback.ErrorFeedback"}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "outputs" / "convergence"


@pytest.fixture
def job(folder):
    """A job of virtual workers, evaluated every second of six steps; two steps are an epoch."""
    return partial(
        write_job, folder, step_ms=[777.0] * 6, task="Classification", every=2, target=50, network="virtual", **NO_LINK
    )


@pytest.fixture
def sweep(job):
    job("none", quality=(40, 55, 60))
    job("topk", ratio=0.01, quality=(30, 61, 59.5), feedback=FEEDBACK)
    job("sidco_e", ratio=0.01, quality=(20, 30, 49), khat=(0.5, 0.7), feedback=FEEDBACK)


def row(table, label):
    return table[table["label"] == label].iloc[0]


def test_a_folder_of_virtual_workers_has_a_report_of_its_own(sweep, folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["report", str(folder)])
    report.main()
    said, text = capsys.readouterr().out, (folder / "REPORT.md").read_text()
    assert "## Convergence" in text
    assert "resnet" not in text.split("## The benchmarks")[0]  # the paper's own are named below
    for absent in ("LOOPBACK", "Rates reached", "## Speed", "latency", "777", "0.777", "4.66", "ms |"):
        assert absent not in text
        assert absent not in said
    assert max(map(cell_len, said.splitlines()[:-1])) <= 120  # the last names the report
    assert sorted(path.name for path in (folder / "figures").iterdir()) == ["convergence.png"]
    assert "bench on data, virtual workers (0.00 M parameters, 2 workers of 4, 3 epochs = 6 steps)" in text
    assert "- all rows: EF in gradient space; no momentum; no weight decay" in text


def test_the_end_the_best_the_gap_and_the_target(sweep, folder):
    table = CONVERGENCE.draw(read(folder))
    assert list(table["label"]) == ["none", "sidco_e", "topk"]
    topk, sidco = row(table, "topk"), row(table, "sidco_e")
    assert (topk["final"], topk["best"], topk["gap_to_dense"]) == (59.5, 61, -0.5)
    assert (topk["epochs"], topk["steps_total"], topk["world_size"]) == (3, 6, 2)
    assert topk["steps_to_target"] == 4
    assert math.isnan(sidco["steps_to_target"])
    assert sidco["khat_over_k"] == pytest.approx(0.6)
    assert (sidco["payload_kb"], sidco["density"], sidco["seeds"]) == (4, 0.01, 1)


def test_the_table_marks_what_was_never_reached(sweep, folder):
    report.write(folder)
    text = (folder / "REPORT.md").read_text()
    assert "| sidco_e | 0.01 | 49.00 | 49.00 | -11.00 | ✗ |" in text
    assert "| none | – | 60.00 | 60.00 | – | 4 |" in text
    assert "| 1 seed |" in text
    assert "- ✗: top1 50 was never seen in these steps" in text


def test_claims_are_tried_at_these_epochs(sweep, job, folder):
    job("sidco_e", ratio=0.1, quality=(20, 30, 59.0), feedback=FEEDBACK)
    verdicts = [judge(CONVERGENCE.draw(read(folder))) for judge in CONVERGENCE.claims.values()]
    dense, topk = ([(cell.where, cell.holds) for cell in verdict.cells] for verdict in verdicts)
    assert dense == [("bench, virtual workers, sidco_e 0.1", True), ("bench, virtual workers, sidco_e 0.01", False)]
    assert topk == [("bench, virtual workers, sidco_e 0.01", False)]
    assert verdicts[0].cells[0].figure == "59.00 top1, 1.00 worse than dense after 3 epochs, 1 seed"


def test_less_perplexity_is_above_dense(folder):
    goes = {"every": 1, "network": "virtual", **NO_LINK}
    write_job(folder, "none", [1, 1], quality=(90, 80), **goes)
    write_job(folder, "sidco_e", [1, 1], quality=(70, 75), ratio=0.1, **goes)
    table = CONVERGENCE.draw(read(folder))
    assert (row(table, "sidco_e")["gap_to_dense"], row(table, "sidco_e")["best"]) == (5, 70)
    assert CONVERGENCE.claims["SIDCo ends within one point of dense, after as many epochs as these"](table).cells[0][1]


def test_seeds_have_a_mean_and_a_spread_and_are_compared_one_by_one(job, folder):
    for seed, dense, ours in ((1, 60, 58), (2, 64, 63)):
        job("none", seed=seed, quality=(1, 2, dense))
        job("topk", seed=seed, ratio=0.1, quality=(1, 51, ours))
    job("topk", seed=3, ratio=0.01, quality=(1, 2, 3))
    table = report.write(folder)["convergence"].table
    many, alone = table[table["ratio"] == 0.1].iloc[0], table[table["ratio"] == 0.01].iloc[0]
    assert (many["final"], many["gap_to_dense"]) == (60.5, -1.5)
    assert many["final_sd"] == pytest.approx(math.sqrt(12.5))
    assert many["gap_sd"] == pytest.approx(math.sqrt(0.5))
    assert math.isnan(alone["gap_to_dense"])
    text = (folder / "REPORT.md").read_text()
    assert "| 60.50 ±3.54 | 60.50 | -1.50 ±0.71 | 4 |" in text
    assert "| 2 seeds |" in text
    assert "topk 0.01: no gap to dense for seed 3: dense fp32 (none) did not finish" in text


def test_claims_compare_seed_by_seed(job, folder):
    for seed, dense, ours in ((1, 60, 59), (2, 90, 89.5)):  # seeds differ by more than compressors do
        job("none", seed=seed, quality=(1, 2, dense))
        job("sidco_e", seed=seed, ratio=0.1, quality=(1, 2, ours))
    job("topk", seed=1, ratio=0.1, quality=(1, 2, 58))
    job("topk", seed=2, ratio=0.01, quality=(1, 2, 99))  # another ratio
    table = CONVERGENCE.draw(read(folder))
    dense, topk = (judge(table).cells for judge in CONVERGENCE.claims.values())
    where = "bench, virtual workers, sidco_e 0.1"
    assert dense == [Cell(where, True, "74.25 top1, 0.75 worse than dense after 3 epochs, mean of 2 seeds")]
    assert topk == [Cell(where, True, "74.25 top1, 1.00 better than topk after 3 epochs, 1 seed")]


def test_ranks_that_were_evaluated_are_in_both_parts(job, sweep, folder):
    write_job(folder, "none", [100] * 4, task="Classification", every=2, quality=(10, 20))
    tables = report.write(folder)
    assert {"speedup", "convergence"} <= set(tables)
    assert list(tables["speedup"].table["network"]) == ["shaped"]
    assert sorted(tables["convergence"].table["network"]) == ["shaped", "virtual", "virtual", "virtual"]
    text = (folder / "REPORT.md").read_text()
    assert text.index("## Speed") < text.index("## Convergence") < text.index("## Jobs without a result")
    lines = pd.read_csv(folder / "tables" / "convergence_curves.csv")
    timed = lines[lines["seconds"].notna()]
    assert set(timed["job"]) == {"none-None-1-trend-new-shaped"}
    assert timed.loc[timed["curve"] == QUALITY, "seconds"].tolist() == [0.2, 0.4]


def test_curves_hold_every_evaluation_and_a_smoothed_loss(job, folder):
    job("none", step_ms=[1] * 250, every=100, quality=(10, 20), summary={"metric_value": 30.0})
    found = curves(folder, read(folder))
    quality, loss = (found[found["curve"] == name] for name in (QUALITY, LOSS))
    assert quality[["step", "epoch", "value"]].to_numpy().tolist() == [[100, 50, 10], [200, 100, 20], [250, 125, 30]]
    assert found["seconds"].isna().all()
    assert len(loss) <= POINTS
    assert set(loss["value"]) == {8.0}
    assert loss["step"].iloc[-1] == 250


def test_evaluations_that_are_missing_make_a_job_incomplete(sweep, job, folder):
    (job("dgc", ratio=0.5, quality=(1, 2, 3)) / "quality.json").write_text("[")
    assert set(read(folder)["name_compressor"]) == {"none", "topk", "sidco_e"}
    report.write(folder)
    assert "**incomplete**: quality.json is missing or cut short" in (folder / "REPORT.md").read_text()


def test_publish_copies_the_convergence_part(sweep, folder, tmp_path):
    target = publish(folder, reference=tmp_path / "reference")
    assert {path.name for path in target.rglob("*.*")} == {
        "REPORT.md", "runs.csv", "convergence.csv", "convergence.md", "convergence_curves.csv", "convergence.png",
        "table1.csv", "table1.md",
    }  # fmt: skip
    assert {"momentum", "weight_decay", "memory"} <= set(pd.read_csv(target / "tables" / "convergence.csv").columns)


def test_a_run_without_an_evaluation_has_no_place_here(sweep, folder):
    """Such as those that only keep gradients."""
    write_job(
        folder, "dgc", [777.0] * 6, ratio=0.01, network="virtual", **NO_LINK, summary={"metric_value": None}, seed=9
    )
    assert "dgc" not in set(report.write(folder)["convergence"].table["label"])
