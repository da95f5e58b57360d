"""Selections and adaptation traces of the authors' released code, within the tolerances of tests/golden/README.md."""

import json
import lzma
from collections import defaultdict
from functools import cache

import numpy as np
import pytest
import torch
from conftest import ROOT

from sidco.compressors.gaussiank import GaussianK
from sidco.compressors.redsync import RedSync, RedSyncTrim
from sidco.compressors.sidco import Sidco
from sidco.compressors.topk import TopK
from sidco.fits import Exponential, Gamma, Pareto

GOLDEN = ROOT / "tests" / "golden"
RECORDS = json.loads((GOLDEN / "authors.json").read_text())
FITS = {  # by the authors' keys
    "expec": (Exponential(), Exponential()),
    "gparetoec": (Pareto(), Pareto()),
    "gammagparetoec": (Gamma(), Pareto()),
}
OTHERS = {"topkec": TopK, "gaussianksgdec": GaussianK, "redsync": RedSync, "redsynctrim": RedSyncTrim}
RULES = {-1: "paper", -2: "sign", -3: "trend"}
BAND = (0.8, 1.2)  # of the running ratio: within 1 % of a bound a trace may turn either way


@cache
def vector(name):
    kind, rest = name.split("/", 1)
    if kind == "resnet20":
        planes = lzma.decompress((GOLDEN / f"resnet20_{rest.replace('/', '_')}.xz").read_bytes())
        x = np.frombuffer(planes, np.uint8).reshape(4, -1).T.copy().view(np.float32).ravel()
        return torch.from_numpy(x)
    rng, n = np.random.default_rng(int(rest)), 200_000
    if kind == "laplace":
        x = rng.laplace(size=n) * 1e-3
    elif kind == "double_gamma":
        x = rng.gamma(0.6, 1e-3, size=n) * rng.choice([-1.0, 1.0], size=n)
    else:
        assert kind == "normal", name
        x = rng.normal(size=n) * 1e-3
    return torch.from_numpy(x.astype(np.float32))


def records(kind):
    """Records by compressor and vector: one test a group."""
    groups = defaultdict(list)
    for record in RECORDS:
        if record["kind"] == kind:
            groups[f"{record['compressor']}-{record['vector']}"].append(record)
    return groups


SELECTIONS, TRACES = records("selection"), records("adaptation")


@pytest.mark.parametrize("group", SELECTIONS)
def test_selections_are_those_of_the_authors(group):
    for record in SELECTIONS[group]:
        x, key = vector(record["vector"]), record["compressor"]
        if key in FITS:
            compressor = Sidco(record["ratio"], *FITS[key], stages=record["stages"])
            share = 0.04 if record["vector"] == "resnet20/300/gradient" else 0.01
        else:
            compressor, share = OTHERS[key](record["ratio"]), 0.0
        payload, _ = compressor.compress(x, compressor.init(x))
        assert abs(payload.count - record["count"]) <= max(3 if share else 0, share * record["count"]), record
        if payload.count == record["count"]:
            sent, kept = payload.values.abs().min().item(), record["smallest_selected"]
            assert sent == pytest.approx(kept, rel=4e-3), record
            if not share:
                assert payload.values.double().sum().item() == pytest.approx(record["value_sum"], abs=1e-4), record


@pytest.mark.parametrize("group", TRACES)
def test_stages_adapt_as_the_authors_do(group):
    for record in TRACES[group]:
        x = vector(record["vector"])
        compressor = Sidco(record["ratio"], *FITS[record["compressor"]], rule=RULES[record["mode"]])
        state, k = compressor.init(x), record["ratio"] * x.numel()
        for stages, count in zip(record["stages"], record["counts"], strict=True):
            if any(abs(count / k - bound) < 0.01 * bound for bound in BAND):
                break
            assert state.stages == stages, record
            _, state = compressor.compress(x, state)
