"""PowerSGD where there is nothing to factor: Gram-Schmidt with a norm of zero has given NaN to others."""

import pytest
import torch

from sidco.comm import lockstep
from sidco.methods.powersgd import PowerSGD

SHAPES = {"dead": (20, 12), "alive": (16, 24), "bias": (20,), "kernel": (8, 3, 3, 3)}
LAYOUT = tuple((name, torch.Size(shape)) for name, shape in SHAPES.items())
METHOD = PowerSGD(rank=2, min_rate=1.5)
WORLD = 2


def gradients(step, silent=()):
    """For each of the ranks, the tensors of a step; those in `silent` are zero on all ranks."""
    ranks = []
    for rank in range(WORLD):
        generator = torch.Generator().manual_seed(10 * step + rank)
        drawn = {name: torch.randn(shape, generator=generator) for name, shape in LAYOUT}
        ranks.append([torch.zeros_like(g) if name in silent else g for name, g in drawn.items()])
    return ranks


def train(steps):
    """The mean after each step, by tensor, and the states after the last."""
    n = sum(shape.numel() for _, shape in LAYOUT)
    states = [METHOD.init(torch.zeros(n), layout=LAYOUT, seed=3) for _ in range(WORLD)]
    means = []
    for grads in steps:
        results = lockstep([METHOD.aggregate(g, s) for g, s in zip(grads, states, strict=True)])
        states = [state for _, state in results]
        assert all(torch.equal(mean, results[0][0]) for mean, _ in results)
        parts = results[0][0].split([shape.numel() for _, shape in LAYOUT])
        means.append({name: part.view(shape) for (name, shape), part in zip(LAYOUT, parts, strict=True)})
        for state in states:
            assert all(bool(torch.isfinite(part).all()) for part in (*state.residuals, *state.factors))
    return means, states


@pytest.mark.case(20)
@pytest.mark.parametrize("silent_steps", [1, 3])
def test_zeros_give_zeros_and_training_goes_on(silent_steps):
    means, states = train([gradients(step, silent=SHAPES) for step in range(silent_steps)])
    for mean in means:
        assert not any(bool(part.any()) for part in mean.values())
    assert not any(bool(residual.any()) for state in states for residual in state.residuals)

    steps = [gradients(step, silent=SHAPES if step < silent_steps else ()) for step in range(silent_steps + 20)]
    means, states = train(steps)
    for place, (name, _) in enumerate(LAYOUT):  # the law: applied + kept = gradients, also after the silence
        total = sum(torch.stack([grads[place] for grads in step]).mean(0) for step in steps)
        applied = sum(mean[name] for mean in means)
        kept = torch.zeros_like(total)
        if name != "bias":  # travels whole
            among = [n for n, _ in LAYOUT if n != "bias"].index(name)
            kept = torch.stack([state.residuals[among] for state in states]).mean(0).view_as(total)
        assert torch.allclose(applied + kept, total, rtol=0, atol=1e-4)
        assert bool(applied.any()), "nothing got through after the silence"


@pytest.mark.case(20)
def test_a_dead_layer_is_zero_and_does_not_touch_its_neighbours():
    """As behind a ReLU that never fires: one layer's gradient is zero for ever, or from some step on."""
    whole, _ = train([gradients(step) for step in range(4)])
    born_dead, _ = train([gradients(step, silent=("dead",)) for step in range(4)])
    for with_it, without in zip(whole, born_dead, strict=True):
        assert not bool(without["dead"].any())
        assert all(torch.equal(with_it[name], without[name]) for name in SHAPES if name != "dead")


@pytest.mark.case(20)
def test_what_is_thinner_than_the_rank_has_no_noise_added():
    """Rank 1 in a rank 2 method: the second column is a norm of zero to rounding."""
    row, column = torch.linspace(-1, 1, 12), torch.linspace(1, 2, 20)
    grads = [[torch.outer(column, row), *(torch.zeros(shape) for name, shape in LAYOUT if name != "dead")]] * WORLD
    means, _ = train([grads] * 3)
    for mean in means:
        assert torch.allclose(mean["dead"], torch.outer(column, row), atol=1e-5)
