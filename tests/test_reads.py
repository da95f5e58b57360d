"""Where the host waits for a device: counted on a CPU, as what is asked of a GPU does not depend on having one."""

import pytest
import torch

from sidco import kernels
from sidco.comm import drive
from sidco.compressors.sidco import Sidco
from sidco.compressors.topk import TopK
from sidco.feedback import ErrorFeedback
from sidco.fits import Exponential, Gamma, Pareto
from sidco.kernels import reference
from sidco.method import Gathered
from sidco.reads import HostReads
from sidco.vectors import samples

N = 40_000  # the reference looks for what exceeds a threshold piece by piece: one piece
READING = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x[0] > 0),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "copy": lambda x: x.to("cpu", copy=True),
    "equal": lambda x: torch.equal(x, x.clone()),
}
LAUNCHING = {
    "sum": lambda x: x.sum(), "where": lambda x: torch.where(x > 0, x, 0), "places": lambda x: x[torch.arange(3)],
    "half": lambda x: x.half(), "topk": lambda x: x.topk(2), "cat": lambda x: torch.cat([x, x]),
}  # fmt: skip


@pytest.mark.parametrize(("operations", "expected"), [(READING, 1), (LAUNCHING, 0)], ids=["reading", "launching"])
def test_what_counts(operations, expected):
    x = torch.tensor([1.0, -2.0, 3.0, 0.0])
    for name, operation in operations.items():
        with HostReads() as reads:
            operation(x)
        assert reads.count == expected, name


class Alone:
    """The one rank there is."""

    world_size = 1

    def answer(self, request):
        return [request.buffer]


def reads_of_a_step(compressor, monkeypatch):
    """In the third exchange of a rank, by the kernels that any device can run."""
    monkeypatch.setattr(kernels, "of", lambda x: reference)
    method = Gathered(ErrorFeedback(compressor))
    state = method.init(torch.zeros(N), layout=(("w", torch.Size([N])),), seed=1)
    for step in range(3):
        with HostReads() as reads:
            _, state, _ = drive(method.aggregate([samples(N, step)["laplace"]], state), Alone())
    return reads.count


@pytest.mark.case(23)
@pytest.mark.parametrize("fits", [(Exponential(), Exponential()), (Gamma(), Pareto()), (Pareto(), Pareto())])
def test_stages_are_fitted_without_a_word_to_the_host(fits, monkeypatch):
    """Two reads, at any number of stages: is the gradient finite, and how many coordinates exceed the threshold."""
    counts = {m: reads_of_a_step(Sidco(0.001, *fits, stages=m), monkeypatch) for m in (1, 2, 5)}
    assert counts == {1: 2, 2: 2, 5: 2}


@pytest.mark.case(23)
def test_top_k_knows_its_size(monkeypatch):
    assert reads_of_a_step(TopK(0.01), monkeypatch) == 1
