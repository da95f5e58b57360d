"""Messages against plain arithmetic."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sidco.payload import Dense, Sparse, index_dtype, mean_of


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
