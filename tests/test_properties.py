"""What holds of every compressor whatever the vector, on vectors that hypothesis makes up: ties, zeros, any length."""

import numpy as np
import pytest
import torch
from conftest import ROOT
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from experiments.build import build, check
from sidco.feedback import ErrorFeedback, MomentumCorrection
from sidco.payload import Signs
from sidco.testing import dense_of

WITHOUT = ("none", "powersgd")  # these have no compressor
COMPRESSORS = sorted({path.stem for path in (ROOT / "conf" / "compressor").glob("*.yaml")} - set(WITHOUT))
ABSOLUTE = ("hard",)  # a fixed threshold is the one thing that is meant to depend on the unit
DRAWN = ("dgc", "dgc_full", "randomk")  # places are drawn: where a coordinate stands matters
EXAMPLES = settings(max_examples=40, deadline=None, derandomize=True)

MAGNITUDES = st.floats(2.0**-10, 2.0**10, width=32)  # four times either way, and still normal in float16
LENGTHS = st.integers(1, 200)


def vectors():
    values = st.one_of(st.just(0.0), MAGNITUDES, MAGNITUDES.map(lambda value: -value))
    return arrays(np.float32, LENGTHS, elements=values).map(torch.from_numpy)


@st.composite
def distinct_and_mixed(draw):
    """A vector no two magnitudes of which are equal, and an order to put it in."""
    magnitudes = draw(arrays(np.float32, LENGTHS, elements=MAGNITUDES, fill=st.nothing(), unique=True))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    n = magnitudes.size
    signs = torch.where(torch.rand(n, generator=generator) < 0.5, -1.0, 1.0)
    return torch.from_numpy(magnitudes) * signs, torch.randperm(n, generator=generator)


@pytest.fixture(scope="module")
def compressors(composed):
    return {name: build(check(composed(f"compressor={name}", "ratio=0.1"))["compressor"]) for name in COMPRESSORS}


def message(compressor, x):
    return compressor.compress(x, compressor.init(x, seed=1))[0]


@pytest.mark.case(41)
@pytest.mark.parametrize("name", COMPRESSORS)
@given(x=vectors())
@example(x=torch.tensor([0.0, 1.0, -1.0]))  # no threshold selects anything, and two are the largest
@EXAMPLES
def test_the_opposite_is_the_opposite(compressors, name, x):
    plus, minus = (message(compressors[name], v) for v in (x, -x))
    counted = x != 0 if isinstance(plus, Signs) else torch.ones_like(x, dtype=torch.bool)  # there, zero is positive
    assert torch.equal(dense_of(minus)[counted], -dense_of(plus)[counted])


@pytest.mark.case(41)
@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("name", [name for name in COMPRESSORS if name not in ABSOLUTE])
@given(x=vectors(), scale=st.sampled_from([0.25, 4.0]))
@EXAMPLES
def test_no_unit_is_special(compressors, name, feedback, x, scale):
    compressor = ErrorFeedback(compressors[name]) if feedback else compressors[name]
    one, other = compressor.init(x, seed=1), compressor.init(x, seed=1)
    for _ in range(2):
        plain, one = compressor.compress(x, one)
        scaled, other = compressor.compress(scale * x, other)
        assert torch.equal(dense_of(scaled), scale * dense_of(plain))


@pytest.mark.case(41)
@pytest.mark.parametrize("name", [name for name in COMPRESSORS if name not in DRAWN])
@given(drawn=distinct_and_mixed())
@EXAMPLES
def test_no_place_is_special(compressors, name, drawn):
    x, order = drawn
    plain, mixed = dense_of(message(compressors[name], x))[order], dense_of(message(compressors[name], x[order]))
    # sums are taken in another order: what lies on the threshold to rounding may go either way
    smallest = plain.abs()[plain != 0].min()
    on_the_edge = (x[order].abs() - smallest).abs() <= 1e-5 * smallest
    assert bool((torch.isclose(mixed, plain, rtol=1e-6, atol=0) | on_the_edge).all())


@pytest.mark.case(41)
@pytest.mark.parametrize("name", COMPRESSORS)
@given(x=vectors())
@EXAMPLES
def test_sent_and_kept_are_what_came_in(compressors, name, x):
    # without momentum, what DGC gathers up is a residual
    for wrapped in (ErrorFeedback(compressors[name]), MomentumCorrection(compressors[name], momentum=0.0)):
        state = wrapped.init(x, seed=1)
        total, sent = torch.zeros(x.numel(), dtype=torch.float64), torch.zeros(x.numel(), dtype=torch.float64)
        for step in range(3):
            g = x.roll(step)
            payload, state = wrapped.compress(g, state)
            total, sent = total + g, sent + dense_of(payload)
        kept = state.residual if isinstance(wrapped, ErrorFeedback) else state.velocity
        assert torch.allclose(sent + kept, total, rtol=0, atol=1e-6 * max(1.0, x.abs().max().item()) * 3)


def test_every_compressor_is_here(composed):
    assert all(check(composed(f"compressor={name}"))["compressor"] is None for name in WITHOUT)
