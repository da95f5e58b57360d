"""What wraps a compressor, against the formulas written out."""

import math

import pytest
import torch

from sidco.compressors.sidco import Sidco
from sidco.compressors.topk import TopK
from sidco.feedback import ErrorFeedback, MomentumCorrection, RatioWarmup
from sidco.fits import Exponential
from sidco.method import Gathered
from sidco.plan import WholeModel
from sidco.testing import dense_of
from sidco.vectors import samples
from sidco.workers import VirtualWorkers

N = 500


def gradients(count):
    return [samples(N, seed)["laplace"] for seed in range(count)]


def test_error_feedback_is_the_formula():
    compressor, memory = ErrorFeedback(TopK(0.05)), torch.zeros(N)
    state = compressor.init(memory)
    for g in gradients(5):
        p = memory + g
        expected = torch.zeros(N)
        top = p.abs().topk(25).indices
        expected[top] = p[top]
        memory = p - expected
        payload, state = compressor.compress(g, state)
        assert torch.equal(dense_of(payload), expected)
        assert torch.equal(state.residual, memory)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_correction_is_the_formula(nesterov):
    m = 0.9
    compressor = MomentumCorrection(TopK(0.05), momentum=m, nesterov=nesterov)
    state, u, v = compressor.init(torch.zeros(N)), torch.zeros(N), torch.zeros(N)
    for g in gradients(6):
        u = m * (u + g) if nesterov else m * u + g
        v = v + u + g if nesterov else v + u
        top = v.abs().topk(25).indices
        expected = torch.zeros(N)
        expected[top] = v[top]
        u[top], v[top] = 0, 0
        payload, state = compressor.compress(g, state)
        assert torch.allclose(dense_of(payload), expected, rtol=1e-6)
        assert torch.allclose(state.momentum, u, rtol=1e-5, atol=1e-9)
        assert torch.allclose(state.velocity, v, rtol=1e-5, atol=1e-9)


def test_momentum_correction_that_sends_all_is_momentum_sgd_with_masked_momentum():
    compressor, state = MomentumCorrection(TopK(1.0), momentum=0.9), None
    state = compressor.init(torch.zeros(N))
    for g in gradients(3):  # everything is sent, so masking forgets all momentum: what is sent is the gradient
        payload, state = compressor.compress(g, state)
        assert torch.allclose(dense_of(payload), g)


def test_each_rank_clips_to_its_share():
    clip, world = 0.01, 4
    compressor = MomentumCorrection(TopK(1.0), momentum=0.0, clip=clip, world_size=world)
    (g,) = gradients(1)
    assert g.norm() > clip
    payload, _ = compressor.compress(g, compressor.init(g))
    sent = dense_of(payload)
    assert sent.norm().item() == pytest.approx(clip / math.sqrt(world), rel=1e-3)
    assert torch.allclose(sent / sent.norm(), g / g.norm(), atol=1e-6)
    small = g * (0.1 * clip / math.sqrt(world) / g.norm())
    payload, _ = compressor.compress(small, compressor.init(g))
    assert torch.equal(dense_of(payload), small)


def test_warm_up_goes_through_its_ratios():
    compressor = ErrorFeedback(RatioWarmup(TopK(0.01), ratios=(0.2, 0.1, 0.001), steps=2))
    state, counts = compressor.init(torch.zeros(N)), []
    for g in gradients(9):
        payload, state = compressor.compress(g, state)
        counts.append(payload.count)
    # 0.001 is below the compressor's own ratio, which is never undercut
    assert counts == [100, 100, 50, 50, 5, 5, 5, 5, 5]


def test_warm_up_restarts_the_stage_controller():
    inner = Sidco(0.001, Exponential(), Exponential())
    compressor = RatioWarmup(inner, ratios=(0.2,), steps=3)
    state = compressor.init(torch.zeros(10_000))
    for seed in range(4):
        _, state = compressor.compress(samples(10_000, seed)["normal"], state)
    assert state.inner.target == 10
    assert state.inner.calls == 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MomentumCorrection(TopK(0.1), momentum=1.0), "momentum must lie in"),
        (lambda: MomentumCorrection(TopK(0.1), clip=0.0), "clip must be"),
        (lambda: RatioWarmup(ErrorFeedback(TopK(0.1))), "needs a compressor with a ratio"),
        (lambda: RatioWarmup(TopK(0.1), ratios=(2.0,)), "ratio must be"),
        (lambda: RatioWarmup(TopK(0.1), steps=0), "steps must be"),
    ],
)
def test_nonsense_is_refused_at_construction(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_step_space_is_ef_sgd_in_steps():
    """p = lr g + e, sent C(p), e = p - C(p): with a rate that changes, unlike a memory of gradients."""
    torch.manual_seed(0)
    model = torch.nn.Linear(30, 1, bias=False)
    workers = VirtualWorkers(model, Gathered(ErrorFeedback(TopK(0.1))), WholeModel(), world_size=1, seed=0)
    weights, memory = model.weight.detach().clone(), torch.zeros(1, 30)
    for step, lr in enumerate((0.1, 0.1, 0.01, 0.3)):
        x = samples(30 * 8, step)["normal"].view(8, 30)
        workers.scale = lr
        workers.backward([model(x).square().mean()])
        gradient = 2 * (x @ weights.T).mul(x).mean(0, keepdim=True)
        p = lr * gradient + memory
        sent = torch.zeros(1, 30)
        top = p.abs().view(-1).topk(3).indices
        sent.view(-1)[top] = p.view(-1)[top]
        memory = p - sent
        with torch.no_grad():
            weights -= sent
            assert model.weight.grad is not None
            model.weight -= lr * model.weight.grad
        assert torch.allclose(model.weight, weights, rtol=1e-5, atol=1e-7)
