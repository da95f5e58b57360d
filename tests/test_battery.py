"""Every law for every compressor yaml, with and without error feedback, at the paper's three ratios."""

from dataclasses import replace

import pytest
import torch
from conftest import ROOT

from experiments.build import build, check
from sidco.comm import lockstep
from sidco.feedback import ErrorFeedback
from sidco.method import Gathered
from sidco.testing import LAWS, accepts_edge_vectors, agrees_on_every_rank, finds_a_threshold, survives_the_wire
from sidco.traffic import Traffic

COMPRESSORS = sorted(path.stem for path in (ROOT / "conf" / "compressor").glob("*.yaml"))
RATIOS = (0.1, 0.01, 0.001)


def distinct(composed, name, part):
    """What a yaml makes of `part` at the three ratios, each once; nothing for plain DDP."""
    nodes = [check(composed(f"compressor={name}", f"ratio={ratio}"))[part] for ratio in RATIOS]
    return list({repr(node): build(node) for node in nodes if node is not None}.values())


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.case(7)
@pytest.mark.case(25)
@pytest.mark.case(26)
@pytest.mark.case(37)
@pytest.mark.case(39)
@pytest.mark.case(40)
@pytest.mark.case(41)
def test_law(composed, name, law):
    for compressor in distinct(composed, name, "compressor"):
        law(compressor)
        law(ErrorFeedback(compressor))


def test_every_yaml_is_found():
    assert {"none", "dense", "bf16", "topk", "dgc", "sidco_e"} <= set(COMPRESSORS)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_method(composed, name):
    for method in distinct(composed, name, "method"):
        agrees_on_every_rank(method)


@pytest.mark.parametrize("stages", [1, 2, 3, 6, 10])
@pytest.mark.parametrize("name", [name for name in COMPRESSORS if name.startswith("sidco")])
@pytest.mark.case(39)
def test_degenerate_vectors_with_fixed_stages(composed, name, stages):
    """The authors' code takes the mean of nothing as soon as a stage leaves nothing over."""
    for ratio in RATIOS:
        compressor = build(check(composed(f"compressor={name}", f"ratio={ratio}"))["compressor"])
        compressor = replace(compressor, stages=stages)
        for law in (accepts_edge_vectors, finds_a_threshold, survives_the_wire):
            law(compressor)
            law(ErrorFeedback(compressor))


@pytest.mark.parametrize("name", ["sidco_e", "sidco_gp", "sidco_p"])
@pytest.mark.case(39)
def test_the_fall_back_is_recorded_as_what_it_is(composed, name):
    """Where nothing exceeds the threshold one coordinate is sent and counted; the stage controller hears of none."""
    compressor = build(check(composed(f"compressor={name}", "ratio=0.01"))["compressor"])
    for value, coordinates in ((0.1, 1), (0.0, 0)):
        x, traffic = torch.full((1000,), value), Traffic()
        method = Gathered(compressor)
        state = method.init(x, layout=(("w", x.shape),), seed=0)
        ((mean, state),) = lockstep([method.aggregate([x], state)], [traffic])
        assert traffic.coordinates == coordinates == torch.count_nonzero(mean)
        assert (state.calls, state.ratios) == (1, 0.0), "k_hat / k of what was selected: nothing"
