"""Sparse messages in other words: the same laws, exact bytes, and nothing lost to rounding."""

from dataclasses import dataclass

import pytest
import torch

from sidco.comm import lockstep
from sidco.compressors.cast import Cast
from sidco.compressors.hard import HardThreshold
from sidco.compressors.sidco import Sidco
from sidco.compressors.topk import TopK
from sidco.feedback import ErrorFeedback
from sidco.fits import Exponential
from sidco.method import Gathered
from sidco.payload import Sparse
from sidco.testing import (
    accepts_edge_vectors,
    counts_ranks_apart,
    dense_of,
    is_odd,
    loses_nothing,
    repeats_itself,
    stops_at_nan,
    survives_the_wire,
)
from sidco.traffic import Traffic
from sidco.vectors import samples
from sidco.wire import TYPES, Coded, Wire

N = 1003


@dataclass(frozen=True)
class Greedy(HardThreshold):
    """Sends everything, and says it aims at less."""

    ratio: float = 0.05

    def threshold(self, view, state):
        return torch.zeros(()), None


LAWS = (
    survives_the_wire, loses_nothing, repeats_itself, counts_ranks_apart, accepts_edge_vectors, stops_at_nan, is_odd,
)  # fmt: skip


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(
    "words", [("bfloat16", False), ("float16", True), ("float32", False, 1.25), ("bfloat16", True, 1.0)]
)
def test_a_coded_message_obeys_the_laws(law, words):
    law(Wire(Sidco(0.05, Exponential(), Exponential()), *words))


@pytest.mark.parametrize("values", TYPES)
@pytest.mark.parametrize(("bitmap", "places"), [(False, 4 * 10), (True, 126)])
def test_bytes_are_those_of_places_and_values(values, bitmap, places):
    payload, _ = Wire(TopK(0.01), values, bitmap).compress(samples(N, 0)["normal"], None)
    assert payload.pack().nbytes == places + 10 * TYPES[values].itemsize


@pytest.mark.parametrize("bitmap", [False, True])
def test_places_arrive(bitmap):
    for indices in ([], [0], [7, 8], [0, 1, 15, 16, N - 1], list(range(N))):
        message = Sparse.of(torch.arange(1.0, len(indices) + 1), torch.tensor(indices, dtype=torch.int64), N)
        coded = Coded.coded(message, torch.float32, bitmap)
        again = coded.received(coded.pack())
        assert again.indices.tolist() == indices
        assert torch.equal(dense_of(again), dense_of(message))


def test_rounding_stays_in_the_residual():
    x = samples(N, 1)["laplace"]
    feedback = ErrorFeedback(Wire(TopK(0.1), "bfloat16"))
    payload, state = feedback.compress(x, feedback.init(x))
    assert torch.equal(payload.values, payload.values.bfloat16().float())
    assert not torch.equal(dense_of(payload) + 0 * x, torch.where(dense_of(payload) != 0, x, 0.0)), "bfloat16 rounds"
    assert torch.allclose(dense_of(payload) + state.residual, x, atol=1e-7)


def test_what_float16_cannot_hold_comes_later():
    x = torch.tensor([1e5, 1.0])
    feedback = ErrorFeedback(Wire(TopK(0.5), "float16"))
    payload, state = feedback.compress(x, feedback.init(x))
    assert dense_of(payload).tolist() == [65504.0, 0.0]
    assert state.residual.tolist() == [1e5 - 65504.0, 1.0]


def test_a_message_of_fixed_length_keeps_the_largest_and_leaves_the_rest():
    x = torch.linspace(-1.0, 1.0, N)  # 2 x 51 exceed what selects 50 of 1003
    feedback = ErrorFeedback(Wire(Sidco(0.05, Exponential(), Exponential(), stages=1), capacity=1.25))
    state, lengths = feedback.init(x), set()
    for _ in range(4):
        payload, state = feedback.compress(x, state)
        lengths.add(payload.pack().nbytes)
        again = payload.received(payload.pack())
        assert again.indices.tolist() == payload.indices.tolist()
        assert payload.count <= 63
    assert lengths == {4 + 63 * 8}, "ceil(1.25 * 50) coordinates and a count"
    greedy = Wire(Greedy(tau=0.0), capacity=1.0)
    payload, _ = greedy.compress(x, greedy.init(x))
    assert payload.indices.tolist() == [*range(25), *range(N - 25, N)], "of all, the 50 largest"


def test_a_head_that_cannot_be_is_refused():
    payload, _ = Wire(TopK(0.05), capacity=1.25).compress(samples(N, 0)["normal"], None)
    buffer = payload.pack()
    buffer[1] = 77
    with pytest.raises(ValueError, match="room for 63 coordinates says it has"):
        payload.received(buffer)


def test_fixed_lengths_need_no_sizes():
    x, traffic = samples(N, 0)["normal"], [Traffic(), Traffic()]
    for wire, sent in ((Wire(TopK(0.01)), 10 * 8 + 8), (Wire(TopK(0.01), capacity=1.0), 10 * 8 + 4)):
        before = traffic[0].copy()
        lockstep([Gathered(wire).aggregate([x], None) for _ in traffic], traffic)
        assert traffic[0].minus(before).sent_bytes == sent


@pytest.mark.parametrize(("capacity", "inner", "words"), [
    (0.5, TopK(0.1), "at least 1"), (1.5, HardThreshold(0.1), "a ratio of its own"),
])  # fmt: skip
def test_a_capacity_is_of_a_target(capacity, inner, words):
    with pytest.raises(ValueError, match=words):
        Wire(inner, capacity=capacity)


def test_only_sparse_messages_are_coded():
    with pytest.raises(ValueError, match="values and indices, got Dense"):
        Wire(Cast("bfloat16")).compress(torch.ones(3), None)
    with pytest.raises(ValueError, match="one of float32, float16, bfloat16"):
        Wire(TopK(0.1), "int8")
