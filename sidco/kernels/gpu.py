"""The passes over memory compiled for a GPU by Triton: float32, float16, bfloat16; meaning: `sidco.kernels.reference`.

A vector is cut into tiles, one for each program. Programs never add to the same place: each leaves its part in a place
of its own, and a second pass over these parts takes them in their order, so bits do not depend on which ran first.
Arithmetic is float32 whatever `x` is; a residual is float32. The vector that chose this module (`kernels.of`) is
contiguous.
"""

from collections.abc import Set
from functools import partial
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports] - torch for a CPU alone comes without it
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from sidco.kernels import reference

SUM_TILE = 4096  # floats of one partial sum: large, as all partial sums of a field are added up by one program
TILE = 1024  # floats looked at together by a selection: small, as a tile that holds nothing is not read again
FIELDS = ("count", "total", "squares", "logs", "maximum", "signed")  # bit i of `asked` stands for the i-th

histogram = reference.histogram  # torch counts bins on a GPU as it is

jit: Any = triton.jit  # a checker would hold a launch against the types inside the kernel


def moments(
    x: Tensor, above: Tensor | None, sums: Set[str], residual: Tensor | None = None, scale: float = 1.0
) -> tuple[Tensor, ...]:
    """See `reference.moments`; ValueError if `sums` names no field. Reads n, 2n with a residual, whatever is asked; the
    host does not wait.
    """
    n, tiles = x.numel(), _programs(x.numel(), SUM_TILE)
    dear = [name in sums for name in FIELDS[2:]]
    asked = sum(1 << FIELDS.index(name) for name in {"count", "total", *sums})
    partials = torch.empty(len(FIELDS), tiles, dtype=torch.float64, device=x.device)
    out = torch.full((len(FIELDS),), torch.nan, dtype=torch.float64, device=x.device)
    above = None if above is None else above.to(x.device)
    with torch.cuda.device_of(x):
        _sum_tiles[(tiles,)](x, residual, above, partials, n, scale, *dear, SUM_TILE)
        _sum_partials[(len(FIELDS),)](partials, out, tiles, asked, FIELDS.index("maximum"), SUM_TILE)
    return out.unbind()


exponential = partial(reference.exponential, moments=moments)  # one reading a stage; the host does not wait


def take(x: Tensor, threshold: Tensor, expected: int, *, zero: bool = False) -> tuple[Tensor, Tensor]:
    """(values, ascending indices) where |x| > threshold; with `zero` they are set to 0 in `x`. Reads n twice, writes k.

    `expected` is not needed: a first pass counts.
    """
    return _take(x, None, 1.0, threshold, zero)


def accumulate_take_(
    residual: Tensor, x: Tensor, scale: float, threshold: Tensor, expected: int
) -> tuple[Tensor, Tensor]:
    """residual += scale * x, then `take` from it and zero: reads 2n and writes n, then reads n again and writes k."""
    return _take(residual, x.contiguous(), scale, threshold, True)


def sampled(x: Tensor, residual: Tensor | None, scale: float, size: int) -> Tensor:
    """(size,) magnitudes of `reference.sampled`."""
    out = torch.empty(size, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        _sample[(_programs(size, TILE),)](x, residual, out, x.numel(), size, scale, reference.WIDTH, TILE)
    return out


def scatter_add_(out: Tensor, indices: Tensor, values: Tensor, alpha: float) -> None:
    """out[indices] += alpha * values, for unique indices. Reads and writes k.

    An index out of range is passed over, and nothing is said: to raise, the host would have to wait for every message.
    `Sparse.validate` is what a receiver may ask of a stranger.
    """
    k = indices.numel()
    with torch.cuda.device_of(out):
        _scatter[(_programs(k, TILE),)](
            out, indices.contiguous(), values.to(out.dtype).contiguous(), alpha, out.numel(), k, TILE
        )


def _take(memory: Tensor, x: Tensor | None, scale: float, threshold: Tensor, zero: bool) -> tuple[Tensor, Tensor]:
    n, tiles = memory.numel(), _programs(memory.numel(), TILE)
    threshold = threshold.to(memory.device, torch.float32)  # it is there, but for one that nobody had to estimate
    counts = torch.empty(tiles, dtype=torch.int32, device=memory.device)
    with torch.cuda.device_of(memory):
        _count_tiles[(tiles,)](memory, x, threshold, counts, n, scale, TILE)
        ends = counts.cumsum(0, dtype=torch.int64)
        # the one place where the host waits for the device: it has to know how much memory the message needs
        k = int(ends[-1])
        values = torch.empty(k, dtype=memory.dtype, device=memory.device)
        indices = torch.empty(k, dtype=torch.int32 if n < 2**31 else torch.int64, device=memory.device)
        if k:
            _emit_tiles[(tiles,)](memory, threshold, counts, ends, values, indices, n, zero, TILE)
    return values, indices


def _programs(n: int, tile: int) -> int:
    """How many it takes; one, which finds nothing inside, for an empty vector."""
    return max(1, -(-n // tile))


@jit
def _places(n: tl.tensor, TILE: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Where this program looks, and what of it lies inside. 64 bits: 2^31 floats are 8 GiB, which a GPU holds."""
    places = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    return places, places < n


@jit
def _load(x: tl.tensor, memory: tl.tensor, places: tl.tensor, inside: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """x, or memory + scale * x, in float32; 0 outside."""
    v = tl.load(x + places, inside, 0.0).to(tl.float32)
    if memory is not None:
        v = tl.load(memory + places, inside, 0.0) + scale * v
    return v


# A 0-d tensor is often a view into a few numbers: where exactly is no reason to compile a kernel again.
@jit(do_not_specialize_on_alignment=["above"])
def _sum_tiles(  # noqa: PLR0913
    x: tl.tensor,
    memory: tl.tensor,
    above: tl.tensor,
    partials: tl.tensor,
    n: tl.tensor,
    scale: tl.tensor,
    SQUARES: tl.constexpr,
    LOGS: tl.constexpr,
    MAXIMUM: tl.constexpr,
    SIGNED: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Column t of `partials` (fields, tiles): the sums over tile t, in float64, which the reading of it hides."""
    places, inside = _places(n, TILE)
    v = _load(x, memory, places, inside, scale)
    a, hit = tl.abs(v), inside
    if above is not None:
        floor = tl.load(above).to(tl.float32)
        hit = (a > floor) & inside
        a = tl.where(hit, a - floor, 0.0)  # above 0 at a hit, also in gradual underflow
    wide, column, tiles = a.to(tl.float64), partials + tl.program_id(0), tl.num_programs(0)
    tl.store(column, tl.sum(hit.to(tl.int32)))
    tl.store(column + tiles, tl.sum(wide))
    if SQUARES:  # float64: squares of 1e30 and of 1e-40 are both out of float32's range
        tl.store(column + 2 * tiles, tl.sum(wide * wide))
    if LOGS:
        tl.store(column + 3 * tiles, tl.sum(tl.where(a > 0, tl.log(tl.where(a > 0, a, 1.0)), 0.0).to(tl.float64)))
    if MAXIMUM:
        tl.store(column + 4 * tiles, tl.max(a))
    if SIGNED:
        tl.store(column + 5 * tiles, tl.sum(tl.where(hit, v, 0.0).to(tl.float64)))


@jit(do_not_specialize=["asked"])
def _sum_partials(
    partials: tl.tensor, out: tl.tensor, tiles: tl.tensor, asked: tl.tensor, MAXIMUM: tl.constexpr, TILE: tl.constexpr
) -> None:
    """Program r: row r of `partials`, added up in one order into out[r]; left alone where it was not asked for."""
    row, lanes = tl.program_id(0), tl.arange(0, TILE)
    if (asked >> row) & 1 != 0:
        sums = tl.zeros((TILE,), tl.float64)
        for start in tl.range(0, tiles, TILE):  # pyright: ignore[reportGeneralTypeIssues]
            part = tl.load(partials + row * tiles + start + lanes, start + lanes < tiles, 0.0)
            sums = tl.where(row == MAXIMUM, tl.maximum(sums, part), sums + part)
        tl.store(out + row, tl.where(row == MAXIMUM, tl.max(sums), tl.sum(sums)))


@jit(do_not_specialize_on_alignment=["threshold"])
def _count_tiles(
    memory: tl.tensor,
    x: tl.tensor,
    threshold: tl.tensor,
    counts: tl.tensor,
    n: tl.tensor,
    scale: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """How many of each tile exceed the threshold; where there is an x, after memory += scale * x."""
    places, inside = _places(n, TILE)
    if x is None:
        v = _load(memory, None, places, inside, scale)
    else:
        v = _load(x, memory, places, inside, scale)
        tl.store(memory + places, v, inside)
    hit = (tl.abs(v) > tl.load(threshold).to(tl.float32)) & inside
    tl.store(counts + tl.program_id(0), tl.sum(hit.to(tl.int32)))


@jit(do_not_specialize_on_alignment=["threshold"])
def _emit_tiles(  # noqa: PLR0913
    memory: tl.tensor,
    threshold: tl.tensor,
    counts: tl.tensor,
    ends: tl.tensor,
    values: tl.tensor,
    indices: tl.tensor,
    n: tl.tensor,
    ZERO: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Each tile's hits to their places behind those of the tiles before."""
    count = tl.load(counts + tl.program_id(0))
    if count > 0:
        places, inside = _places(n, TILE)
        v = tl.load(memory + places, inside, 0.0)
        hit = (tl.abs(v.to(tl.float32)) > tl.load(threshold).to(tl.float32)) & inside
        to = tl.load(ends + tl.program_id(0)) - count + tl.cumsum(hit.to(tl.int32)) - 1
        tl.store(values + to, v, hit)
        tl.store(indices + to, places, hit)
        if ZERO:
            tl.store(memory + places, tl.zeros_like(v), hit)


@jit
def _sample(  # noqa: PLR0913
    x: tl.tensor,
    memory: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    scale: tl.tensor,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    lanes, inside = _places(size, TILE)
    start = (lanes // WIDTH) * (n - WIDTH) // tl.maximum(1, size // WIDTH - 1)
    tl.store(out + lanes, tl.abs(_load(x, memory, start + lanes % WIDTH, inside, scale)), inside)


@jit
def _scatter(
    out: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    alpha: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    lanes, inside = _places(k, TILE)
    places = tl.load(indices + lanes, inside, -1).to(tl.int64)
    inside = (places >= 0) & (places < n)  # a message comes from elsewhere: never write where it says unseen
    v = tl.load(values + lanes, inside, 0.0).to(tl.float32)
    added = tl.load(out + places, inside, 0.0).to(tl.float32) + alpha * v
    tl.store(out + places, added, inside)
