"""Thresholds against scipy and against the formulas written out; moments against float64 sums."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from sidco.fits import Exponential, Gamma, Pareto, gamma_tail_quantile
from sidco.view import Moments, VectorView

ALL = frozenset({"squares", "logs", "maximum", "signed"})


def moments_of(a):
    a = np.asarray(a, dtype=np.float64)
    logs = np.log(a[a > 0]).sum()
    sums = (len(a), a.sum(), (a**2).sum(), logs, a.max() if len(a) else 0.0, a.sum())
    return Moments(*(torch.tensor(v, dtype=torch.float64) for v in sums))


@pytest.mark.parametrize("shape", [0.05, 0.2, 0.5, 0.9, 1.0, 1.3, 3.0, 40.0, 1e4])
@pytest.mark.parametrize("delta", [0.9, 0.25, 0.1, 1e-2, 1e-3, 1e-6])
def test_gamma_quantile_is_scipys(shape, delta):
    ours = gamma_tail_quantile(
        torch.tensor(shape, dtype=torch.float64), torch.tensor(delta, dtype=torch.float64)
    ).item()
    theirs = special.gammainccinv(shape, delta)
    assert ours == pytest.approx(theirs, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("delta", [0.25, 0.01, 0.001])
def test_each_fit_finds_the_tail_of_its_own_law(delta):
    rng = np.random.default_rng(7)
    n = 400_000
    laws = {
        Exponential(): stats.expon(scale=2e-3),
        Gamma(): stats.gamma(0.5, scale=3e-3),
        Pareto(): stats.genpareto(0.1, scale=1e-3),
    }
    for fit, law in laws.items():
        eta = fit.threshold(moments_of(law.rvs(n, random_state=rng)), delta).item()
        # the gamma's closed-form shape is an approximation of the maximum likelihood, good to 1.5 %
        assert eta == pytest.approx(law.isf(delta), rel=0.05), f"{fit}"


def test_exponential_is_the_formula():
    assert Exponential().threshold(moments_of([1, 2, 3]), 0.01).item() == pytest.approx(-2 * math.log(0.01), rel=1e-12)


def test_gamma_is_the_formula():
    a = np.array([0.1, 0.5, 1.0, 4.0])
    s = math.log(a.mean()) - np.log(a).mean()
    alpha = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    beta = a.mean() / alpha
    exact = beta * special.gammainccinv(alpha, 0.01)
    approximate = -beta * (math.log(0.01) + special.gammaln(alpha))
    assert Gamma().threshold(moments_of(a), 0.01).item() == pytest.approx(exact, rel=1e-9)
    assert Gamma(exact=False).threshold(moments_of(a), 0.01).item() == pytest.approx(approximate, rel=1e-12)


def test_pareto_is_the_formula():
    a = np.array([0.1, 0.5, 1.0, 4.0])
    q = a.mean() ** 2 / a.var(ddof=1)
    xi, b = (1 - q) / 2, a.mean() * (q + 1) / 2
    assert Pareto().threshold(moments_of(a), 0.01).item() == pytest.approx(b / xi * (0.01**-xi - 1), rel=1e-12)


def test_pareto_meets_the_exponential_at_xi_zero():
    mean, n = 2.0, 1000.0
    variance = mean**2  # q = 1, xi = 0
    squares = variance * (n - 1) + n * mean**2
    moments = Moments(*(torch.tensor(v, dtype=torch.float64) for v in (n, n * mean, squares, 0.0, 0.0, 0.0)))
    assert Pareto().threshold(moments, 0.01).item() == pytest.approx(-mean * math.log(0.01), rel=1e-6)


@pytest.mark.parametrize("fit", [Exponential(), Gamma(), Gamma(exact=False), Pareto()], ids=repr)
@pytest.mark.parametrize("a", [[], [0.0, 0.0], [3.0], [2.0] * 50, [1e-40, 2e-40], [1e30, 3e30]], ids=repr)
def test_degenerate_magnitudes_give_a_finite_threshold(fit, a):
    eta = fit.threshold(moments_of(a), 0.01).item()
    assert math.isfinite(eta)
    assert eta >= 0


@pytest.mark.parametrize("n", [0, 1, 7, 1023, 1024, 1025, 65_536, 65_537, 200_003])
@pytest.mark.parametrize("above", [None, 0.0, 1e-3, 50.0])
def test_moments_are_plain_sums(n, above):
    x = torch.randn(n, generator=torch.Generator().manual_seed(n)) * 1e-3
    x[::5] = 0
    eta = None if above is None else torch.tensor(above, dtype=torch.float64)
    found = VectorView(x).moments(eta, sums=ALL)
    a = x.abs().double() - (0.0 if eta is None else eta.float().double())
    a = a if above is None else a[a > 0]
    assert found.count.item() == len(a)
    kept = x.double() if eta is None else x.double()[x.abs() > eta.float()]
    expected = (a.sum(), (a**2).sum(), a[a > 0].log().sum(), a.max() if len(a) else torch.tensor(0.0), kept.sum())
    for value, truth in zip(found[1:-1], expected[:-1], strict=True):
        assert value.item() == pytest.approx(truth.item(), rel=2e-6, abs=1e-12)
    # signs cancel: to rounding of what is summed, not of the sum
    assert found.signed.item() == pytest.approx(expected[-1].item(), abs=1e-6 * a.sum().item() + 1e-12)


def test_what_was_not_asked_for_is_nan():
    found = VectorView(torch.ones(10)).moments()
    assert all(math.isnan(part) for part in (found.squares, found.logs, found.maximum, found.signed))
    assert not math.isnan(found.total)
