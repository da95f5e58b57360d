"""The passes over memory for the CPU: float32, contiguous, compiled by numba. Meaning: `sidco.kernels.reference`.

A vector is cut into one range a thread, at fixed rows. What is selected does not depend on the cut, and sums are taken
over fixed blocks in a fixed order, so bits do not depend on the number of threads.
"""

import os
from collections.abc import Sequence, Set
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numba import get_num_threads
from numba.core import config
from torch import Tensor

from sidco.kernels import compiled, compiled_take, reference
from sidco.kernels.compiled import BLOCK
from sidco.kernels.compiled_take import ROW

GRAIN = 1 << 17  # floats below which a thread is not worth waking
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
    floor = -1.0 if above is None else above.item()
    count, total = compiled.sums(*_arrays(x, residual), scale, floor, _shared(x.numel(), BLOCK))
    nan = torch.tensor(torch.nan, dtype=torch.float64)
    return torch.tensor(count, dtype=torch.float64), torch.tensor(total, dtype=torch.float64), nan, nan, nan, nan


def exponential(
    x: Tensor, first: float, share: float, more: int, residual: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    """See `reference.exponential`. Reads n a stage, twice with a residual."""
    eta = np.empty(())
    eta[()] = compiled.exponential(*_arrays(x, residual), scale, first, share, more, _shared(x.numel(), BLOCK))
    return torch.from_numpy(eta)


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
    n, ranges = len(memory), _begun(len(memory), _threads(len(memory)), ROW).copy()
    dtype = np.int32 if n < 2**31 else np.int64
    many = ranges.shape[1]
    arguments = memory, x, scale, threshold.item(), zero, ranges
    room = min(expected // many + SPARE, n + ROW + 1)
    goes: list[tuple[Any, Any, Any]] = []
    while True:
        values, indices = np.empty(many * room, np.float32), np.empty(many * room, dtype)
        k, whole = compiled_take.take(*arguments, values, indices, None if many == 1 else many)
        if whole and not goes:  # the usual case
            return torch.from_numpy(values[:k]), torch.from_numpy(indices[:k])
        starts, ends, found = ranges
        goes.append((values[:k], indices[:k], found.copy()))
        if whole:
            return _joined(goes)
        # go on where the room ended, with as much as a range could fill
        room = min(2 * room + SPARE, int((ends - starts).max()) + ROW + 1)


def _joined(goes: Sequence[tuple[Any, Any, Any]]) -> tuple[Tensor, Tensor]:
    """What each go found, range after range, with how many a range: all of a range before the next."""
    ends = [np.cumsum(found)[:-1] for _, _, found in goes]

    def joined(which: int) -> Tensor:
        by_range = zip(*(np.split(go[which], end) for go, end in zip(goes, ends, strict=True)), strict=True)
        return torch.from_numpy(np.concatenate([piece for pieces in by_range for piece in pieces]))

    return joined(0), joined(1)


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
    """(size,) magnitudes of `reference.sampled`. The threads are awake for what follows all the same."""
    out, threads = np.empty(size, np.float32), _threads(x.numel())
    if threads == 1:
        compiled.sample_range(*_arrays(x, residual), scale, out, 0, size // reference.WIDTH)
    else:
        compiled.sample_ranges(*_arrays(x, residual), scale, out, _cut(size, threads, reference.WIDTH))
    return torch.from_numpy(out)


def exceeding(x: Tensor, threshold: Tensor) -> int:
    """How many |x| exceed it: what to expect of a selection, from a sample. Reads n."""
    return compiled.sums(x.numpy(), None, 1.0, threshold.item(), None)[0]


def scatter_add_(out: Tensor, indices: Tensor, values: Tensor, alpha: float) -> None:
    """out[indices] += alpha * values, for unique indices. Reads and writes k. IndexError if one is out of range."""
    bounds = _bounds(indices.numel(), ROW)
    arrays = out.numpy(), indices.numpy(), values.to(out.dtype).numpy(), np.float32(alpha)
    right = compiled.scatter(*arrays) if len(bounds) == 2 else compiled.scatter_ranges(*arrays, bounds)
    if not right:
        raise IndexError(f"a message has an index outside [0, {out.numel()})")


def _arrays(x: Tensor, residual: Tensor | None) -> tuple[Any, Any]:
    return x.numpy(), None if residual is None else residual.numpy()


def _shared(n: int, unit: int) -> Any:
    """(ranges + 1,) `_bounds` where several threads are worth waking, else None."""
    threads = _threads(n)
    return None if threads == 1 else _cut(n, threads, unit)


def _bounds(n: int, unit: int) -> Any:
    """Where the ranges of the threads begin and end: multiples of `unit`, but for the last. Not to be written to."""
    return _cut(n, _threads(n), unit)


def _threads(n: int) -> int:
    most = config.NUMBA_NUM_THREADS  # pyright: ignore[reportAttributeAccessIssue]
    threads = min(torch.get_num_threads(), most) if PARALLEL else 1
    return max(1, min(threads, n // GRAIN))


@lru_cache
def _cut(n: int, ranges: int, unit: int) -> Any:
    if ranges > 1:
        get_num_threads()  # launches them, which code that is loaded from numba's cache takes for granted
    bounds = np.arange(ranges + 1, dtype=np.int64) * (-(-n // ranges // unit) * unit)
    bounds[-1] = n
    return np.minimum(bounds, n)


@lru_cache
def _begun(n: int, ranges: int, unit: int) -> Any:
    """What `compiled_take.take` starts with: to be copied."""
    bounds = _cut(n, ranges, unit)
    return np.stack([bounds[:-1], bounds[1:], np.zeros(ranges, np.int64)])
