"""The passes over memory for the CPU: float32, contiguous, compiled by numba. Meaning: `sidco.kernels.reference`.

A vector is cut into one range a thread, at fixed rows. What is selected does not depend on the cut, and sums are taken
over fixed blocks in a fixed order, so bits do not depend on the number of threads.
"""

import os
from collections.abc import Set
from typing import Any

import numpy as np
import torch
from numba import set_num_threads
from numba.core import config
from torch import Tensor

from sidco.kernels import compiled, reference
from sidco.kernels.compiled import BLOCK, ROW

GRAIN = 1 << 16  # floats below which a thread is not worth waking
SPARE = 4 * ROW  # coordinates a buffer has room for beyond what is expected


def _layer_is_threadsafe() -> bool:
    """Exchanges compress on a thread of their own: numba's `workqueue` layer aborts when two threads enter it."""
    if os.environ.get("NUMBA_THREADING_LAYER", "") == "workqueue":
        return False
    try:
        from numba.np.ufunc import omppool  # noqa: F401  # pyright: ignore[reportAttributeAccessIssue, reportMissingImports]
    except ImportError:
        return False
    return True


PARALLEL = _layer_is_threadsafe()


def moments(
    x: Tensor, above: Tensor | None, sums: Set[str], residual: Tensor | None = None, scale: float = 1.0
) -> tuple[Tensor, ...]:
    """See `reference.moments`, which also has the dear sums. Reads n, twice with a residual."""
    if sums:
        return reference.moments(x, above, sums, residual, scale)
    n, floor = x.numel(), np.float32(-1.0 if above is None else above.item())
    blocks = -(-n // BLOCK)
    totals, counts = np.zeros(blocks), np.zeros(blocks, np.int64)
    values, memory = x.numpy(), None if residual is None else residual.numpy()
    bounds = _bounds(n, BLOCK)
    if len(bounds) == 2:
        compiled.sum_range(values, memory, np.float32(scale), floor, 0, totals, counts)
    else:
        compiled.sum_ranges(values, memory, np.float32(scale), floor, bounds, totals, counts)
    nan = torch.tensor(torch.nan, dtype=torch.float64)
    count = torch.tensor(float(n if above is None else counts.sum()), dtype=torch.float64)
    return count, torch.tensor(totals.sum(), dtype=torch.float64), nan, nan, nan, nan


def take(x: Tensor, threshold: Tensor, expected: int, *, zero: bool = False) -> tuple[Tensor, Tensor]:
    """(values, ascending indices) where |x| > threshold; with `zero` they are set to 0 in `x`. Reads n, writes k.

    `expected` is how many, about: a guess too low costs a second go, one too high costs memory.
    """
    return _take(x.numpy(), None, 1.0, threshold, expected, zero)


def accumulate_take_(
    residual: Tensor, x: Tensor, scale: float, threshold: Tensor, expected: int
) -> tuple[Tensor, Tensor]:
    """residual += scale * x, then `take` from it and zero, in one pass: reads 2n, writes n."""
    if x.dtype != torch.float32:  # torch adds half precision as it reads it; two passes then
        residual.add_(x, alpha=scale)
        return take(residual, threshold, expected, zero=True)
    return _take(residual.numpy(), x.numpy(), scale, threshold, expected, True)


def _take(memory: Any, x: Any, scale: float, threshold: Tensor, expected: int, zero: bool) -> tuple[Tensor, Tensor]:
    n, bounds = len(memory), _bounds(len(memory), ROW)
    dtype = np.int32 if n < 2**31 else np.int64
    eta, factor = np.float32(threshold.item()), np.float32(scale)
    pieces: list[list[tuple[Any, Any]]] = [[] for _ in bounds[1:]]
    starts, ends = bounds[:-1].copy(), bounds[1:].copy()
    ranges = len(starts)
    room = np.minimum(expected // ranges + SPARE, ends - starts + ROW + 1)
    while True:
        places = np.concatenate([[0], np.cumsum(room)])
        values, indices = np.empty(places[-1], np.float32), np.empty(places[-1], dtype)
        found, reached = np.zeros(ranges, np.int64), ends.copy()
        if ranges == 1:
            found[0], reached[0] = compiled.take_range(
                memory, x, factor, eta, zero, starts[0], ends[0], values, indices
            )
        else:
            compiled.take_ranges(memory, x, factor, eta, zero, starts, ends, values, indices, places, found, reached)
        whole = bool((reached == ends).all())
        if whole and not any(pieces):  # the usual case: one buffer, closed up where it is
            compiled.close_gaps(values, indices, places, found)
            k = int(found.sum())
            return torch.from_numpy(values[:k]), torch.from_numpy(indices[:k])
        for j, (a, k) in enumerate(zip(places, found, strict=False)):
            if k:
                pieces[j].append((values[a : a + k], indices[a : a + k]))
        if whole:
            joined = [piece for of_range in pieces for piece in of_range]
            return (
                torch.from_numpy(np.concatenate([v for v, _ in joined])),
                torch.from_numpy(np.concatenate([i for _, i in joined])),
            )
        # go on where the room ended, with as much as a range could fill
        room = np.minimum(2 * room + SPARE, ends - reached + ROW + 1)
        starts = reached


def histogram(x: Tensor, residual: Tensor | None, scale: float) -> Tensor:
    """See `reference.histogram`. A table for each thread, which fits its second-level cache."""
    bounds = _bounds(x.numel(), ROW)
    counts = np.zeros((len(bounds) - 1, 1 << (31 - reference.FRACTION_BITS)), np.int64)
    values, memory = x.numpy(), None if residual is None else residual.numpy()
    if len(bounds) == 2:
        compiled.count_range(values, memory, np.float32(scale), counts[0])
    else:
        compiled.count_ranges(values, memory, np.float32(scale), bounds, counts)
    return torch.from_numpy(counts.sum(0))


def sampled(x: Tensor, residual: Tensor | None, scale: float, size: int) -> Tensor:
    """(size,) magnitudes of `reference.sampled`."""
    out = np.empty(size, np.float32)
    compiled.sample(x.numpy(), None if residual is None else residual.numpy(), np.float32(scale), out)
    return torch.from_numpy(out)


def scatter_add_(out: Tensor, indices: Tensor, values: Tensor, alpha: float) -> None:
    """out[indices] += alpha * values, for unique indices. Reads and writes k. IndexError if one is out of range."""
    bounds = _bounds(indices.numel(), ROW)
    arrays = out.numpy(), indices.numpy(), values.to(out.dtype).numpy(), np.float32(alpha)
    right = compiled.scatter(*arrays) if len(bounds) == 2 else compiled.scatter_ranges(*arrays, bounds)
    if not right:
        raise IndexError(f"a message has an index outside [0, {out.numel()})")


def _bounds(n: int, unit: int) -> Any:
    """Where the ranges of the threads begin and end: multiples of `unit`, but for the last."""
    most = config.NUMBA_NUM_THREADS  # pyright: ignore[reportAttributeAccessIssue]
    threads = min(torch.get_num_threads(), most) if PARALLEL else 1
    ranges = max(1, min(threads, n // GRAIN))
    if ranges > 1:
        set_num_threads(ranges)
    bounds = np.arange(ranges + 1, dtype=np.int64) * (-(-n // ranges // unit) * unit)
    bounds[-1] = n
    return np.minimum(bounds, n)
