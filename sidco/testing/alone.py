"""The laws of a compressor by itself."""

import random
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from sidco.compressor import Compressor, Thresholder, target_count
from sidco.feedback import ErrorFeedback
from sidco.payload import Dense, Shared, Sparse
from sidco.testing.tools import STEPS, dense_of, messages, same
from sidco.vectors import edge_vectors, samples
from sidco.view import VectorView, View

MOST_LOOKS = 16  # at a vector, for one threshold


def leaves_its_input_alone(compressor: Compressor[Any]) -> None:
    """Law 1: x is not modified, and the message does not change when x does afterwards."""
    x = samples(5000, 1)["laplace"]
    before = x.clone()
    payload, _ = compressor.compress(x, compressor.init(x))
    same(x, before, "compress changed its input")
    sent = payload.pack().clone()
    x.fill_(7.0)
    same(payload.pack(), sent, "the message shares memory with the input")


def survives_the_wire(compressor: Compressor[Any]) -> None:
    """Law 2: unpack(pack(p)) == p; indices unique, ascending, in range, of 32 bits; bytes are those of the buffer."""
    for _, x, payload in messages(compressor):
        buffer = payload.pack()
        assert buffer.dim() == 1, f"a message is one flat buffer, got shape {tuple(buffer.shape)}"
        assert buffer.is_contiguous(), "a message is one contiguous buffer"
        again = payload.received(buffer.clone())
        assert (again.numel, again.count) == (payload.numel, payload.count) == (x.numel(), payload.count)
        same(again.pack(), buffer, "unpack(pack(p)) is another message")
        same(dense_of(again), dense_of(payload), "unpack(pack(p)) stands for another vector")
        if isinstance(payload, Sparse):
            payload.validate()
            assert payload.indices.dtype == torch.int32, f"32 bits are enough for {x.numel()} coordinates"
        if type(payload) in (Sparse, Shared):
            words = 1 if payload.summable else 2  # places that all ranks know do not travel
            assert buffer.nbytes == 4 * words * payload.count, "a coordinate costs a value, and an index if it travels"
        if isinstance(payload, Dense):
            assert buffer.nbytes == payload.values.itemsize * x.numel()


def loses_nothing(compressor: Compressor[Any]) -> None:
    """Law 3: with error feedback, sum of sent + residual = sum of gradients, to rounding."""
    feedback = compressor if isinstance(compressor, ErrorFeedback) else ErrorFeedback(compressor)
    for name in samples(1, 0):
        x = samples(4000, 0)[name]
        state = feedback.init(x)
        total, sent = torch.zeros(4000, dtype=torch.float64), torch.zeros(4000, dtype=torch.float64)
        for step in range(STEPS):
            x = samples(4000, step)[name]
            payload, state = feedback.compress(x, state)
            total += x
            sent += dense_of(payload)
        error = (sent + state.residual - total).abs().max().item()
        assert error <= 1e-6 * max(total.abs().max().item(), 1e-3), f"{name}: {error} was lost"


def repeats_itself(compressor: Compressor[Any]) -> None:
    """Law 4: same input and state, same bits, at any thread count; the global random state is not touched."""
    x = samples(300_000, 5)["double_gamma"]
    threads, runs = torch.get_num_threads(), []
    try:
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            torch.manual_seed(count)
            random_state = _global_random_state()
            state = compressor.init(x, seed=11)
            sent = []
            for _ in range(STEPS):
                payload, state = compressor.compress(x, state)
                sent.append(payload.pack().clone())
            assert _global_random_state() == random_state, "the global random state was touched"
            runs.append(sent)
    finally:
        torch.set_num_threads(threads)
    for other in runs[1:]:
        for step, (first, second) in enumerate(zip(runs[0], other, strict=True)):
            same(first, second, f"step {step}: the same input and state gave other bits")


def accepts_edge_vectors(compressor: Compressor[Any]) -> None:
    """Law 6: legal vectors give legal messages; one that is not all zero never goes silent."""
    for name, x, payload in messages(compressor, edge_vectors()):
        sent = dense_of(payload)
        assert 0 <= payload.count <= x.numel(), f"{name}: {payload.count} of {x.numel()} coordinates"
        too_large = isinstance(payload, Dense) and bool((x.abs() > torch.finfo(payload.values.dtype).max).any())
        assert bool(torch.isfinite(sent).all()) or too_large, f"{name}: sent something that is not a number"
        if bool((x != 0).any()):
            assert payload.count >= 1, f"{name}: a non-zero vector was not heard of"
        else:
            assert not bool(sent.any()), f"{name}: something was made of nothing"


def finds_a_threshold(compressor: Compressor[Any]) -> None:
    """Law 6: a threshold is a number >= 0, also as the float32 it is compared as, and few looks, whatever x is."""
    while not isinstance(compressor, Thresholder):
        if not hasattr(compressor, "inner"):
            return
        compressor = compressor.inner  # pyright: ignore[reportAttributeAccessIssue] - a wrapper's
    for name, x in edge_vectors().items():
        state = compressor.init(x, seed=1)
        for _ in range(STEPS if x.numel() else 0):
            view = _Watched(x)
            threshold, _ = compressor.threshold(cast(View, view), state)
            assert threshold.dim() == 0, f"{name}: a threshold is a 0-d tensor, got shape {tuple(threshold.shape)}"
            known = threshold.float().item()
            assert 0 <= known < float("inf"), f"{name}: the threshold is {known}"
            assert view.looks <= MOST_LOOKS, f"{name}: {view.looks} looks for one threshold"
            _, state = compressor.compress(x, state)


def knows_no_units(compressor: Compressor[Any]) -> None:
    """C(a x) = a C(x) for a power of two, which rounds nothing, where there is a ratio: what is sent cannot depend on
    the unit a gradient is measured in.
    """
    if not hasattr(getattr(compressor, "inner", compressor), "ratio"):
        return
    for name, x in samples(4000, 8).items():
        plain, scaled = compressor.init(x, seed=1), compressor.init(x, seed=1)
        for step in range(STEPS):
            x = samples(4000, step)[name]
            one, plain = compressor.compress(x, plain)
            other, scaled = compressor.compress(x * 2.0**-12, scaled)
            assert torch.equal(dense_of(other), dense_of(one) * 2.0**-12), f"{name}: C(a x) is not a C(x)"


def is_odd(compressor: Compressor[Any]) -> None:
    """C(-x) = -C(x): signs carry no bias."""
    x = samples(4000, 6)["laplace"]
    plus, _ = compressor.compress(x, compressor.init(x, seed=1))
    minus, _ = compressor.compress(-x, compressor.init(x, seed=1))
    assert torch.equal(dense_of(minus), -dense_of(plus)), "C(-x) is not -C(x)"


def keeps_its_density(compressor: Compressor[Any]) -> None:
    """Law 7: in the long run k_hat / k lies in the band the compressor states."""
    ratio = getattr(getattr(compressor, "inner", compressor), "ratio", None)
    if compressor.band is None or ratio is None or isinstance(compressor, ErrorFeedback):
        return
    low, high = compressor.band
    n, calls, settled = 40_000, 90, 50
    for name in samples(1, 0):
        state, counts = compressor.init(torch.zeros(n), seed=3), []
        for call in range(calls):
            payload, state = compressor.compress(samples(n, call)[name], state)
            counts.append(payload.count)
        mean = sum(counts[settled:]) / (calls - settled) / target_count(n, ratio)
        assert low <= mean <= high, f"{name}: k_hat / k is {mean:.2f} in the long run, stated {low} to {high}"


class _Watched:
    """A vector that counts how often it is asked for anything that reads it, whatever a view can be asked for."""

    def __init__(self, x: Tensor) -> None:
        self._view = VectorView(x)
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        part = getattr(self._view, name)
        self.looks += callable(part)
        return part


def _global_random_state() -> str:
    """Of torch, numpy and Python."""
    return repr((torch.get_rng_state().tolist(), np.random.get_state(), random.getstate()))
