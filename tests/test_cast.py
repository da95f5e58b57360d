"""float16 has a narrow range: what it loses is counted, what it cannot hold stops everybody."""

import pytest
import torch

from sidco.comm import lockstep
from sidco.compressors.cast import Cast
from sidco.method import Gathered, NonFiniteGradient
from sidco.plan import WholeModel
from sidco.workers import VirtualWorkers

WORLD = 8
TOO_LARGE, TOO_SMALL = 1e5, 1e-9


def mean(dtype, *gradients):
    """Of ranks with these gradients; the method's report of rank 0."""
    method = Gathered(Cast(dtype))
    grads = [torch.tensor(values) for values in gradients]
    states = [method.init(g, layout=(("w", g.shape),), seed=0) for g in grads]
    results = lockstep([method.aggregate([g], state) for g, state in zip(grads, states, strict=True)])
    return results[0][0], method.report(results[0][1])


@pytest.mark.case(19)
def test_half_precision_divides_before_it_sums():
    found, report = mean("float16", *[[2.0**15, 1.0]] * WORLD)  # the sum, 2^18, is no float16
    assert found.tolist() == [2.0**15, 1.0]
    assert report == {"overflowed": 0, "underflowed": 0}


@pytest.mark.case(19)
def test_what_float16_loses_is_counted():
    x = torch.tensor([TOO_LARGE, -TOO_LARGE, 65_504.0, 1.0, 0.0, -0.0, TOO_SMALL, 6e-8, -TOO_SMALL, TOO_SMALL])
    compressor = Cast("float16")
    payload, state = compressor.compress(x, compressor.init(x))
    assert compressor.report(state) == {"overflowed": 2, "underflowed": 3}
    assert torch.equal(payload.pack(), x.half())
    _, state = compressor.compress(torch.ones(3), state)
    assert compressor.report(state) == {"overflowed": 0, "underflowed": 0}, "of the last vector, not of all"
    found, report = mean("float16", *[[TOO_SMALL, 1.0]] * WORLD)
    assert found.tolist() == [0.0, 1.0]
    assert report == {"overflowed": 0, "underflowed": 1}


@pytest.mark.case(19)
@pytest.mark.case(37)
def test_an_overflow_on_one_rank_stops_all_of_them():
    gradients = [torch.ones(3) for _ in range(WORLD)]
    gradients[5][1] = TOO_LARGE
    method, stopped = Gathered(Cast("float16")), 0
    dialogues = [method.aggregate([g], method.init(g, layout=(("w", g.shape),), seed=0)) for g in gradients]
    total = sum(next(dialogue).buffer / WORLD for dialogue in dialogues)
    for dialogue in dialogues:
        with pytest.raises(NonFiniteGradient, match="overflowed on the wire"):
            dialogue.send(total.clone())
        stopped += 1
    assert stopped == WORLD


@pytest.mark.case(19)
def test_bfloat16_holds_both_and_counts_nothing():
    found, report = mean("bfloat16", *[[TOO_LARGE, TOO_SMALL]] * WORLD)
    assert found.tolist() == pytest.approx([TOO_LARGE, TOO_SMALL], rel=2**-7)
    assert report == {}


@pytest.mark.case(19)
def test_the_counts_are_columns_of_a_step():
    model = torch.nn.Linear(3, 1, bias=False)
    workers = VirtualWorkers(model, Gathered(Cast("float16")), WholeModel(), world_size=WORLD, seed=0)
    workers.backward(model(torch.tensor([1.0, TOO_SMALL, TOO_SMALL])).sum() for _ in range(WORLD))
    assert workers.report() == {"overflowed": 0, "underflowed": 2}
