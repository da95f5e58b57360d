"""Messages against plain arithmetic."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sidco.comm import lockstep
from sidco.compressors.sign import ScaledSign
from sidco.method import Gathered
from sidco.payload import Dense, Signs, Sparse, index_dtype, mean_of
from sidco.traffic import Traffic


@st.composite
def supports(draw):
    """A length and, for each of several ranks, a random support in it: empty, overlapping, of unequal sizes."""
    n = draw(st.integers(1, 400))
    ranks = draw(st.integers(1, 5))
    return n, [sorted(draw(st.sets(st.integers(0, n - 1), max_size=n))) for _ in range(ranks)]


@pytest.mark.case(25)
@pytest.mark.case(40)
@given(supports())
@settings(max_examples=200, deadline=None)
def test_mean_of_sparse_messages_is_exact(drawn):
    n, ranks = drawn
    messages, expected = [], torch.zeros(n, dtype=torch.float64)
    for rank, support in enumerate(ranks):
        values = torch.arange(1, len(support) + 1, dtype=torch.float32) * (rank + 1)
        message = Sparse.of(values, torch.tensor(support, dtype=torch.int64), n)
        message.validate()
        messages.append(Sparse.unpack(message.pack(), n))
        for place, value in zip(support, values.tolist(), strict=True):
            expected[place] += value
    mean = mean_of(messages, torch.empty(n))
    assert torch.allclose(mean.double(), expected / len(ranks), rtol=1e-6, atol=0)


@pytest.mark.case(26)
def test_indices_stay_exact_beyond_float_precision():
    n, place = 2**24 + 10, 2**24 + 1  # as a float32 it would be 2^24
    message = Sparse.of(torch.tensor([1.5], dtype=torch.bfloat16), torch.tensor([place]), n)
    again = Sparse.unpack(message.pack(), n)
    assert again.indices.tolist() == [place]
    assert message.indices.dtype == torch.int32


@pytest.mark.case(25)
def test_long_vectors_get_long_indices():
    assert index_dtype(2**31 - 1) == torch.int32
    assert index_dtype(2**31) == torch.int64
    n = 2**31 + 5
    message = Sparse.of(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 7, 2**31 + 1]), n)
    buffer = message.pack()
    assert buffer.nbytes == 3 * 12
    again = Sparse.unpack(buffer, n)
    assert again.indices.tolist() == [0, 7, 2**31 + 1]
    assert again.values.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.case(25)
@pytest.mark.parametrize("indices", [[3, 1], [2, 2], [-1, 4], [0, 10]])
def test_a_corrupt_message_is_refused(indices):
    message = Sparse(torch.ones(2), torch.tensor(indices, dtype=torch.int32), 10)
    with pytest.raises(ValueError, match="indices must"):
        message.validate()


def test_a_message_cut_short_is_refused():
    with pytest.raises(ValueError, match="words a coordinate"):
        Sparse.unpack(torch.zeros(3, dtype=torch.int32), 10)


def test_clear_zeroes_what_is_carried():
    out = torch.ones(6)
    Sparse.of(torch.ones(2), torch.tensor([1, 4]), 6).clear(out)
    assert out.tolist() == [1, 0, 1, 1, 0, 1]
    Dense(torch.ones(6)).clear(out)
    assert out.tolist() == [0] * 6


@pytest.mark.case(32)
@pytest.mark.parametrize("n", [1, 7, 8, 9, 1000, 1001])
def test_signs_are_a_bit_each_and_a_scale(n):
    x = torch.linspace(-1, 1, n)
    method, traffic = Gathered(ScaledSign()), Traffic()
    lockstep([method.aggregate([x], method.init(x, layout=(("w", x.shape),), seed=0))], [traffic])
    assert traffic.payload_bytes == -(-n // 8) + 4
    assert Signs.of(x).pack().nbytes == traffic.payload_bytes


@pytest.mark.case(32)
def test_the_sign_of_zero_is_positive_and_zeros_stay_zeros():
    def sent(*values):
        message = Signs.of(torch.tensor(values))
        return mean_of([Signs.unpack(message.pack(), len(values))], torch.empty(len(values))).tolist()

    assert sent(*[0.0] * 9) == [0.0] * 9, "of nothing, nothing"
    assert sent(0.0, -0.0, 3.0, -3.0) == [1.5, 1.5, 1.5, -1.5], "zero of either sign counts as positive"
    assert all("zero" in kind.__doc__.lower() or "sign(0) = +1" in kind.__doc__ for kind in (Signs, ScaledSign))


@pytest.mark.case(32)
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=70))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_signs_come_back_as_they_went(values):
    x = torch.tensor(values)
    again = Signs.unpack(Signs.of(x).pack(), len(values))
    scale = x.abs().double().mean().float()
    assert torch.equal(mean_of([again], torch.empty(len(values))), torch.where(x < 0, -scale, scale))
