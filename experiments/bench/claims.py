"""What SIDCo-E promises of its own cost, tried on the rows of a run."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.artifacts import Cell, Verdict
from experiments.bench.rounds import COLD
from experiments.bench.subjects import TOPK
from experiments.results import Frame

OURS, EXACT, OTHERS = "sidco_e", "sidco_e_exact", ("dgc", "redsync", "gaussiank")
LARGE = 10_000_000  # floats from which a vector is far beyond every cache
TIMES_ADD = {0.1: 4.0, 0.01: 2.2, 0.001: 1.5}
SPEEDUP = {0.1: 10.0, 0.01: 15.0, 0.001: 15.0}
KHAT = (0.8, 1.25)
EXPONENT, FROM, TO = (0.95, 1.05), 1 << 20, 1 << 28  # floats
WORD, SPARE = 4, 1 << 20  # bytes


def used(rows: Frame, cache: str = COLD) -> Frame:
    """Compressors with the memory that jobs give them."""
    return rows[(rows["cache"] == cache) & rows["as_jobs"]]


def fits(rows: Frame) -> Frame:
    """The exponent b of cost = a d^b, by least squares of the logarithms of medians, on cold normal vectors of a
    million floats or more: ratio, compressor, exponent, sizes, from, to. From two sizes on.
    """
    chosen = used(rows)
    chosen = chosen[~chosen["captured"].astype(bool) & (chosen["numel"] >= 1_000_000)]
    several = chosen.groupby(["ratio", "compressor"], sort=False).filter(lambda same: same["numel"].nunique() > 1)
    if several.empty:
        return several.reindex(columns=["ratio", "compressor", "exponent", "sizes", "from", "to"])

    def fitted(same: Frame) -> Frame:
        exponent = np.polyfit(np.log(same["numel"]), np.log(same["compress_ms_median"]), 1)[0]
        index = ["exponent", "sizes", "from", "to"]
        return type(same["numel"])([exponent, len(same), same["numel"].min(), same["numel"].max()], index=index)

    grouped = several.groupby(["ratio", "compressor"], sort=False)[["numel", "compress_ms_median"]]
    return grouped.apply(fitted).reset_index()


def _ours(rows: Frame, limits: Mapping[float, float]) -> Iterator[tuple[str, float, Any]]:
    """Where, limit and row of SIDCo-E at each ratio that has one, on large vectors."""
    found = used(rows)
    for row in found[(found["compressor"] == OURS) & (found["numel"] >= LARGE)].itertuples():
        if row.ratio in limits:
            yield f"{row.vector}, {row.ratio:g}", limits[row.ratio], row


def _times_add(rows: Frame) -> Verdict:
    return Verdict([
        Cell(where, row.times_add_median <= limit,
             f"{row.times_add_median:.2f} ({row.times_add_p20:.2f} to {row.times_add_p80:.2f}), at most {limit:g}")
        for where, limit, row in _ours(rows, TIMES_ADD)
    ])  # fmt: skip


def _khat(rows: Frame) -> Verdict:
    low, high = KHAT
    return Verdict([
        Cell(where, low <= row.khat_over_k <= high,
             f"{row.khat_over_k:.2f} over {row.khat_calls} calls ({row.khat_over_k_timed:.2f} over those timed)")
        for where, _, row in _ours(rows, TIMES_ADD)
    ])  # fmt: skip


def _over_topk(rows: Frame) -> Verdict:
    return Verdict([
        Cell(where, row.speedup_topk_median >= limit,
             f"{row.speedup_topk_median:.1f} ({row.speedup_topk_p20:.1f} to {row.speedup_topk_p80:.1f}), "
             f"at least {limit:g}")
        for where, limit, row in _ours(rows, SPEEDUP)
    ])  # fmt: skip


def _over_others(rows: Frame) -> Verdict:
    found, cells = used(rows), []
    for where, _, ours in _ours(rows, TIMES_ADD):
        same = found[(found["vector"] == ours.vector) & (found["ratio"] == ours.ratio)]
        for other in same[same["compressor"].isin(OTHERS)].itertuples():
            faster = other.compress_ms_median / ours.compress_ms_median
            cells.append(Cell(where, faster > 1, f"{faster:.2f} times as fast as {other.compressor}"))
    return Verdict(cells)


def _linear(name: str, rows: Frame) -> Verdict:
    found, (low, high) = fits(rows), EXPONENT
    found = found[(found["compressor"] == name) & (found["from"] <= FROM) & (found["to"] >= 0.95 * TO)]
    return Verdict([
        Cell(f"{row.ratio:g}", low <= row.exponent <= high, f"{row.exponent:.3f} from {row.sizes:.0f} sizes")
        for row in found.itertuples()
    ])  # fmt: skip


def _small(rows: Frame) -> Verdict:
    found = used(rows)
    found = found[(found["compressor"] == OURS) & found["extra_bytes"].notna()]
    return Verdict([
        Cell(f"{row.vector}, {row.ratio:g}", row.extra_bytes <= row.extra_message_bytes + SPARE,
             f"{row.extra_bytes / 2**20:.2f} MiB, the message {row.extra_message_bytes / 2**20:.2f}")
        for row in found.itertuples()
    ])  # fmt: skip


CLAIMS: Mapping[str, Callable[[Frame], Verdict]] = {
    "SIDCo-E with error feedback costs at most 4 times residual.add_(gradient) at ratio 0.1, 2.2 times at 0.01 and "
    "1.5 times at 0.001 (cold, 10 M floats or more).": _times_add,
    "Its mean k_hat / k lies in 0.8 to 1.25 meanwhile.": _khat,
    f"It is at least 10 times as fast as {TOPK} with error feedback at 0.1, 15 times at 0.01 and 0.001.": _over_topk,
    f"It is faster than {', '.join(OTHERS)} at every ratio.": _over_others,
    "Its cost grows with d to the power of 0.95 to 1.05, from 1 M to 260 M floats.": partial(_linear, OURS),
    f"So does that of {EXACT}, which fits to the whole vector and not to a sample.": partial(_linear, EXACT),
    "Its extra memory at the peak is at most 2k words + 1 MiB (k: what is sent).": _small,
}
