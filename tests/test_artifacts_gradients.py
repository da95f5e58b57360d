"""The artifacts about gradients, on vectors whose law is known and on fabricated jobs that captured some."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from fabricated import NO_LINK, write_job
from rich.cells import cell_len
from scipy import stats

from experiments import report
from experiments.artifacts import distribution, gaussiank, gradients, power_law, selected
from experiments.artifacts.gradients import EARLY, GRADIENT, LATE, SUM, captures, descending, tail_energy
from experiments.artifacts.laws import NORMAL, SHARES, laws
from experiments.capture import captured, residual
from experiments.results import read
from sidco.compressors.topk import TopK
from sidco.feedback import ErrorFeedback, MomentumCorrection
from sidco.method import Gathered
from sidco.plan import PerParameter, SizeCapped, WholeModel
from sidco.workers import VirtualWorkers

EF = {"_target_": "sidco.feedback.ErrorFeedback"}
LENGTH = 20_000


def drawn(kind, length=200_000):
    """Values of a known law, float32."""
    rng = np.random.default_rng(3)
    signs = rng.choice([-1.0, 1.0], length)
    values = {
        "exponential": lambda: signs * rng.exponential(2.0, length),
        "gamma": lambda: signs * rng.gamma(0.5, 3.0, length),
        "normal": lambda: rng.normal(0.0, 0.1, length),
        "uniform": lambda: rng.uniform(-1.0, 1.0, length),
        "equal": lambda: signs,
        "power": lambda: rng.permutation(signs * np.arange(1, length + 1) ** -0.8),
    }[kind]()
    return values.astype(np.float32)


def rows(measure, *kinds, length=200_000):
    """The table an artifact would have of vectors of these laws."""
    return pd.DataFrame([
        {"where": "here", "compressor": "topk", "ratio": 0.001, "vector": GRADIENT, "step": 1, "job": kind, **row}
        for kind in kinds for row in measure(drawn(kind, length))
    ])  # fmt: skip


def test_laws_are_those_of_the_closed_forms():
    x = drawn("gamma")
    a = np.abs(x.astype(np.float64))
    points = np.quantile(a, [0.01, 0.2, 0.5, 0.9, 0.99, 0.9999])
    s = math.log(a.mean()) - np.log(a).mean()
    shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    q = a.mean() ** 2 / a.var(ddof=1)
    oracles = {
        "exponential": stats.expon(scale=a.mean()),
        "gamma": stats.gamma(shape, scale=a.mean() / shape),
        "generalised Pareto": stats.genpareto((1 - q) / 2, scale=a.mean() * (q + 1) / 2),
        NORMAL: stats.halfnorm(scale=math.sqrt((a**2).mean())),
    }
    found = laws(x)
    assert list(found) == list(oracles)
    for name, law in found.items():
        assert (np.diff(law.quantiles) >= 0).all()
        np.testing.assert_allclose(law.above(points), oracles[name].sf(points), rtol=3e-3, atol=1e-9)
        np.testing.assert_allclose(law.quantile(np.array([0.5, 0.001])), oracles[name].isf([0.5, 0.001]), rtol=3e-3)
    assert (np.diff(SHARES) < 0).all()
    both = found["gamma"].below_signed(np.array([-points[2], 0.0, points[2]]))
    np.testing.assert_allclose(both, [0.5 - (1 - 0.5) / 2, 0.5, 0.75], atol=0.01)


@pytest.mark.parametrize(
    ("kind", "law", "least"),
    [("exponential", "exponential", 0.005), ("gamma", "gamma", 0.03), ("normal", NORMAL, 0.005)],
)
def test_the_law_a_sample_comes_from_is_the_closest(kind, law, least):
    found = rows(distribution.measure, kind).set_index("law")
    assert found["ks"][law] < least
    close = {law, "gamma", "generalised Pareto"} if kind == "exponential" else {law}  # both contain the exponential
    assert all(found["ks"][other] > 5 * found["ks"][law] for other in set(found.index) - close)
    if law != NORMAL:
        assert found["threshold_0.001_over_empirical"][law] == pytest.approx(1, abs=0.1)


def test_the_claims_on_distributions_hold_and_fail():
    peaked, normal = rows(distribution.measure, "gamma"), rows(distribution.measure, "normal")
    assert distribution.closer(peaked, NORMAL).state == "holds"
    assert distribution.closer(peaked, "exponential").state == "holds"
    verdict = distribution.closer(normal, NORMAL)
    assert verdict.state == "fails"
    assert "normal 0.00" in verdict.cells[0].figure
    assert distribution.closer(pd.concat([peaked, normal]), NORMAL).tally == "(1 of 2)"
    assert distribution.closer(peaked[:0], NORMAL).state == "no data"
    text = distribution.text(peaked.assign(feedback="none"))
    assert text["closest"].tolist() == ["gamma"]


def test_zeros_are_counted_and_not_fitted():
    x = np.concatenate([drawn("exponential"), np.zeros(600_000, np.float32)])
    found = pd.DataFrame(distribution.measure(x)).set_index("law")
    assert found["zeros"].unique() == pytest.approx([0.75])
    assert found["ks"]["exponential"] < 0.005


def test_the_exponent_of_a_power_law_is_found():
    table = rows(power_law.measure, "power", "uniform")
    power, uniform = table["p"]
    assert power == pytest.approx(0.8, rel=0.02)
    assert table["misfit"][0] == pytest.approx(1, abs=1e-3)
    assert table["p_beyond"][0] == pytest.approx(0.8, rel=0.02)
    assert uniform < 0.1
    verdict = power_law.compressible(table)
    assert [cell.holds for cell in verdict.cells] == [True, False]
    assert "p = 0.800" in verdict.cells[0].figure
    assert power_law.compressible(table[:1]).state == "holds"
    assert power_law.bounded(table).state == "holds"
    assert len(power_law.bounded(table).cells) == 1, "where p is below 1/2 the law bounds nothing"
    assert power_law.bounded(table.assign(sigma_slope=0.0)).state == "fails"


def test_a_vector_that_is_nearly_all_zero_has_no_exponent():
    x = np.zeros(10_000, np.float32)
    x[:5] = 1
    (found,) = power_law.measure(x)
    assert math.isnan(found["p"])
    assert math.isnan(found["sigma_slope"])


def test_what_top_k_leaves_is_the_sum_of_the_smaller_squares():
    x = drawn("gamma", 1000)
    ordered, kept = descending(x), np.array([0, 1, 7, 7, 500, 999])
    left = [(np.sort(np.abs(x.astype(np.float64)))[: 1000 - k] ** 2).sum() for k in kept]
    np.testing.assert_allclose(tail_energy(ordered, kept), left, rtol=1e-6)


def test_how_far_a_curve_is_from_convex():
    x = np.linspace(0, 1, 101)
    np.testing.assert_allclose(gaussiank.convex_hull(x, x**2), x**2)
    bump = x**2 + np.where(x == 0.5, 0.1, 0)
    gaps = bump - gaussiank.convex_hull(x, bump)
    assert gaps.argmax() == 50
    assert gaps.max() == pytest.approx(0.1, abs=1e-3)
    np.testing.assert_allclose(gaussiank.convex_hull(x, -(x**2)), -x, atol=1e-12)


def test_gaussiank_s_bound_holds_under_its_assumption_and_fails_without():
    table = rows(gaussiank.measure, "exponential", "equal", length=100_000)
    judges = (gaussiank.convex, gaussiank.below_line, gaussiank.bounded)
    assert [judge(table[:1]).state for judge in judges] == ["holds"] * 3
    assert [judge(table[1:]).state for judge in judges] == ["holds", "fails", "fails"]
    equal = table.iloc[1]
    for share in gaussiank.FRACTIONS:  # of equal magnitudes Top-k leaves just what it must
        assert equal[f"left_{share:g}"] == pytest.approx(1 - share)
        assert equal[f"bound_{share:g}"] == pytest.approx(1 - share)
    assert equal["over_square"] == pytest.approx(0.25, abs=1e-3)  # (1 - s) - (1 - s)^2 is largest at a half
    assert equal["over_square_at"] == pytest.approx(0.5, abs=1e-2)
    assert "worst at k = 0.5 d, by 0.25" in gaussiank.bounded(table).cells[1].figure


def test_only_normal_vectors_pass_for_normal():
    table = rows(gaussiank.measure, "exponential", "normal")
    assert [cell.holds for cell in gaussiank.not_normal(table).cells] == [True, False]
    assert table["kurtosis"][1] == pytest.approx(3, abs=0.1)
    assert table["kurtosis"][0] == pytest.approx(6, abs=0.5)


def test_of_a_long_vector_the_same_sample_is_taken_every_time(monkeypatch):
    x = drawn("normal", 5000)
    assert gradients.sample(x).size == 5000
    monkeypatch.setattr(gradients, "SAMPLE", 1000)
    first = gradients.sample(x)
    assert first.size == 1000
    assert np.isin(first, x).all()
    assert np.array_equal(first, gradients.sample(x))


def job(folder, name, *, ratio=None, feedback=None, steps=10, densities=None, captured=(1, 9)):
    """A finished job of virtual workers; with feedback a sum beside each gradient."""
    path = write_job(
        folder, name, [5.0] * steps, ratio=ratio, feedback=feedback, rule="ef" if feedback else "plain",
        network="virtual", **NO_LINK, training={"excluded_steps": 0},
    )  # fmt: skip
    if densities:
        lines = [json.loads(line) for line in (path / "steps.jsonl").read_text().splitlines()]
        changed = [{**line, "density": density} for line, density in zip(lines, densities, strict=True)]
        (path / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))
    (path / "captures").mkdir()
    for step in captured:
        np.save(path / "captures" / f"step{step}.npy", drawn("gamma", LENGTH) / (1 + step))
        if feedback:
            np.save(path / "captures" / f"step{step}_ef.npy", drawn("exponential", LENGTH))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of jobs with and without feedback, and its report."""
    folder = tmp_path_factory.mktemp("outputs") / "quick"
    job(folder, "none")
    for name in ("topk", "sidco_e"):
        job(folder, name, ratio=0.01, feedback=EF)
    job(folder, "topk", ratio=0.01)
    job(folder, "gaussiank", ratio=0.01, feedback=EF, densities=[0.02] * 10)
    job(folder, "randomk", ratio=0.01, captured=(1, 3))  # all early: nothing to compare
    report.write(folder)
    return folder


def test_of_a_step_it_is_what_the_compressor_saw(folder):
    found = captures(read(folder), folder)
    assert sorted(set(found["compressor"])) == ["gaussiank", "none", "sidco_e", "topk"]
    assert len(found) == 10
    assert set(found["where"]) == {"bench, virtual workers"}
    assert found[["step", "when"]].drop_duplicates().to_numpy().tolist() == [[1, EARLY], [9, LATE]]
    vectors = found.groupby(["compressor", "feedback"])["vector"].unique().explode()
    assert vectors[("topk", "gradient space")] == SUM
    assert vectors[("topk", "none")] == GRADIENT
    assert vectors[("none", "none")] == GRADIENT


def test_the_vectors_that_are_drawn_are_of_one_compressor_with_feedback_and_one_without(folder):
    found = captures(read(folder), folder)
    chosen = gradients.pictured(found, found, ("sidco_e", "topk", "none"))
    assert chosen[["compressor", "vector", "step"]].to_numpy().tolist() == [
        ["topk", GRADIENT, 1], ["topk", GRADIENT, 9], ["sidco_e", SUM, 1], ["sidco_e", SUM, 9],
    ]  # fmt: skip
    without = found[found["vector"] == GRADIENT]
    assert len(gradients.pictured(without, without, ())) == 2


def test_the_report_has_tables_pictures_and_verdicts(folder):
    text = (folder / "REPORT.md").read_text()
    for title in ("## What gradients look like", "## Power-law decay", "## GaussianK's bounds"):
        assert title in text
    assert "| topk | 0.01 | EF in gradient space | residual + gradient | 9 |" in text
    assert "- **holds**: One of the three laws is closer to the magnitudes than a normal law is (10 of 10)" in text
    assert "captured: at steps 1, 9 of 10" in text
    assert {path.name for path in (folder / "figures").iterdir()} >= {
        "distribution_bench_virtual_workers.png", "power_law.png", "gaussiank.png",
    }  # fmt: skip
    assert "- microbench: no data here; `make artifact-microbench` fills it" in text
    for name in ("distribution", "power_law", "gaussiank", "gaussiank_selected"):
        assert str(folder) not in (folder / "tables" / f"{name}.csv").read_text()
    assert set(pd.read_csv(folder / "tables" / "distribution.csv")["origin"]) == {"measured"}


def test_the_terminal_s_tables_fit(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["report", str(folder), "--only", "distribution"])
    report.main()
    said = capsys.readouterr().out.splitlines()[:-1]  # the last names the report
    assert any("generalised Pareto" in line or "gamma" in line for line in said)
    assert max(map(cell_len, said)) <= 120


def test_what_is_selected_adds_up_over_the_steps(folder):
    counts = pd.read_csv(folder / "tables" / "gaussiank_selected.csv")
    assert set(counts["compressor"]) == {"topk", "gaussiank", "sidco_e"}
    last = counts[counts["step"] == 9].set_index(["compressor", "feedback"])["accumulated"]
    assert last[("gaussiank", "gradient space")] == 10 * 0.02 * LENGTH
    assert last[("sidco_e", "gradient space")] == 10 * 0.01 * LENGTH
    assert set(counts.loc[counts["step"] == 9, "asked"]) == {10 * 0.01 * LENGTH}
    verdict = selected.within(counts)
    assert (verdict.state, verdict.cells[0].figure) == ("fails", "2.00 times k over 10 steps")
    verdict = selected.nearer(counts)
    assert (verdict.state, verdict.cells[0].figure) == ("holds", "1.00 times k, GaussianK 2.00")
    assert selected.within(counts[counts["compressor"] == "topk"]).state == "no data"


def test_vectors_of_zeros_are_left_out(tmp_path):
    path = job(tmp_path, "none")
    np.save(path / "captures" / "step1.npy", np.zeros(LENGTH, np.float32))
    (tmp_path / "figures").mkdir()
    part = power_law.POWER_LAW.part(read(tmp_path), tmp_path)
    assert part
    assert part.table["step"].tolist() == [9]
    np.save(path / "captures" / "step9.npy", np.zeros(LENGTH, np.float32))
    assert power_law.POWER_LAW.part(read(tmp_path), tmp_path) is None


def test_runs_that_kept_no_gradient_have_none_of_these_parts(tmp_path):
    write_job(tmp_path, "none", [5.0] * 4)
    parts = report.write(tmp_path)
    assert "speedup" in parts
    assert not {"distribution", "power_law", "gaussiank"} & set(parts)


class Small(torch.nn.Module):
    """Three parameters of different shapes; the gradient of each is the input, in its shape."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Parameter(torch.zeros(n)) for n in (2, 3, 4))

    def forward(self, x):
        return (torch.cat([self.a, self.b, self.c]) * x).sum()


@pytest.mark.parametrize("plan", [WholeModel(), PerParameter(), SizeCapped(1e-5)], ids=["model", "parameter", "capped"])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_with_feedback_the_sum_that_was_compressed_is_kept_beside_the_gradient(tmp_path, plan, scale):
    method, path = Gathered(ErrorFeedback(TopK(0.2))), tmp_path / "captures" / "step1.npy"
    workers = VirtualWorkers(Small(), method, plan, world_size=2, seed=1)
    workers.scale = scale
    first, second = (torch.randn(9, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    workers.backward(workers.model(x) for x in (first, torch.ones(9)))
    kept = residual(workers, method, plan)
    assert kept is not None
    sent = scale * first - kept
    assert ((sent == 0) | (kept == 0)).all(), "what is sent is not kept"
    assert 0 < int((sent != 0).sum()) < 9
    before = kept.clone()
    with captured(workers, path, kept):
        workers.backward(workers.model(x) for x in (second, torch.ones(9)))
    assert np.array_equal(np.load(path), second.numpy())
    np.testing.assert_allclose(np.load(path.with_name("step1_ef.npy")), (before + scale * second).numpy())


@pytest.mark.parametrize("method", [None, Gathered(TopK(0.5)), Gathered(MomentumCorrection(TopK(0.5)))])
def test_without_error_feedback_there_is_no_sum(method):
    workers = VirtualWorkers(Small(), method or Gathered(TopK(0.5)), WholeModel(), world_size=1, seed=1)
    assert residual(workers, method, WholeModel()) is None
