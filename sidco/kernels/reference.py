"""The passes over memory in plain torch: the meaning that faster kernels are held against.

Vectors are walked in pieces that stay in cache, and sums are taken over fixed rows of a piece, so that the result does
not depend on the number of threads.
"""

import math
from collections.abc import Callable, Iterator, Set

import torch
from torch import Tensor

PIECE = 1 << 16  # floats in flight: 256 KiB, a piece and its scratch fit a core's second-level cache
ROW = 1 << 10  # floats summed by one thread, in one order
FRACTION_BITS = 15  # lower bits of a float32 that a histogram does not look at
WIDTH = 64  # floats of one block of a sample: four cache lines
TOPK_MOST = 2**31 - 1  # values that torch.topk is asked about at once


def moments(
    x: Tensor, above: Tensor | None, sums: Set[str], residual: Tensor | None = None, scale: float = 1.0
) -> tuple[Tensor, ...]:
    """(count, total, squares, logs, maximum, signed) of a = |v| - above where |v| > above, v = x or
    residual + scale * x; see `sidco.view.Moments`.

    Reads n (from memory once, from cache once for each sum). `x` is (n,) of any float type; results are float64.
    """
    zero = torch.zeros((), dtype=torch.float64, device=x.device)
    nan = torch.full_like(zero, torch.nan)
    rows: dict[str, list[Tensor]] = {name: [] for name in ("count", "total", *sums)}
    for piece in _summed(x, residual, scale):
        a = piece.float().abs()  # a copy also where x is float32: abs() allocates
        if above is not None:
            a = a.sub_(above.float()).clamp_min_(0)  # a > b makes a - b > 0 in gradual underflow: the count is exact
            rows["count"].append(torch.count_nonzero(a))
        rows["total"].append(_row_sums(a))
        if "squares" in sums:  # float64: squares of 1e30 and of 1e-40 are both out of float32's range
            rows["squares"].append(_row_sums(a.double().square_()))
        if "logs" in sums:
            rows["logs"].append(_row_sums(a.log().masked_fill_(a == 0, 0)))
        if "maximum" in sums:
            rows["maximum"].append(a.amax())
        if "signed" in sums:
            rows["signed"].append(_row_sums(piece.float() if above is None else piece.float() * (a > 0)))
    count = zero + x.numel() if above is None else _all(rows["count"], zero)
    return (
        count,
        _all(rows["total"], zero),
        _all(rows["squares"], zero) if "squares" in sums else nan,
        _all(rows["logs"], zero) if "logs" in sums else nan,
        (torch.stack(rows["maximum"]).amax().double() if x.numel() else zero) if "maximum" in sums else nan,
        _all(rows["signed"], zero) if "signed" in sums else nan,
    )


def exponential(
    x: Tensor,
    first: float,
    share: float,
    more: int,
    residual: Tensor | None = None,
    scale: float = 1.0,
    moments: Callable[..., tuple[Tensor, ...]] = moments,
) -> Tensor:
    """The threshold of an exponential law fitted in stages to x, or to residual + scale * x: 0-d float64.

    The first stage is fitted to all magnitudes and gives -mean ln first; `more` stages follow, each fitted to what
    exceeds the threshold before it, to which it adds -mean ln share. Reads n a stage, by `moments`.
    """
    count, total, *_ = moments(x, None, frozenset(), residual, scale)
    eta = -total / count.clamp_min(1) * math.log(first)
    for _ in range(more):
        count, total, *_ = moments(x, eta, frozenset(), residual, scale)
        eta = eta - total / count.clamp_min(1) * math.log(share)
    return eta


def take(x: Tensor, threshold: Tensor, expected: int, *, zero: bool = False) -> tuple[Tensor, Tensor]:
    """(values, ascending indices) where |x| > threshold, a 0-d tensor; with `zero` they are set to 0 in `x`.

    Reads n, writes k. `expected`, how many about, is a hint for kernels that need to know.
    """
    found, start = [], 0
    for piece in _pieces(x):
        found.append((piece.float().abs() > threshold.float()).nonzero().squeeze(1).add_(start))
        start += piece.numel()
    indices = torch.cat(found) if found else torch.empty(0, dtype=torch.int64, device=x.device)
    values = x[indices]
    if zero:
        x[indices] = 0
    return values, indices


def accumulate_take_(
    residual: Tensor, x: Tensor, scale: float, threshold: Tensor, expected: int
) -> tuple[Tensor, Tensor]:
    """residual += scale * x, then `take` from it and zero. `residual` is (n,) float32, `x` of any float type."""
    residual.add_(x, alpha=scale)
    return take(residual, threshold, expected, zero=True)


def histogram(x: Tensor, residual: Tensor | None, scale: float) -> Tensor:
    """(2^16,) int64: how many magnitudes of x, or of residual + scale * x, have which upper bits. Reads n, or 2n."""
    counts = torch.zeros(1 << (31 - FRACTION_BITS), dtype=torch.int64, device=x.device)
    for piece in _summed(x, residual, scale):
        counts += torch.bincount(piece.float().abs().view(torch.int32) >> FRACTION_BITS, minlength=counts.numel())
    return counts


def sampled(x: Tensor, residual: Tensor | None, scale: float, size: int) -> Tensor:
    """(size,) magnitudes of x, or of residual + scale * x, from blocks of `WIDTH` at even distances. The same places
    each time: no state, and no randomness for ranks to agree on. n >= size, a multiple of `WIDTH`.
    """
    blocks = torch.arange(size // WIDTH, device=x.device)
    starts = blocks * (x.numel() - WIDTH) // max(1, size // WIDTH - 1)
    places = (starts.unsqueeze(1) + torch.arange(WIDTH, device=x.device)).view(-1)
    values = x[places].float()
    return (values if residual is None else residual[places] + scale * values).abs_()


def scatter_add_(out: Tensor, indices: Tensor, values: Tensor, alpha: float) -> None:
    """out[indices] += alpha * values."""
    # index_add_, not out[i] += v: it is the one that stays right whatever the indices are
    out.index_add_(0, indices, values.to(out.dtype), alpha=alpha)


def largest(x: Tensor, k: int, most: int = TOPK_MOST) -> tuple[Tensor, Tensor]:
    """(values, ascending int64 indices) of the k largest magnitudes, by torch.topk.

    Of more than `most` values at once torch.topk has given indices out of range on GPUs, so they are asked for chunk
    by chunk, and the largest of those answer.
    """
    if x.numel() <= most:
        indices = x.abs().topk(k, sorted=False).indices
    else:
        chunks = [largest(chunk, min(k, chunk.numel()), most) for chunk in x.split(most)]
        places = torch.cat([found + start * most for start, (_, found) in enumerate(chunks)])
        candidates = torch.cat([values for values, _ in chunks])
        indices = places[candidates.abs().topk(k, sorted=False).indices]
    indices = indices.sort().values
    return x[indices], indices


def finite(x: Tensor) -> bool:
    """Is every value a number? Reads n; one host synchronisation."""
    if not x.numel():
        return True
    low, high = torch.aminmax(x)  # both carry a NaN through, and an infinity is one of them
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _summed(x: Tensor, residual: Tensor | None, scale: float) -> Iterator[Tensor]:
    if residual is None:
        return _pieces(x)
    pairs = zip(_pieces(x), _pieces(residual), strict=True)
    return (memory + scale * piece.float() for piece, memory in pairs)


def _pieces(x: Tensor) -> Iterator[Tensor]:
    return iter(x.split(PIECE)) if x.numel() else iter(())


def _row_sums(a: Tensor) -> Tensor:
    """Sums of whole rows and of the rest. Rows are never split between threads."""
    whole = a.numel() // ROW * ROW
    if whole == a.numel():
        return a.view(-1, ROW).sum(1).double()
    return torch.cat([a[:whole].view(-1, ROW).sum(1).double(), a[whole:].sum(dtype=torch.float64).view(1)])


def _all(parts: list[Tensor], zero: Tensor) -> Tensor:
    if not parts:
        return zero.clone()
    joined = torch.cat([part.reshape(-1) for part in parts]).double()
    while joined.numel() > ROW:  # again in rows: a long list of sums must not be split between threads either
        joined = _row_sums(joined)
    return joined.sum()
