"""Every law for every compressor yaml, with and without error feedback, at the paper's three ratios."""

import pytest
from conftest import ROOT

from experiments.build import build, check
from sidco.feedback import ErrorFeedback
from sidco.testing import LAWS, agrees_on_every_rank

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
@pytest.mark.case(40)
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
