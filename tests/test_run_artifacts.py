"""The artifacts about runs: losses on the way, the benchmarks, break-even rates, scaling; on fabricated jobs."""

import math
from functools import partial

import pandas as pd
import pytest
from fabricated import NO_LINK, write_job

from experiments import report
from experiments.artifacts.break_even import BREAK_EVEN
from experiments.artifacts.break_even_model import BreakEven, break_even, modelled_speedup
from experiments.artifacts.loss_curves import LOSS_CURVES
from experiments.artifacts.scaling import SCALING
from experiments.artifacts.speedup import SPEEDUP
from experiments.artifacts.table1 import TABLE1
from experiments.results import read

LOOPBACK = {"network": "loopback", **NO_LINK}
LONG = 120  # steps


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "outputs" / "quick"


@pytest.fixture
def job(folder):
    return partial(write_job, folder)


def part_of(folder, artifact):
    for name in ("tables", "figures"):
        (folder / name).mkdir(exist_ok=True)
    return artifact.part(read(folder), folder)


def row(table, label):
    return table[table["label"] == label].iloc[0]


def falling(each):
    """A loss that begins at 10."""
    return [10 - each * i for i in range(LONG)]


def test_when_a_loss_is_as_low_as_that_of_dense_at_its_end(job, folder):
    job("none", [100] * LONG, loss=falling(0.05))  # the last three steps: 4.1
    job("sidco_e", [50] * LONG, ratio=0.01, loss=falling(0.1))
    job("topk", [50] * LONG, ratio=0.01, loss=falling(0.01))
    found = part_of(folder, LOSS_CURVES)
    table = found.table
    assert list(table["label"]) == ["none", "sidco_e", "topk"]
    dense, ours, topk = (row(table, name) for name in ("none", "sidco_e", "topk"))
    assert (dense["goal"], dense["loss_end"]) == (pytest.approx(4.1), pytest.approx(4.1))
    assert (dense["steps_to_goal"], dense["seconds_to_goal"]) == (4 + 120, pytest.approx(12))
    assert (ours["steps_to_goal"], ours["seconds_to_goal"]) == (4 + 63, pytest.approx(63 * 0.05))
    assert ours["loss_half"] == pytest.approx(10 - 0.1 * 58)  # the twentieth block of three steps
    assert math.isnan(topk["steps_to_goal"])
    low, sooner = found.claims.values()
    assert [(cell.holds, cell.figure) for cell in sooner.cells] == [(True, "3.15 s against 12 s")]
    assert (low.state, low.cells[0].holds) == ("holds", True)
    assert "| topk | 0.01 | " in found.body
    assert "| ✗ | ✗ |" in found.body
    assert [path.name for path in found.pictures] == ["loss_curves.png"]


def test_virtual_workers_have_losses_and_no_seconds(job, folder):
    goes = {"network": "virtual", **NO_LINK}
    job("none", [777] * LONG, loss=falling(0.05), **goes)
    job("sidco_e", [777] * LONG, ratio=0.1, loss=falling(0.01), **goes)
    found = part_of(folder, LOSS_CURVES)
    assert found.table["seconds_to_goal"].isna().all()
    assert "seconds" not in found.body
    assert [verdict.state for verdict in found.claims.values()] == ["fails", "no data"]


def test_jobs_of_a_few_steps_have_no_curve(job, folder):
    job("none", [100] * 20)
    assert part_of(folder, LOSS_CURVES) is None


def test_without_dense_a_loss_has_no_goal_and_says_so(job, folder):
    job("none", [100] * LONG, seed=2)
    job("topk", [100] * LONG, ratio=0.1)
    found = part_of(folder, LOSS_CURVES)
    assert "topk 0.1: no steps to dense's loss: dense fp32 (none) did not finish" in found.body


def test_the_share_of_communication_is_what_dense_loses_to_it(job, folder):
    job("none", [90, 100, 130])  # 20 ms without exchange
    job("topk", [50] * 3, ratio=0.01)
    job("none", [40] * 3, rate_mbit_per_s=1000.0, tag="fast")
    job("none", [777] * 3, network="virtual", **NO_LINK)  # a benchmark that has been timed needs no line without times
    found = part_of(folder, TABLE1)
    assert found.table["link"].tolist() == ["100 Mb/s link", "1000 Mb/s link"]
    assert found.table["communication_share"].tolist() == [pytest.approx(0.8), pytest.approx(0.5)]
    assert [cell.holds for verdict in found.claims.values() for cell in verdict.cells] == [True, False]
    assert "| 80 |" in found.body


def test_the_recipes_are_those_of_the_released_code_and_the_rest_is_not_transcribed(job, folder):
    job("topk", [50] * 3, ratio=0.01)
    found = part_of(folder, TABLE1)
    assert "no share: dense fp32 (none)" in found.body
    assert "| lstm_ptb | 66034000 | 20 | 22 | 30 | not transcribed |" in found.paper
    assert found.paper.count("not transcribed") == 6
    assert "parameters: derived from released code" in found.paper
    assert not found.table["communication_share"].notna().any()


def test_a_seed_more_gives_the_share_a_spread(job, folder):
    job("none", [100] * 3)
    job("none", [50] * 3, seed=2)
    assert part_of(folder, TABLE1).table["communication_sd"].tolist() == [pytest.approx(0.2 / math.sqrt(2))]


@pytest.mark.case(21)
@pytest.mark.parametrize(
    ("saved", "overhead", "side", "text"),
    [
        (900_000, 3.0, "below", "below 2.4 Gb/s"),
        (1_000, 80.0, "below", "below 0.1 Mb/s"),
        (900_000, -1.0, "any", "on any link"),
        (0, 3.0, "never", "never"),
        (-5, 3.0, "never", "never"),
        (-900_000, -3.0, "above", "above 2.4 Gb/s"),
        (math.nan, 3.0, "", "–"),
    ],
)
def test_on_which_links_a_compressor_pays(saved, overhead, side, text):
    found = break_even(saved, overhead)
    assert (found.side, found.text) == (side, text)


@pytest.mark.case(21)
def test_at_the_break_even_rate_both_steps_take_as_long():
    found = break_even(900_000, 3.0)
    at = partial(modelled_speedup, 20.0, 1_000_000, 100_000, 3.0)
    assert at(found.rate) == pytest.approx(1)
    assert at(0.9 * found.rate) > 1 > at(1.1 * found.rate)
    assert found.pays(0.9 * found.rate)
    assert not found.pays(1.1 * found.rate)
    assert BreakEven("above", 10).pays(11)


@pytest.fixture
def two_links(job):
    """At 100 Mb/s compression pays; at 10 Gb/s it does not. 3 ms a step go into compressing and the mean."""
    for rate, dense, compressed in ((100.0, 100, 50), (10_000.0, 21, 24)):
        link = {"rate_mbit_per_s": rate, "tag": f"{rate:g}"}
        job("none", [dense] * 3, sent=1_000_000, **link)
        job("bf16", [dense] * 3, sent=500_000, **link)
        job("topk", [compressed] * 3, ratio=0.01, sent=100_000, **link)
        job("sidco_e", [compressed] * 3, ratio=0.01, sent=50_000, **link)
        job("randomk", [compressed] * 3, ratio=0.5, sent=2_000_000, **link)


@pytest.mark.case(21)
def test_the_report_says_on_which_links_it_pays_beside_what_was_measured(two_links, folder):
    found = part_of(folder, BREAK_EVEN)
    topk = found.table[found.table["label"] == "topk"].sort_values("rate_mbit_per_s")
    assert set(topk["origin"]) == {"modelled"}
    assert topk["rate_over_fp32_mbit_per_s"].tolist() == [pytest.approx(2400)] * 2  # 0.9 MB in 3 ms
    assert topk["break_even_over_bf16"].tolist() == ["any"] * 2  # sends less, and takes as long
    assert topk["measured_speedup"].tolist() == [pytest.approx(2), pytest.approx(21 / 24)]
    assert topk["modelled_speedup"].iloc[0] == pytest.approx((20 + 80) / (20 + 3 + 8))
    line = next(line for line in found.body.splitlines() if line.startswith("| topk"))
    assert "| below 2.4 Gb/s | on any link | modelled |" in line
    assert "| 2.00x pays |" in line
    assert "| 0.88x does not |" in line
    assert "| never | never | modelled |" in next(x for x in found.body.splitlines() if x.startswith("| randomk"))
    faster, agrees = found.claims.values()
    assert [(cell.holds, cell.figure) for cell in faster.cells] == [(True, "below 2.53 Gb/s against below 2.4 Gb/s")]
    # randomk at 100 Mb/s was fabricated to pay although it sends twice what dense sends
    assert sum(not cell.holds for cell in agrees.cells) == 1
    assert len(agrees.cells) == 6
    assert [path.name for path in found.pictures] == ["break_even.png"]


def test_quality_stands_beside_the_break_even_rates(two_links, folder):
    found = part_of(folder, BREAK_EVEN)
    assert "loss (not trained)" in found.body
    assert set(found.table["loss_last"]) == {7.5}


def test_without_dense_there_is_no_break_even(job, folder):
    job("topk", [50] * 3, ratio=0.01)
    found = part_of(folder, BREAK_EVEN)
    assert found.table["break_even_over_fp32"].tolist() == [""]
    assert [verdict.state for verdict in found.claims.values()] == ["no data", "no data"]


@pytest.fixture
def one_node(job):
    """One, two and four ranks on two cores: 100, 120 and 240 ms a step of ten words a rank."""
    for ranks, dense, ours in ((1, 100, 105), (2, 120, 110), (4, 240, 250)):
        goes = {"world_size": ranks, "tag": f"{ranks}", **LOOPBACK}
        job("none", [dense] * 3, **goes)
        job("sidco_e", [ours] * 3, ratio=0.001, **goes)


def test_what_is_left_of_w_times_one_rank(one_node, folder):
    found = part_of(folder, SCALING)
    dense, ours = (found.table[found.table["label"] == name] for name in ("none", "sidco_e"))
    assert dense["world_size"].tolist() == [1, 2, 4]
    assert dense["units_per_second"].tolist() == [pytest.approx(x) for x in (100, 20 / 0.12, 40 / 0.24)]
    assert dense["efficiency"].tolist() == [pytest.approx(x) for x in (1, 100 / 120, 100 / 240)]
    assert ours["efficiency"].tolist() == [pytest.approx(x) for x in (100 / 105, 100 / 110, 100 / 250)]
    assert dense["cores_for_a_thread"].tolist() == [1, 1, 0.5]
    (verdict,) = found.claims.values()
    figures = [(cell.holds, cell.figure) for cell in verdict.cells]
    assert figures == [(True, "0.91 against 0.83"), (False, "0.40 against 0.42")]
    assert [path.name for path in found.pictures] == ["scaling.png"]
    assert "fig8_one_node.csv: 12 of 12 numbers not transcribed." in found.paper


def test_ranks_that_share_cores_are_shouted(one_node, folder):
    report.write(folder)
    assert "> **With 4 ranks on 2 cores RANKS SHARE CORES" in (folder / "REPORT.md").read_text()


def test_a_scaling_on_one_node_is_no_result_about_a_network(one_node, job, folder):
    job("none", [100] * 3)
    job("topk", [50] * 3, ratio=0.01)
    parts = report.write(folder)
    assert set(parts["speedup"].table["network"]) == {"shaped"}
    assert set(parts["break_even"].table["network"]) == {"shaped"}
    assert "LOOPBACK" not in SPEEDUP.part(read(folder), folder).warning
    assert set(parts["scaling"].table["network"]) == {"loopback"}


def test_rows_of_the_loss_curves_are_in_no_speed_table(job, folder):
    job("none", [100] * 3)
    job("topk", [50] * 3, ratio=0.01)
    job("none", [100] * 9, tag="long", summary={"name_experiment": "loss_curves"})
    parts = report.write(folder)
    assert len(parts["speedup"].table) == 2
    assert set(parts["break_even"].table["compressor"]) <= {"none", "topk"}
    assert list(parts["table1"].table["where"]) == ["bench, 100 Mb/s link"]


def test_one_number_of_ranks_is_no_scaling(job, folder):
    job("none", [100] * 3, **LOOPBACK)
    assert part_of(folder, SCALING) is None
    assert "LOOPBACK" in part_of(folder, SPEEDUP).warning


def test_every_artifact_is_drawn_and_its_figures_are_no_empty_pictures(two_links, one_node, job, folder):
    for name in ("none", "sidco_e"):
        job(name, [10] * LONG, ratio=None if name == "none" else 0.1, loss=falling(0.05), tag="long")
    job("sidco_e", [10] * LONG, ratio=0.1, rule="paper", tag="long")
    parts = report.write(folder)
    assert {"speedup", "loss_curves", "estimation", "rules", "table1", "break_even", "scaling"} <= set(parts)
    for part in parts.values():
        assert all(path.stat().st_size > 10_000 for path in part.pictures)
        assert len(part.table)
        assert part.limits
    assert all(len(pd.read_csv(path)) for path in (folder / "tables").glob("*.csv"))


@pytest.mark.case(71)
@pytest.mark.parametrize(("reached", "void"), [(95.0, False), (118.0, False), (4300.0, True)])
def test_a_link_that_was_not_throttled_is_void(job, folder, reached, void):
    job("none", [100] * 3, summary={"probe_all_reduce_10000kb_mbit_per_s": reached})
    job("topk", [50] * 3, ratio=0.1, summary={"probe_all_reduce_10000kb_mbit_per_s": 93.0})
    report.write(folder)
    text = (folder / "REPORT.md").read_text()
    assert ("**NOT THROTTLED: in 1 of 2 jobs 1 or 10 MB crossed the link at up to 43.0 times its rate" in text) == void
