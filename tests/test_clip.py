"""Clipping: of the averaged gradient, once, and never of a gradient that is no number."""

import math
from dataclasses import replace

import pytest
import torch
from test_checkpoint import Words

from experiments.build import build, check
from experiments.loop import Diverged, Trainer
from experiments.schedule import groups
from sidco.feedback import MomentumCorrection
from sidco.method import Gathered, NonFiniteGradient
from sidco.workers import VirtualWorkers

CLIP = 0.05  # well below the norms here


def trainer(config, world, clip=CLIP):
    """Virtual workers on a small LSTM; with this optimizer a step takes the clipped gradient off the weights."""
    torch.manual_seed(1)
    model = build({**config["model"], "symbols": 30, "embedding": 8, "hidden": 16, "dropout": 0.0})
    workers = VirtualWorkers(model, build(config["method"]), build(config["plan"]), world_size=world, seed=1)
    training = {**config["training"], "batch_per_rank": 3, "clip_norm": clip}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Trainer(workers, build(config["task"]), Words(), optimizer, training, tuple(range(world)), world, 7)


def losses(of):
    """Of the first batch of each worker."""
    return [of.forward(next(of.batches(share)), None)[0] for share in of.shares]


def weights(of):
    return torch.cat([p.detach().reshape(-1).clone() for p in of.workers.module.parameters()])


def step(of):
    """What one step takes off the weights."""
    before = weights(of)
    of.update(of.workers.backward(losses(of)).mean().item())
    return before - weights(of)


@pytest.mark.case(16)
@pytest.mark.parametrize("world", [1, 2])
def test_the_norm_is_that_of_the_averaged_gradient_in_one_process(composed, world):
    config = check(composed("compressor=dense"))
    found, alone = step(trainer(config, world)), trainer(config, world)
    torch.stack(losses(alone)).mean().backward()
    parameters = list(alone.workers.module.parameters())
    norm = torch.nn.utils.clip_grad_norm_(parameters, CLIP)
    assert norm > 2 * CLIP
    expected = torch.cat([p.grad.reshape(-1) for p in parameters])
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-7)
    assert found.norm().item() == pytest.approx(CLIP, rel=1e-3)


@pytest.mark.case(16)
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", ["topk", "sidco_e", "powersgd"])
def test_what_is_clipped_is_what_compression_left(composed, name, world):
    config = check(composed(f"compressor={name}", "ratio=0.1"))
    whole, clipped = step(trainer(config, world, clip=None)), step(trainer(config, world))
    assert whole.norm() > CLIP
    assert torch.allclose(clipped, whole * (CLIP / whole.norm()), rtol=1e-3, atol=1e-6)


@pytest.mark.case(16)
def test_dgc_clips_on_each_rank_and_nowhere_else(composed):
    config = check(composed("compressor=dgc_full", "workers.world_size=4"))
    method = build(config["method"])
    assert isinstance(method, Gathered)
    assert isinstance(method.compressor, MomentumCorrection)
    assert (method.compressor.clip, method.compressor.world_size) == (config["training"]["clip_norm"], 4)
    g = torch.ones(1000)
    payload, _ = method.compressor.compress(g, method.compressor.init(g))
    assert payload.values.abs().max().item() == pytest.approx(0.25 / math.sqrt(4) / math.sqrt(1000), rel=1e-3)
    assert torch.equal(step(trainer(config, 2)), step(trainer(config, 2, clip=None))), "clipped a second time"


@pytest.mark.case(69)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_is_never_clipped_nor_applied(composed, bad):
    one = trainer(check(composed("compressor=dense")), 2)
    loss = one.workers.backward(losses(one)).mean().item()
    before = weights(one)
    next(one.workers.module.parameters()).grad.view(-1)[3] = bad
    with pytest.raises(Diverged, match=r"norm of the averaged gradient (nan|inf)"):
        one.update(loss)
    assert torch.equal(weights(one), before)
    with pytest.raises(Diverged, match=f"loss {bad}"):
        one.update(bad)
    assert torch.equal(weights(one), before)


@pytest.mark.case(69)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, -1], ids=["a matrix", "a bias"])
def test_a_group_that_does_not_decay_is_clipped_and_guarded_like_the_other(composed, place, bad):
    one = trainer(check(composed("compressor=dense")), 2)
    module = one.workers.module
    one = replace(one, optimizer=torch.optim.SGD(groups(module, decay_1d=False), lr=1.0, weight_decay=0.0))
    assert len(one.optimizer.param_groups) == 2
    assert step(one).norm().item() == pytest.approx(CLIP, rel=1e-3), "one norm of both groups"
    loss = one.workers.backward(losses(one)).mean().item()
    before, parameters = weights(one), list(module.parameters())
    assert [parameters[place].dim() for place in (0, -1)] == [2, 1]
    parameters[place].grad.view(-1)[3] = bad
    with pytest.raises(Diverged, match=r"norm of the averaged gradient (nan|inf)"):
        one.update(loss)
    assert torch.equal(weights(one), before)


@pytest.mark.case(69)
@pytest.mark.parametrize("name", ["dense", "topk", "sign", "powersgd"])
def test_a_worker_whose_gradient_is_no_number_stops_the_step_before_the_update(composed, name):
    one = trainer(check(composed(f"compressor={name}")), 2)
    before, (good, bad) = weights(one), losses(one)
    with pytest.raises(NonFiniteGradient):
        one.workers.backward([good, bad * math.nan])
    assert torch.equal(weights(one), before)
    assert all(bool(torch.isfinite(part).all()) for part in tensors(one.workers.state_dict()))


def tensors(state):
    """All of them in a state."""
    if isinstance(state, torch.Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, tuple) else ()
    return [tensor for part in parts for tensor in tensors(part)]
