"""Every law for every compressor yaml, with and without error feedback, at the paper's three ratios."""

import pytest
from conftest import ROOT

from experiments.build import build, check
from sidco.feedback import ErrorFeedback
from sidco.testing import LAWS

COMPRESSORS = sorted(path.stem for path in (ROOT / "conf" / "compressor").glob("*.yaml"))
RATIOS = (0.1, 0.01, 0.001)


def compressors(composed, name):
    found = {}
    for ratio in RATIOS:
        node = check(composed(f"compressor={name}", f"ratio={ratio}"))["compressor"]
        if node is not None:  # `none` is plain DDP: there is nothing to hold a law against
            found.setdefault(repr(node), build(node))
    return list(found.values())


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.case(7)
@pytest.mark.case(25)
@pytest.mark.case(26)
@pytest.mark.case(40)
def test_law(composed, name, law):
    for compressor in compressors(composed, name):
        law(compressor)
        law(ErrorFeedback(compressor))


def test_every_yaml_is_found():
    assert {"none", "dense", "bf16", "topk", "dgc", "sidco_e"} <= set(COMPRESSORS)
