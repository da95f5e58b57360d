"""The contract battery: what every compressor must obey, as plain functions that raise AssertionError.

    for law in LAWS:
        law(MyCompressor(ratio=0.01))

A new compressor's own tests, in this repository or another, run the same laws; nothing here needs pytest.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from sidco.comm import Traffic, lockstep
from sidco.compressor import Compressor, Thresholder, target_count
from sidco.feedback import ErrorFeedback
from sidco.method import AllGather, Gathered, Method, NonFiniteGradient
from sidco.payload import Dense, Payload, Shared, Sparse, mean_of
from sidco.vectors import edge_vectors, samples
from sidco.view import Layout, VectorView, View

Law = Callable[[Compressor[Any]], None]

STEPS = 6
MOST_LOOKS = 16  # at a vector, for one threshold


def dense_of(payload: Payload) -> Tensor:
    """(n,) float32: the vector the message stands for."""
    return mean_of([payload], torch.empty(payload.numel))


def leaves_its_input_alone(compressor: Compressor[Any]) -> None:
    """Law 1: x is not modified, and the message does not change when x does afterwards."""
    x = samples(5000, 1)["laplace"]
    before = x.clone()
    payload, _ = compressor.compress(x, compressor.init(x))
    _same(x, before, "compress changed its input")
    sent = payload.pack().clone()
    x.fill_(7.0)
    _same(payload.pack(), sent, "the message shares memory with the input")


def survives_the_wire(compressor: Compressor[Any]) -> None:
    """Law 2: unpack(pack(p)) == p; indices unique, ascending, in range, of 32 bits; bytes are those of the buffer."""
    for _, x, payload in _messages(compressor):
        buffer = payload.pack()
        assert buffer.dim() == 1, f"a message is one flat buffer, got shape {tuple(buffer.shape)}"
        assert buffer.is_contiguous(), "a message is one contiguous buffer"
        again = payload.received(buffer.clone())
        assert (again.numel, again.count) == (payload.numel, payload.count) == (x.numel(), payload.count)
        _same(again.pack(), buffer, "unpack(pack(p)) is another message")
        _same(dense_of(again), dense_of(payload), "unpack(pack(p)) stands for another vector")
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
            _same(first, second, f"step {step}: the same input and state gave other bits")


def counts_ranks_apart(compressor: Compressor[Any]) -> None:
    """Laws 3 to 5: ranks with very different vectors agree on the exact mean, and traffic is what was handed over."""
    world, n = 3, 3000
    method, layout = Gathered(compressor), (("w", torch.Size([n])),)
    meters = [Traffic() for _ in range(world)]
    base = samples(n, 9)["student_t"]
    states = [method.init(base, layout=layout, seed=2) for _ in range(world)]
    twins = [compressor.init(base, layout=layout, seed=2) for _ in range(world)]
    last: list[int] = []
    for step in range(STEPS):
        x = samples(n, step)["student_t"]
        vectors = [x * (rank + 1) + (torch.arange(n) % (rank + 2) == 0) * 1e-3 * step for rank in range(world)]
        vectors[2] = vectors[2] if step % 2 else torch.zeros(n)  # silence on one rank only
        results = lockstep([method.aggregate([v], s) for v, s in zip(vectors, states, strict=True)], meters)
        states = [state for _, state in results]
        messages = []
        for rank, v in enumerate(vectors):
            payload, twins[rank] = compressor.compress(v, twins[rank])
            messages.append(payload)
        expected = torch.stack([dense_of(message).double() for message in messages]).mean(0)
        tolerance = 1e-6 if messages[0].pack().dtype.itemsize >= 4 else 2**-7
        for mean, _ in results:
            _same(mean, results[0][0], "replicas differ")
            error = (mean - expected).abs().max().item()
            assert error <= tolerance * expected.abs().max().item(), f"step {step}: the mean is off by {error}"
        last = [message.pack().nbytes for message in messages]
    total = [meter.payload_bytes for meter in meters]
    assert all(t >= b for t, b in zip(total, last, strict=True)), f"traffic {total} is less than the last step's {last}"


def accepts_edge_vectors(compressor: Compressor[Any]) -> None:
    """Law 6: legal vectors give legal messages; one that is not all zero never goes silent."""
    for name, x, payload in _messages(compressor, edge_vectors()):
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


def stops_at_nan(compressor: Compressor[Any]) -> None:
    """Law 6: a NaN or an infinity on one rank stops all ranks in that step, and leaves every residual a number."""
    for bad in (torch.nan, torch.inf):
        method, n = Gathered(compressor), 500
        layout = (("w", torch.Size([n])),)
        x = samples(n, 2)["laplace"]
        states = [method.init(x, layout=layout, seed=0) for _ in range(2)]
        poisoned = x.clone()
        poisoned[3] = bad
        dialogues = [method.aggregate([v], s) for v, s in zip((x, poisoned), states, strict=True)]
        answers: list[Any] = [d.send(None) for d in dialogues]
        shared = [request.buffer for request in answers]
        for dialogue in dialogues:
            reply = shared if isinstance(answers[0], AllGather) else shared[0] + shared[1]
            try:
                dialogue.send(reply)
            except NonFiniteGradient:
                continue
            raise AssertionError(f"a rank went on after {bad}")
        for state in states:
            for part in state if isinstance(state, tuple) else ():
                assert not isinstance(part, Tensor) or bool(torch.isfinite(part).all()), "a residual was poisoned"


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


LAWS: tuple[Law, ...] = (
    leaves_its_input_alone,
    survives_the_wire,
    loses_nothing,
    repeats_itself,
    counts_ranks_apart,
    accepts_edge_vectors,
    finds_a_threshold,
    stops_at_nan,
    is_odd,
    knows_no_units,
    keeps_its_density,
)


def agrees_on_every_rank(method: Method[Any]) -> None:
    """Laws 4 to 6 for a whole method: all ranks end with the same bits, twice the same, whatever the gradients.

    What a narrow float cannot hold may stop all ranks, as a NaN does.
    """
    shapes = {"matrix": (30, 20), "vector": (17,), "kernel": (6, 5, 3, 3), "one": (1,)}
    layout = tuple((name, torch.Size(shape)) for name, shape in shapes.items())
    n, world = sum(shape.numel() for _, shape in layout), 3
    edges = samples(n, 1) | {"zeros": torch.zeros(n), "denormals": torch.full((n,), 1e-40)}
    runs = []
    for _ in range(2):
        states = [method.init(torch.zeros(n), layout=layout, seed=5) for _ in range(world)]
        means = []
        for x in edges.values():
            grads = [_tensors(x * (rank + 1), layout) for rank in range(world)]
            results = lockstep([method.aggregate(g, state) for g, state in zip(grads, states, strict=True)])
            states = [state for _, state in results]
            for mean, _ in results:
                assert mean.shape == (n,), f"the mean is one vector of {n}, got {tuple(mean.shape)}"
                _same(mean, results[0][0], "replicas differ")
                assert bool(torch.isfinite(mean).all()), "a finite gradient became something else"
            means.append(results[0][0])
        runs.append(means)
        huge = [_tensors(samples(n, 2)["normal"] * 1e18, layout) for _ in range(world)]
        with suppress(NonFiniteGradient):
            means.append(lockstep([method.aggregate(g, s) for g, s in zip(huge, states, strict=True)])[0][0])
    for first, second in zip(*runs, strict=True):
        _same(first, second, "the same gradients and state gave other bits")


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


def _tensors(x: Tensor, layout: Layout) -> list[Tensor]:
    parts = x.split([shape.numel() for _, shape in layout])
    return [part.view(shape) for part, (_, shape) in zip(parts, layout, strict=True)]


def _messages(
    compressor: Compressor[Any], vectors: dict[str, Tensor] | None = None
) -> Iterator[tuple[str, Tensor, Payload]]:
    for name, x in (vectors or samples(5000, 1)).items():
        state = compressor.init(x, seed=1)
        for _ in range(STEPS):
            payload, state = compressor.compress(x, state)
            yield name, x, payload


def _same(a: Tensor, b: Tensor, complaint: str) -> None:
    """Bit for bit, NaN included."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{complaint}: {a.dtype} {a.shape}, {b.dtype} {b.shape}"
    as_bytes = (a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
    assert torch.equal(*as_bytes), complaint
