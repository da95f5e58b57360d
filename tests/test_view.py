"""What lies between a threshold estimator and a vector: sums that are never written, samples, one pass that takes."""

import pytest
import torch

from sidco import view
from sidco.compressor import Compressor
from sidco.compressors.dgc import DgcSampling
from sidco.compressors.gaussiank import GaussianK
from sidco.compressors.redsync import RedSync, RedSyncTrim
from sidco.compressors.sidco import Sidco
from sidco.compressors.topk import TopK
from sidco.compressors.topk_histogram import HistogramTopK
from sidco.fits import Exponential, Gamma, Pareto
from sidco.kernels import reference
from sidco.testing import dense_of
from sidco.vectors import samples
from sidco.view import VectorView

N = 200_000
E, G, P = Exponential(), Gamma(), Pareto()
THRESHOLDERS = {
    "sidco_e": Sidco(0.01, E, E), "sidco_gp": Sidco(0.01, G, P), "sidco_p": Sidco(0.01, P, P, stages=3),
    "dgc": DgcSampling(0.01), "gaussiank": GaussianK(0.01), "redsync": RedSync(0.01), "redsync_trim": RedSyncTrim(0.01),
    "topk_histogram": HistogramTopK(0.01),
}  # fmt: skip


@pytest.mark.parametrize("name", THRESHOLDERS)
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_one_pass_takes_what_add_compress_subtract_does(name, scale):
    compressor, x = THRESHOLDERS[name], samples(N, 0)["student_t"]
    fused, plain = torch.zeros(N), torch.zeros(N)
    one, other = compressor.init(x, seed=1), compressor.init(x, seed=1)
    for step in range(7):  # a power of two as scale: no rounding to differ by
        x = samples(N, step)["student_t"]
        sent, one = compressor.take(VectorView(x, fused, scale), one)
        expected, other = Compressor.take(compressor, VectorView(x, plain, scale), other)
        assert torch.equal(dense_of(sent), dense_of(expected))
        assert torch.equal(fused, plain)


class StageByStage(Exponential):
    """The same law, whose stages no view does in one go."""


@pytest.mark.parametrize("long", [view.LONG, 1 << 17])
@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("ratio", [0.001, 0.1, 0.5])
def test_stages_in_one_go_are_the_stages(ratio, stages, long, monkeypatch):
    monkeypatch.setattr(view, "LONG", long)
    x, residual, counts = samples(N, 0)["laplace"], samples(N, 1)["laplace"], []
    for fit in (E, StageByStage()):
        compressor = Sidco(ratio, fit, fit, stages=stages)
        payload, _ = compressor.take(VectorView(x, residual.clone(), 0.3), compressor.init(x))
        counts.append(payload.count)
    assert abs(counts[0] - counts[1]) <= 1  # thresholds may differ in a last place
    assert counts[0]


@pytest.mark.parametrize("ratio", [0.001, 0.1, 1.0])
@pytest.mark.parametrize("name", ["normal", "laplace"])
def test_a_histogram_finds_the_k_largest(ratio, name):
    x = samples(N, 3)[name]
    found, _ = HistogramTopK(ratio).compress(x, None)
    expected, _ = TopK(ratio).compress(x, None)
    assert torch.equal(dense_of(found), dense_of(expected))


def test_a_histogram_breaks_ties_by_index():
    x = torch.tensor([1.0, -2.0, 2.0, 0.0, 2.0])
    found, _ = HistogramTopK(0.4).compress(x, None)
    assert found.pack().view(torch.int32)[2:].tolist() == [1, 2]


@pytest.mark.parametrize("fits", [(E, E), (G, P), (P, P)], ids=["E", "GP", "P"])
def test_a_sample_of_a_long_vector_stands_for_it(fits, monkeypatch):
    """Thresholds of a sample and of the whole select about as much: within three standard errors of the last count."""
    monkeypatch.setattr(view, "SAMPLE", 1 << 14)
    monkeypatch.setattr(view, "LONG", 1 << 17)
    x, residual = samples(N, 1)["laplace"], samples(N, 2)["laplace"]
    for ratio, tolerance in ((0.1, 0.1), (0.01, 0.3)):
        counts = []
        for sampled in (True, False):
            compressor = Sidco(ratio, *fits, stages=2, sampled=sampled)
            memory = residual.clone()
            payload, _ = compressor.take(VectorView(x, memory), compressor.init(x))
            counts.append(payload.count)
            assert torch.allclose(dense_of(payload) + memory, residual + x), "nothing is lost, sampled or not"
        assert abs(counts[0] / counts[1] - 1) <= tolerance


def test_sampled_sums_are_scaled_to_the_whole(monkeypatch):
    monkeypatch.setattr(view, "SAMPLE", 1 << 12)
    monkeypatch.setattr(view, "LONG", 1 << 17)
    x = torch.full((N,), -0.5)
    found = VectorView(x, torch.full((N,), 1.0)).moments(torch.tensor(0.25), sums={"squares", "maximum"}, sampled=True)
    assert found.count.item() == pytest.approx(N)
    assert found.total.item() == pytest.approx(0.25 * N)
    assert found.squares.item() == pytest.approx(0.0625 * N)
    assert found.maximum.item() == 0.25
    exact = VectorView(x[:1000]).moments(sampled=True)
    assert exact.count.item() == 1000, "a short vector is not sampled"


@pytest.mark.case(36)
@pytest.mark.parametrize("most", [64, 1000, 4096])
def test_a_vector_too_long_for_one_topk_is_searched_in_chunks(most):
    x = samples(4096, 5)["laplace"]
    for k in (1, 100, 2000):
        values, indices = reference.largest(x, k, most)
        expected, places = reference.largest(x, k)
        assert torch.equal(indices, places)
        assert torch.equal(values, expected)
