"""The micro-benchmark: who is measured, on what, in which order, and what is made of the numbers. No test looks at a
time that was really measured."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT

from experiments.bench import clock, memory, report, rounds, vectors
from experiments.bench.__main__ import _arguments, main, plan_of, run
from experiments.bench.claims import CLAIMS, fits
from experiments.bench.clock import Clock
from experiments.bench.plan import PRESETS, Case, Plan
from experiments.bench.rounds import Runner, Timed
from experiments.bench.subjects import BASELINE, known, subjects
from experiments.bench.vectors import BadGradients, captured, randn
from experiments.build import ConfigError, build, check
from experiments.capture import captured as capturing
from sidco.compressors.dgc import DgcSampling
from sidco.compressors.topk import TopK
from sidco.feedback import ErrorFeedback, MomentumCorrection
from sidco.method import Gathered
from sidco.plan import WholeModel
from sidco.workers import VirtualWorkers

CPU = torch.device("cpu")
WITHOUT_MESSAGE = {"none", "powersgd"}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The folder of one small run of everything."""
    output = tmp_path_factory.mktemp("bench")
    main(["--quick", "--output", str(output), "--name", "quick"])
    return output / "quick"


@pytest.fixture(scope="module")
def rows(quick):
    return pd.read_csv(quick / "bench.csv")


def test_every_yaml_that_makes_messages_is_measured_as_jobs_use_it():
    found = subjects(None, 0.01, alone=True)
    used = {subject.compressor: subject for subject in found if subject.as_jobs}
    assert set(used) == (set(known()) - WITHOUT_MESSAGE) | {"add_"}
    assert build(used["topk"].node) == ErrorFeedback(TopK(0.01))
    assert (used["topk"].memory, used["bf16"].memory, used["dgc_full"].memory) == ("ef", "none", "momentum")
    assert isinstance(build(used["dgc_full"].node), MomentumCorrection)
    assert (used["topk"].ratio, used["dgc_full"].ratio, used["hard"].ratio) == (0.01, 0.01, None)
    bare = {subject.compressor: build(subject.node) for subject in found if not subject.as_jobs}
    assert bare["topk"] == TopK(0.01)
    assert not {"add_", "bf16", "dense"} & set(bare), "what has no memory is measured once"


def test_the_warm_up_of_a_ratio_is_over_before_anything_is_timed():
    (node,) = (s.node for s in subjects(["dgc_full"], 0.01, alone=False) if s.compressor == "dgc_full")
    runner = Runner(BASELINE._replace(compressor="dgc_full", node=node), torch.zeros(5000), Clock())
    runner.warm_up(randn(5000).gradients(CPU), Plan((), warmup=10))
    assert runner.report()["ratio_in_force"] == 0.01
    assert build(node).inner.inner == DgcSampling(0.01)


def test_topk_and_the_pass_over_memory_are_always_there():
    assert [s.compressor for s in subjects(["sidco_e"], 0.1, alone=False)] == ["add_", "topk", "sidco_e"]
    with pytest.raises(ConfigError, match="got sidko"):
        subjects(["sidko"], 0.1, alone=False)


@pytest.mark.case(43)
def test_a_device_is_waited_for_before_and_after_a_call():
    """A dummy device: a call only queues its work, and the hands of the clock move when work is done."""
    queue, hands = [5.0], [0.0]

    def settle():
        hands[0] += sum(queue)
        queue.clear()

    watch = Clock(settle, lambda: hands[0])
    result, seconds = watch.time(lambda: queue.append(3.0) or "queued")
    assert result == "queued"
    assert seconds == 3.0, "neither what was queued before, nor only the time it took to queue"
    assert not queue


def test_an_accelerator_is_synchronised_and_a_cpu_is_not(monkeypatch):
    settled = []
    monkeypatch.setattr(torch.accelerator, "synchronize", settled.append)
    device = torch.device("cuda", 0)
    Clock.of(device).time(lambda: None)
    assert settled == [device, device]
    Clock.of(CPU).time(lambda: None)
    assert len(settled) == 2


def test_caches_are_read_with_their_units(tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "CACHES", tmp_path)
    assert clock.cache_bytes(CPU) == clock.UNKNOWN_CACHE
    for index, size in enumerate(("48K", "32M", "1024K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert clock.cache_bytes(CPU) == 32 << 20


def test_eight_different_gradients_are_in_rotation(monkeypatch):
    kept = torch.get_rng_state()
    gradients = randn(1000).gradients(CPU)
    assert torch.equal(torch.get_rng_state(), kept)
    assert len({tuple(x.tolist()) for x in gradients}) == 8
    assert all(torch.equal(x, y) for x, y in zip(gradients, randn(1000).gradients(CPU), strict=True))
    monkeypatch.setattr(vectors, "HUGE", 1000)
    views = randn(1000).gradients(CPU)
    assert len({x.untyped_storage().data_ptr() for x in views}) == 1
    assert len({tuple(x.tolist()) for x in views}) == 8
    assert {x.data_ptr() % 64 for x in views} == {views[0].data_ptr() % 64}, "all views lie alike in cache lines"
    assert "shifted" in randn(1000).rotation


def test_a_round_times_every_compressor_once_on_the_same_gradient():
    order = []
    plan = Plan((), rounds=12, round_seconds=1e9)
    samples = rounds._rounds(["a", "b", "c"], lambda runner, place: order.append((place, runner)), plan)
    assert order == [(place, name) for place in range(12) for name in "abc"]
    assert [len(of_one) for of_one in samples.values()] == [12, 12, 12]
    short = rounds._rounds(["a"], lambda runner, place: None, replace(plan, round_seconds=0.0))
    assert len(short[0]) == rounds.LEAST_ROUNDS, "time that is up does not leave us without quantiles"


def test_a_state_goes_from_call_to_call():
    gradients = randn(500).gradients(CPU)
    runner = Runner(BASELINE, torch.zeros(500), Clock())
    for x in gradients:
        runner.call(x)
    torch.testing.assert_close(runner._state.residual, torch.stack(gradients).sum(0))


def test_ratios_are_taken_within_a_round_and_then_their_median():
    """The machine halves its speed in the second round: it must not show."""
    runner = Runner(BASELINE._replace(compressor="x", ratio=0.01), torch.zeros(1000), Clock())
    runner.counts, runner.warmed = [45, 15, 10, 15, 20], 2
    timed = [Timed(seconds, 0.0, 0.0, count, 8) for seconds, count in ((3.0, 10), (6.0, 15), (4.0, 20))]
    row = rounds._row(runner, timed, np.array([1.0, 2.0, 1.0]), np.array([30.0, 60.0, 20.0]))
    assert row["times_add_median"] == 3.0
    assert row["speedup_topk_median"] == 10.0
    assert row["compress_ms_median"] == 4000.0
    assert (row["khat_over_k_timed"], row["khat_over_k_all"]) == (1.5, 2.1)
    assert (row["khat_over_k"], row["khat_calls"]) == (1.5, 4), "from the second half of the warm-up on"
    assert row["density"] == 0.015


def test_peak_memory_counts_what_a_call_takes():
    if not os.access(memory.CLEAR, os.W_OK):
        pytest.skip("this system does not reset its high-water mark")
    numel, mib = 4 << 20, 1 << 20
    found = subjects(["dense"], 0.01, alone=False)
    add, topk, dense = memory.extra(randn(numel), found, CPU)
    assert add.peak < mib
    assert abs(dense.peak - 4 * numel) < mib
    assert topk.peak > 4 * numel, "|x| is a vector of its own"
    assert topk.message == 8 * int(0.01 * numel)


def test_a_run_leaves_tidy_rows_of_known_origin(rows):
    assert set(rows["compressor"]) == (set(known()) - WITHOUT_MESSAGE) | {"add_"}
    assert not rows.duplicated(["vector", "ratio", "cache", "compressor", "memory"]).any()
    assert set(rows["cache"]) == {"cold", "hot"}
    for name in ("hardware", "commit", "threads", "code_fingerprint", "torch_version", "origin"):
        assert rows[name].notna().all()
        assert rows[name].nunique() == 1
    assert set(rows["origin"]) == {"measured"}
    timed = [name for name in rows if name.endswith("_median")]
    assert rows[timed].gt(0).all(axis=None)
    for name in ("compress_ms", "times_add", "speedup_topk"):
        assert (rows[f"{name}_p20"] <= rows[f"{name}_median"]).all()
        assert (rows[f"{name}_median"] <= rows[f"{name}_p80"]).all()


def test_what_all_is_compared_with_is_one_in_every_round(rows):
    add = rows[rows["compressor"] == "add_"]
    assert add[["times_add_p20", "times_add_median", "times_add_p80"]].eq(1).all(axis=None)
    topk = rows[(rows["compressor"] == "topk") & rows["as_jobs"]]
    assert topk[["speedup_topk_p20", "speedup_topk_median", "speedup_topk_p80"]].eq(1).all(axis=None)
    assert topk["khat_over_k"].eq(1).all()
    assert topk["memory"].eq("ef").all()


def test_a_run_leaves_a_report_and_figures_that_can_be_drawn_again(quick, rows):
    text = (quick / "BENCH.md").read_text()
    for sentence in CLAIMS:
        assert sentence in text
    assert "**no data**: SIDCo-E with error feedback costs" in text, "these vectors are too short for it"
    assert str(ROOT) not in text
    pictures = sorted((quick / "figures").glob("*.png"))
    assert [path.stem for path in pictures] == ["cost", "speedup_topk", "times_add"]
    for path in (quick / "BENCH.md", *pictures):
        path.unlink()
    main(["--draw", "--output", str(quick.parent), "--name", quick.name])
    assert (quick / "BENCH.md").read_text() == text
    assert all(path.exists() for path in pictures)


def test_a_vector_that_does_not_fit_is_left_out_and_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.bench.__main__.available_bytes", lambda: 1e6)
    plan = Plan((Case(randn(1000), (0.1,), ("bf16",)), Case(randn(1 << 20), (0.1,), ("bf16",))), warmup=5, rounds=5)
    assert set(run(plan, CPU, tmp_path)["numel"]) == {1000}
    main(["--draw", "--output", str(tmp_path.parent), "--name", tmp_path.name])
    assert "left out: randn 1,048,576: needs" in (tmp_path / "BENCH.md").read_text()


def test_the_command_line_changes_the_preset():
    plan = plan_of(_arguments(["--preset", "resnet50", "--ratios", "0.01", "--compressors", "dgc", "--warmup", "7"]))
    (case,) = plan.cases
    assert (case.vector.numel, case.ratios, case.compressors, plan.warmup) == (25_557_032, (0.01,), ("dgc",), 7)
    huge, small = plan_of(_arguments(["--sizes", str(1 << 28), "9"])).cases
    assert (huge.compressors is None, huge.alone, small.compressors is None, small.alone) == (False, False, True, True)
    assert PRESETS["resnet50"].cases[0].compressors is None, "the preset itself measures all"
    for words in (["--sizes"], ["--sizes", "0"], ["--warmup", "0"]):
        with pytest.raises(ConfigError, match="expected numbers of at least 1"):
            plan_of(_arguments(words))


def test_a_busy_machine_is_said_to_be_one(rows):
    told = [report._warnings(rows.assign(load_before=load, cores=2)) for load in (0.4, 0.6)]
    assert told[0] == []
    assert "a load of 0.6 on 2 cores" in told[1][0]


def test_drawing_nothing_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"expected bench\.csv"):
        main(["--draw", "--output", str(tmp_path), "--name", "nothing"])


def claimed(**changed):
    """Rows of SIDCo-E and three others at three lengths, exactly linear; what every claim asks for."""
    found = []
    for numel in (1 << 20, 100 << 18, 1 << 28):
        for name, slower in (("sidco_e", 1), ("dgc", 2), ("redsync", 5), ("gaussiank", 7)):
            spread = {
                f"{key}_{part}": value
                for key, value in (("times_add", 1.3), ("speedup_topk", 20.0)) for part in ("median", "p20", "p80")
            }  # fmt: skip
            found.append({
                "vector": f"randn {numel:,}", "numel": numel, "captured": False, "ratio": 0.001, "cache": "cold",
                "compressor": name, "as_jobs": True, "compress_ms_median": 1e-6 * numel * slower, **spread,
                "khat_over_k": 1.1, "khat_over_k_timed": 1.2, "khat_calls": 35,
                "extra_bytes": 9e6, "extra_message_bytes": 8e6, **changed,
            })  # fmt: skip
    return pd.DataFrame(found)


def states(rows):
    return [judge(rows).state for judge in CLAIMS.values()]


def test_claims_hold_fail_or_have_no_data():
    assert states(claimed()) == ["holds"] * 6
    worse = {"times_add_median": 1.6, "khat_over_k": 1.3, "speedup_topk_median": 14.9, "extra_bytes": 9.1e6}
    assert states(claimed(**worse)) == ["fails", "fails", "fails", "holds", "holds", "fails"]
    assert states(claimed(compress_ms_median=3.0)) == ["holds", "holds", "holds", "fails", "fails", "holds"]
    assert states(claimed(cache="hot")) == ["no data"] * 6
    short = claimed()[lambda rows: rows["numel"] < 1 << 28]
    assert states(short)[4] == "no data", "an exponent from a million to ten says nothing of 260"
    assert fits(claimed()).set_index("compressor")["exponent"].round(9).eq(1).all()


class Twice(torch.nn.Module):
    """A weight that is used twice, and one that nobody uses."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        self.idle = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (self.weight * x).sum() + (self.weight**2).sum()


def test_a_capture_is_the_first_workers_own_gradient_and_changes_nothing(tmp_path):
    def trained(path):
        model = Twice()
        workers = VirtualWorkers(model, Gathered(TopK(0.4)), WholeModel(), world_size=2, seed=1)
        losses = (model(torch.full((2,), float(worker))) for worker in (3, 5))
        if path:
            with capturing(workers, path):
                workers.backward(losses)
        else:
            workers.backward(losses)
        return model.weight.grad

    path = tmp_path / "captures" / "step0.npy"
    assert torch.equal(trained(path), trained(None))
    assert np.load(path).tolist() == [3 + 2, 3 + 4, 0, 0, 0]
    assert np.load(path).dtype == np.float32
    assert [file.name for file in path.parent.iterdir()] == ["step0.npy"]


def test_a_job_captures_what_rank_0_computed_and_the_bench_takes_it(tmp_path, composed):
    words = ["benchmark=resnet20_digits", "profile=smoke", "capture.steps=[0,2]"]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.train", *words], cwd=tmp_path, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = tmp_path.glob("outputs/smoke/jobs/*/captures")
    assert sorted(path.name for path in folder.iterdir()) == ["step0.npy", "step0_ef.npy", "step2.npy", "step2_ef.npy"]
    assert np.array_equal(np.load(folder / "step0.npy"), np.load(folder / "step0_ef.npy")), "nothing is kept back yet"
    assert not np.array_equal(np.load(folder / "step2.npy"), np.load(folder / "step2_ef.npy"))
    config = check(composed(*words))
    torch.manual_seed(config["seed"])
    model, task, size = build(config["model"]), build(config["task"]), config["training"]["batch_per_rank"]
    batch = next(build(config["dataset"]).train_batches(0, 2, size, 0, config["seed"]))
    loss, _ = task.loss(model, batch, None)
    own = torch.cat([grad.reshape(-1) for grad in torch.autograd.grad(loss, list(model.parameters()))])
    torch.testing.assert_close(torch.from_numpy(np.load(folder / "step0.npy")), own)

    (vector,) = captured([folder])
    assert (vector.numel, vector.distinct) == (own.numel(), 2)
    main([
        "--gradients", str(folder), "--sizes", "--ratios", "0.01", "--compressors", "sidco_e", "--warmup", "5",
        "--rounds", "5", "--output", str(tmp_path), "--name", "captured",
    ])  # fmt: skip
    assert pd.read_csv(tmp_path / "captured" / "bench.csv")["captured"].all()
    assert "Fewer than 8 gradients in rotation" in (tmp_path / "captured" / "BENCH.md").read_text()


def test_files_that_are_no_gradients_are_refused(tmp_path):
    with pytest.raises(BadGradients, match=r"capture\.steps"):
        captured([tmp_path])
    for content in (np.zeros(3), np.zeros((2, 2), np.float32), np.zeros(0, np.float32)):
        np.save(tmp_path / "bad.npy", content)
        with pytest.raises(BadGradients, match="expected a flat float32 vector"):
            captured([tmp_path / "bad.npy"])
    (tmp_path / "bad.npy").write_text("no array")
    with pytest.raises(BadGradients, match=r"expected a \.npy file"):
        captured([tmp_path / "bad.npy"])


def test_a_step_that_never_comes_is_refused(composed):
    with pytest.raises(ConfigError, match=r"capture\.steps must lie in 0 to 23"):
        check(composed("capture.steps=[24]"))
    assert check(composed("capture.steps=[3]"))["training"]["capture_steps"] == [3]
