"""The laws of what ranks do together: of a compressor between them, and of a whole method."""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from sidco.comm import lockstep
from sidco.compressor import Compressor
from sidco.method import AllGather, Gathered, Method, NonFiniteGradient
from sidco.testing.tools import STEPS, dense_of, same
from sidco.traffic import Traffic
from sidco.vectors import samples
from sidco.view import Layout


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
            same(mean, results[0][0], "replicas differ")
            error = (mean - expected).abs().max().item()
            assert error <= tolerance * expected.abs().max().item(), f"step {step}: the mean is off by {error}"
        last = [message.pack().nbytes for message in messages]
    total = [meter.payload_bytes for meter in meters]
    assert all(t >= b for t, b in zip(total, last, strict=True)), f"traffic {total} is less than the last step's {last}"


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
                same(mean, results[0][0], "replicas differ")
                assert bool(torch.isfinite(mean).all()), "a finite gradient became something else"
            means.append(results[0][0])
        runs.append(means)
        huge = [_tensors(samples(n, 2)["normal"] * 1e18, layout) for _ in range(world)]
        with suppress(NonFiniteGradient):
            means.append(lockstep([method.aggregate(g, s) for g, s in zip(huge, states, strict=True)])[0][0])
    for first, second in zip(*runs, strict=True):
        same(first, second, "the same gradients and state gave other bits")


def _tensors(x: Tensor, layout: Layout) -> list[Tensor]:
    parts = x.split([shape.numel() for _, shape in layout])
    return [part.view(shape) for part, (_, shape) in zip(parts, layout, strict=True)]
