"""From job folders to the report, on fabricated jobs whose numbers can be worked out by hand."""

import json
import math
import re
from functools import partial

import pandas as pd
import pytest
from fabricated import MOMENTUM, NO_LINK, write_job

from experiments import report
from experiments.artifacts import paper_numbers
from experiments.artifacts.speedup import SPEEDUP, headline
from experiments.publish import Refused, publish, without_paths
from experiments.results import newest_code, read, states


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "outputs" / "quick"


@pytest.fixture
def job(folder):
    """`job("topk", [40, 50, 60], ratio=0.01)`: a finished job with steps of so many milliseconds."""
    return partial(write_job, folder)


@pytest.fixture
def sweep(job):
    """Dense fp32 100 ms, bf16 80 ms, topk 50 ms, sidco_e 40 ms, dgc 40 ms a step."""
    job("none", [90, 100, 130])
    job("bf16", [80, 80, 80])
    job("topk", [50, 50, 50], ratio=0.01)
    job("dgc", [40, 40, 40], ratio=0.01)
    return job("sidco_e", [40, 40, 80], ratio=0.01, khat=(0.9, 1.0, 1.1))


def row(table, label):
    return table[table["label"] == label].iloc[0]


def test_a_row_is_computed_from_its_files(sweep, folder):
    runs = read(folder)
    found = runs[runs["name_compressor"] == "sidco_e"].iloc[0]
    assert (found["ratio"], found["seed"], found["batch_per_rank"], found["excluded_steps"]) == (0.01, 1, 4, 4)
    assert (found["step_ms_median"], found["steps_timed"], found["stages_last"]) == (40, 3, 2)
    assert found["units_per_second"] == pytest.approx(10 * 2 / 0.040)
    assert found["exposed_comm_ms"] == pytest.approx(40 - 20)
    assert found["khat_over_k_ci90"] == pytest.approx(1.645 * 0.1 / math.sqrt(3))
    assert json.loads(found["compression"])["method"]["compressor"]["rule"] == "trend"
    assert math.isnan(runs[runs["name_compressor"] == "none"].iloc[0]["ratio"])


def test_speed_ups_are_over_the_dense_jobs_of_the_sweep(sweep, folder):
    table = SPEEDUP.draw(read(folder))
    assert list(table["label"]) == ["none", "bf16", "dgc", "sidco_e", "topk"]
    assert row(table, "sidco_e")["speedup_over_fp32"] == pytest.approx(100 / 40)
    assert row(table, "sidco_e")["speedup_over_best_dense"] == pytest.approx(80 / 40)
    assert row(table, "none")["speedup_over_best_dense"] == pytest.approx(80 / 100)
    assert row(table, "topk")["best_dense"] == "bf16"
    assert (row(table, "topk")["payload_kb"], row(table, "topk")["sent_kb"]) == (4, 5)


def test_plain_ddp_has_no_exchange_of_its_own(sweep, folder):
    dense = row(SPEEDUP.draw(read(folder)), "none")
    assert dense[["forward_backward_ms", "compress_ms", "exchange_ms", "mean_ms"]].isna().all()
    assert dense["exposed_comm_ms"] == 100 - 20


def test_claims_are_judged_with_figures(sweep, folder):
    table = SPEEDUP.draw(read(folder))
    verdicts = {sentence: judge(table) for sentence, judge in SPEEDUP.claims.items()}
    assert {sentence: verdict.state for sentence, verdict in verdicts.items()} == {
        "SIDCo trains faster than no compression": "holds",
        "SIDCo trains faster than Topk": "holds",
        "SIDCo trains faster than DGC": "fails",  # as fast is not faster
        "SIDCo compresses in less time than Topk": "fails",
        "SIDCo compresses in less time than DGC": "fails",
        "SIDCo compresses in less time than RedSync": "no data",
        "SIDCo compresses in less time than GaussianK": "no data",
        "SIDCo's k_hat/k stays within 0.8 and 1.25, an estimate as good as DGC's": "holds",
        "Compression beats the best dense baseline (fp32 or bf16)": "holds",
        "SIDCo at 0.001 trains at 85 % or more of the rate without any exchange (ours)": "no data",
    }
    assert "2.50x" in verdicts["SIDCo trains faster than no compression"].cells[0].figure
    assert "within the spread" in verdicts["SIDCo trains faster than DGC"].cells[0].figure


@pytest.mark.parametrize(("ms", "share", "state"), [(22, "91 %", "holds"), (40, "50 %", "fails")])
def test_near_the_rate_without_exchange(job, folder, ms, share, state):
    job("sidco_e", [ms] * 3, ratio=0.001)  # a step without exchange takes 20 ms
    verdict = SPEEDUP.claims["SIDCo at 0.001 trains at 85 % or more of the rate without any exchange (ours)"](
        SPEEDUP.draw(read(folder))
    )
    assert (verdict.state, verdict.cells[0].figure) == (state, share)


def test_without_a_rival_a_claim_has_no_data(job, folder):
    job("none", [100, 100, 100])
    table = SPEEDUP.draw(read(folder))
    assert {judge(table).state for judge in SPEEDUP.claims.values()} == {"no data"}


def test_without_its_baseline_a_speed_up_is_blank_and_says_why(job, folder):
    job("none", [100, 100, 100], seed=2)  # another seed is no baseline
    job("bf16", [80, 80, 80])
    job("topk", [50, 50, 50], ratio=0.01)
    found = row(report.write(folder)["speedup"].table, "topk")
    assert math.isnan(found["speedup_over_fp32"])
    assert math.isnan(found["speedup_over_best_dense"])
    assert "no speed-up over fp32 for seed 1: dense fp32 (none) did not finish in this sweep" in found["note"]
    assert "topk 0.01: no speed-up over fp32 for seed 1" in (folder / "REPORT.md").read_text()


def test_other_settings_are_no_baseline(job, folder):
    job("none", [100, 100, 100], torch_version="2.8")
    job("topk", [50, 50, 50], ratio=0.01)
    assert math.isnan(row(SPEEDUP.draw(read(folder)), "topk")["speedup_over_fp32"])


def test_settings_that_differ_are_named_and_never_pooled_as_seeds(job, folder):
    job("sidco_e", [40, 40, 40], ratio=0.01, rule="trend")
    job("sidco_e", [50, 50, 50], ratio=0.01, rule="paper")
    table = SPEEDUP.draw(read(folder))
    assert sorted(table["label"]) == ["sidco_e rule=paper", "sidco_e rule=trend"]


def test_a_wire_format_is_named_as_it_was_chosen(job, folder):
    job("sidco_e", [40, 40, 40], ratio=0.01, summary={"name_wire": "plain"})
    job("sidco_e", [50, 50, 50], ratio=0.01, rule="as fixed", summary={"name_wire": "fixed"})
    assert sorted(SPEEDUP.draw(read(folder))["label"]) == ["sidco_e", "sidco_e wire=fixed"]


@pytest.mark.case(72)
def test_one_seed_is_flagged_and_three_have_a_geometric_mean_and_a_spread(job, folder):
    for seed, ms in ((1, 50), (2, 25), (3, 100)):  # speed-ups 2, 4, 1
        job("none", [100, 100, 100], seed=seed)
        job("topk", [ms] * 3, ratio=0.01, seed=seed)
    job("topk", [10, 10, 10], ratio=0.1)
    table = report.write(folder)["speedup"].table
    many, one = table[table["ratio"] == 0.01].iloc[0], table[table["ratio"] == 0.1].iloc[0]
    assert many["speedup_over_fp32"] == pytest.approx(2)
    assert many["speedup_sd"] == pytest.approx(math.sqrt(7 / 3))  # of 2, 4, 1 around 7/3
    assert (many["seeds"], one["seeds"]) == (3, 1)
    assert "1 seed" in one["note"]
    assert "1 seed" not in many["note"]
    text = (folder / "REPORT.md").read_text()
    assert re.search(r"\| topk \| 0.01 \|.* 2\.00x ±1\.53 .*\| 3 seeds \|", text)
    assert re.search(r"\| topk \| 0.1 \|.* 10\.00x \|.*\| 1 seed \|", text)


@pytest.mark.case(31)
def test_quality_stands_beside_every_speed(sweep, folder):
    table = report.write(folder)["speedup"].table
    assert list(table["loss_last"]) == [7.5] * 5
    lines = (folder / "tables" / "speedup.md").read_text().splitlines()
    heads = [line for line in lines if "over fp32" in line and "|" in line]
    assert heads
    for head in heads:
        assert "loss after 7 steps (not trained)" in head
        assert "perplexity after 7 steps" in head
    assert {"loss_last", "metric_value"} <= set(pd.read_csv(folder / "tables" / "speedup.csv").columns)


def test_time_to_target_quality_over_time_and_throughput_are_three_columns(job, folder):
    goes = {"task": "Classification", "every": 2, "target": 50}
    job("none", [100] * 6, quality=(20, 40, 60), **goes)  # reached after 0.6 s, at its end
    job("topk", [50] * 6, ratio=0.1, quality=(20, 55, 66), **goes)  # after 0.2 s
    job("dgc", [25] * 6, ratio=0.1, quality=(20, 30, 48), **goes)  # never
    table = report.write(folder)["speedup"].table
    topk, dgc = row(table, "topk"), row(table, "dgc")
    assert topk["speedup_over_fp32"] == pytest.approx(2)
    assert topk["target_over_fp32"] == pytest.approx(0.6 / 0.2)
    assert topk["quality_over_fp32"] == pytest.approx((66 / 0.3) / (60 / 0.6))
    assert (topk["steps_to_target"], topk["reached_target"]) == (4, 1)
    assert dgc["speedup_over_fp32"] == pytest.approx(4)
    assert math.isnan(dgc["target_over_fp32"])
    assert (dgc["quality_over_fp32"], dgc["reached_target"]) == (0, 0)  # as the paper counts it
    text = (folder / "REPORT.md").read_text()
    head = next(line for line in text.splitlines() if line.startswith("| compressor") and "over fp32" in line)
    assert "| over fp32 | time to top1 50 | quality / time over fp32 |" in head
    assert "| 2.00x | 0.20 s (3.00x) | 2.20x |" in text
    assert "| 4.00x | ✗ | 0 |" in text
    assert "- ✗: the target was never reached in these steps; quality / time is then 0" in text


def test_less_perplexity_is_more_quality(job, folder):
    job("none", [100] * 4, every=2, quality=(400, 200))
    job("topk", [100] * 4, every=2, quality=(400, 100), ratio=0.1)
    table = report.write(folder)["speedup"].table
    assert row(table, "topk")["quality_over_fp32"] == pytest.approx(2)
    text = (folder / "REPORT.md").read_text()
    assert "time to" not in text.split("### What")[0]  # no target, no column
    assert "quality / time: final 1/perplexity" in text


def test_without_evaluations_on_the_way_there_are_no_such_columns(sweep, folder):
    table = report.write(folder)["speedup"].table
    assert table[["seconds_to_target", "target_over_fp32", "quality_over_fp32", "reached_target"]].isna().all(axis=None)
    tables = (folder / "REPORT.md").read_text().split("### What")[0]
    assert "quality / time" not in tables
    assert "✗" not in tables


def test_a_target_that_one_seed_or_dense_never_reached(job, folder):
    goes = {"task": "Classification", "every": 1, "target": 50}
    for seed, ends in ((1, 60), (2, 40)):
        job("none", [100] * 2, seed=seed, quality=(20, 40), **goes)
        job("topk", [50] * 2, seed=seed, quality=(20, ends), ratio=0.1, **goes)
    job("dgc", [50] * 2, quality=(20, 60), ratio=0.1, **goes)
    table = report.write(folder)["speedup"].table
    assert math.isnan(row(table, "topk")["seconds_to_target"])
    assert math.isnan(row(table, "dgc")["quality_over_fp32"])  # over 0
    text = (folder / "REPORT.md").read_text()
    assert "| ✗ 1 of 2 seeds |" in text
    assert "| 0.10 s |" in text
    assert re.search(r"- dgc 0.1: .*no speed-up to the target for seed 1: dense fp32 never reached it", text)


def test_true_dgc_has_the_dense_baseline_of_its_momentum_and_says_where_it_is(job, folder):
    correction = {"_target_": "sidco.feedback.MomentumCorrection", "momentum": 0.9, "nesterov": False}
    feedback = {"_target_": "sidco.feedback.ErrorFeedback"}
    job("none", [100] * 3, optimizer=MOMENTUM)
    job("topk", [50] * 3, ratio=0.1, optimizer=MOMENTUM, feedback=feedback)
    job("sidco_e", [50] * 3, ratio=0.1, optimizer=MOMENTUM, feedback=feedback, training={"step_space": True})
    job(
        "dgc_full", [25] * 3, ratio=0.1, optimizer={**MOMENTUM, "momentum": 0.0}, feedback=correction,
        training={"local_clip": True},
    )  # fmt: skip
    table = report.write(folder)["speedup"].table
    assert row(table, "dgc_full")["speedup_over_fp32"] == pytest.approx(4)
    assert table.set_index("label")[["momentum", "memory"]].to_numpy().tolist() == [
        ["0.9 after", "none"],
        ["0.9 before", "momentum correction"],
        ["0.9 after", "step space"],
        ["0.9 after", "gradient space"],
    ]
    assert set(table["weight_decay"]) == {1e-4}
    assert {"momentum", "weight_decay", "memory"} <= set(pd.read_csv(folder / "runs.csv").columns)
    text = (folder / "REPORT.md").read_text()
    assert "| momentum correction; momentum 0.9 before compression | measured |" in text
    assert "| EF in step space; momentum 0.9 after compression | measured |" in text
    assert "- all rows: weight decay 0.0001; learning rate 0.1" in text


def test_training_that_all_rows_share_is_said_once(job, folder):
    feedback = {"_target_": "sidco.feedback.ErrorFeedback"}
    job("none", [100] * 3)
    job("topk", [50] * 3, ratio=0.1, feedback=feedback)
    report.write(folder)
    text = (folder / "REPORT.md").read_text()
    assert "- all rows: EF in gradient space; no momentum; no weight decay" in text
    assert "| training |" not in text


@pytest.mark.parametrize(
    "other",
    [
        {"optimizer": {**MOMENTUM, "momentum": 0.0}},
        {"optimizer": {**MOMENTUM, "weight_decay": 0.0}},
        {"training": {"batch_per_rank": 8}},
        {"training": {"target": 3.0}},
    ],
    ids=["momentum", "weight decay", "batch", "target"],
)
def test_other_training_is_no_baseline_and_the_cells_are_told_apart(job, folder, other):
    job("none", [100] * 3, **{"optimizer": MOMENTUM, **other})
    job("topk", [50] * 3, ratio=0.1, optimizer=MOMENTUM)
    table = report.write(folder)["speedup"].table
    assert math.isnan(row(table, "topk")["speedup_over_fp32"])
    assert table["where"].nunique() == 2
    ((name, _),) = next(iter(other.values())).items() - MOMENTUM.items()
    assert all(f"{name}=" in where for where in table["where"])


def test_virtual_workers_have_no_speed(sweep, job, folder):
    path = job("topk", [5] * 3, ratio=0.5, network="virtual", **NO_LINK, seed=7)
    tables = report.write(folder)
    assert 0.5 not in set(tables["speedup"].table["ratio"])
    assert list(tables["convergence"].table["ratio"]) == [0.5]
    virtual = read(folder).set_index("job").loc[path.name]
    timed = [name for name in virtual.index if "_ms" in name or "second" in name]
    assert virtual[[name for name in timed if name not in ("job_seconds", "mean_ms")]].isna().all()


def test_jobs_without_a_result_are_listed_and_are_no_rows(sweep, job, folder):
    failed, cut, short = (job("topk", [5, 5, 5], ratio=ratio) for ratio in (0.2, 0.3, 0.4))
    (failed / "status.json").write_text(json.dumps({"state": "diverged", "reason": "rank 1: loss\nnan", "updated": 1}))
    (cut / "summary.json").write_text((cut / "summary.json").read_text()[:50])
    (short / "steps.jsonl").write_text((short / "steps.jsonl").read_text().splitlines()[0] + "\n")
    (folder / "jobs" / "never").mkdir()
    assert len(read(folder)) == 5
    found = states(folder).set_index("job")["state"]
    assert found[[failed.name, cut.name, short.name, "never"]].tolist() == [
        "diverged",
        *["incomplete"] * 2,
        "unfinished",
    ]
    report.write(folder)
    text = (folder / "REPORT.md").read_text()
    assert f"{failed.name}: **diverged**: rank 1: loss nan" in text
    assert f"{cut.name}: **incomplete**: summary.json is missing or cut short" in text


def test_only_the_newest_code_is_in_the_table(sweep, job, folder):
    job("none", [10, 10, 10], code_fingerprint="old", finished=0.5)
    assert set(newest_code(read(folder))["code_fingerprint"]) == {"new"}
    table = report.write(folder)["speedup"].table
    assert row(table, "topk")["speedup_over_fp32"] == pytest.approx(2)
    assert "1 rows of older code are in runs.csv and left out here" in (folder / "REPORT.md").read_text()
    assert len(pd.read_csv(folder / "runs.csv")) == 6


def test_the_papers_numbers_are_marked_and_kept_apart(sweep, folder):
    numbers = paper_numbers()
    assert list(numbers["value"]) == ["41.7", "7.6", "1.9"]
    assert set(numbers["mark"]) == {"P"}
    side = headline(SPEEDUP.draw(read(folder)), numbers)
    assert set(side["origin"]) == {"paper"}
    assert set(side["page"]) == {"page not transcribed"}
    assert side["measured_max"].tolist() == pytest.approx([2.5, 1.25, 1.0])
    table = report.write(folder)["speedup"].table
    assert set(table["origin"]) == {"measured"}
    assert not any(value in (folder / "tables" / "speedup.csv").read_text() for value in ("41.7", "7.6x"))


def test_numbers_from_memory_are_refused(tmp_path):
    path = tmp_path / "recalled.csv"
    path.write_text("claim,value,unit,mark,page,source\nSIDCo over Topk,9,x,M,,somewhere\n")
    with pytest.raises(ValueError, match="marked M"):
        paper_numbers(path)


def test_loopback_is_shouted(job, folder, capsys, monkeypatch):
    job("none", [100, 100, 100], network="loopback", rate_mbit_per_s=None, burst_kib=None)
    monkeypatch.setattr("sys.argv", ["report", str(folder)])
    report.main()
    assert "NOT shaped" in capsys.readouterr().out
    text = (folder / "REPORT.md").read_text()
    assert "> **LOOPBACK: the links of these rows were NOT shaped." in text
    assert "bench on data, LOOPBACK, not shaped" in text


def test_a_report_replaces_the_one_before(sweep, folder):
    stale = folder / "figures" / "stale.png"
    stale.parent.mkdir()
    stale.touch()
    report.write(folder)
    left = sorted(path.name for path in (folder / "figures").iterdir())
    assert left == ["break_even.png", "speedup.png", "step_time.png"]


def test_an_artifact_without_data_says_what_fills_it(sweep, job, folder):
    report.write(folder)
    line = "- convergence: no data here; `make artifact-convergence` fills it"
    assert line in (folder / "REPORT.md").read_text().splitlines()
    for name, hint in (
        ("real", "`make artifact-convergence PROFILE=real` fills it"),
        ("mine", "`make artifact-convergence` has it, in outputs/quick"),
        ("convergence_lm", "`make artifact-convergence` has it, in outputs/quick"),  # no speed is measured there
    ):
        folder = folder.rename(folder.with_name(name))
        report.write(folder)
        assert hint in (folder / "REPORT.md").read_text()


def test_one_artifact_alone_leaves_the_whole_report_as_it_is(sweep, job, folder, monkeypatch):
    report.write(folder)
    before = (folder / "REPORT.md").read_text()
    job("topk", [5] * 3, ratio=0.5, network="virtual", **NO_LINK, seed=7)
    monkeypatch.setattr("sys.argv", ["report", str(folder), "--only", "convergence"])
    report.main()
    assert (folder / "REPORT.md").read_text() == before
    alone = (folder / "REPORT_convergence.md").read_text()
    assert "## Convergence" in alone
    assert "## Speed" not in alone
    assert {path.name for path in (folder / "figures").iterdir()} >= {"speedup.png", "convergence.png"}


def test_nothing_finished_is_an_error_that_says_what_is_there(job, folder, monkeypatch):
    (job("none", [1, 1, 1]) / "status.json").write_text(json.dumps({"state": "failed", "reason": "no luck"}))
    monkeypatch.setattr("sys.argv", ["report", str(folder)])
    with pytest.raises(SystemExit, match="at least one finished job below jobs/, got 1 failed") as caught:
        report.main()
    assert caught.value.code != 0


def test_publish_copies_what_can_be_traced(sweep, job, folder, tmp_path):
    broken = job("topk", [5, 5, 5], ratio=0.2)
    reason = f"rank 0: see {broken}/logs and https://example.org/a/b"
    (broken / "status.json").write_text(json.dumps({"state": "failed", "reason": reason}))
    job("none", [10, 10, 10], code_fingerprint="old", finished=0.5, uncommitted_changes=True)
    target = publish(folder, reference=tmp_path / "reference")
    assert target == tmp_path / "reference" / "2x-abacus" / "quick"
    assert {p.name for p in target.rglob("*.*")} == {
        "REPORT.md", "runs.csv", "speedup.csv", "speedup.md", "speedup.png", "step_time.png",
        "table1.csv", "table1.md", "break_even.csv", "break_even.md", "break_even.png",
    }  # fmt: skip
    text = (target / "REPORT.md").read_text()
    assert "rank 0: see …/logs and https://example.org/a/b" in text
    assert not any(str(tmp_path) in path.read_text() for path in (*target.rglob("*.md"), *target.rglob("*.csv")))
    assert len(pd.read_csv(target / "runs.csv")) == 5  # the rows of older code stay at home


def test_publish_refuses_uncommitted_code_unless_told_and_then_says_so(job, folder, tmp_path):
    job("none", [100, 100, 100], uncommitted_changes=True)
    with pytest.raises(Refused, match="1 of 1 with uncommitted changes"):
        publish(folder, reference=tmp_path)
    target = publish(folder, allow_dirty=True, reference=tmp_path)
    assert "Published with --allow-dirty: 1 of 1 rows" in (target / "REPORT.md").read_text()


def test_publish_refuses_code_of_no_commit(job, folder, tmp_path):
    job("none", [100, 100, 100], commit="unknown", uncommitted_changes=None)
    with pytest.raises(Refused, match="known commit"):
        publish(folder, allow_dirty=True, reference=tmp_path)


@pytest.mark.parametrize(
    "text", ["8 words/s", "tables/speedup.csv", "https://a.org/b/c", "loss / time", "n/a", "1/2/3"]
)
def test_what_is_no_absolute_path_stays(text):
    assert without_paths(text) == text
