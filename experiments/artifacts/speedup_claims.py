"""What the paper, and we, claim of speed, each tried on the table of `speedup`."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from experiments.artifacts import FP32, Cell, Verdict, place
from experiments.artifacts.estimation import BAND
from experiments.results import Frame

RIVALS = {FP32: "no compression", "topk": "Topk", "dgc": "DGC"}  # and what the paper calls them
SMALLEST, NEAR = 0.001, 0.85  # ratio, share of the rate without exchange


def _sidco(table: Frame) -> Iterable[Any]:
    return table[table["compressor"].str.startswith("sidco")].itertuples()


def pairs(table: Frame, name: str) -> list[tuple[Any, Any]]:
    """Each row of SIDCo with the fastest row of that compressor at the same place and ratio, where there is one."""
    rivals = table[table["compressor"] == name]
    pairs = []
    for ours in _sidco(table):
        same = rivals[(rivals["cell"] == ours.cell) & (rivals["ratio"].isna() | (rivals["ratio"] == ours.ratio))]
        if len(same):
            pairs.append((ours, same.loc[same["units_per_second"].idxmax()]))
    return pairs


def faster_than(name: str, table: Frame) -> Verdict:
    """By medians; a difference that the steps' own 20 % and 80 % quantiles bridge is told as such."""
    cells = []
    for ours, theirs in pairs(table, name):
        times = ours.units_per_second / theirs.units_per_second
        overlap = ours.step_ms_p20 <= theirs.step_ms_p80 and theirs.step_ms_p20 <= ours.step_ms_p80
        figure = f"{times:.2f}x{' (within the spread of the steps)' if overlap else ''}"
        cells.append(Cell(place(ours), times > 1, figure))
    return Verdict(cells)


def compresses_faster_than(name: str, table: Frame) -> Verdict:
    cells = []
    for ours, theirs in pairs(table, name):
        figure = f"{ours.compress_ms:.2f} against {theirs.compress_ms:.2f} ms"
        cells.append(Cell(place(ours), ours.compress_ms < theirs.compress_ms, figure))
    return Verdict(cells)


def estimates_well(table: Frame) -> Verdict:
    dgc = {place(ours): f" (dgc {theirs.khat_over_k:.2f})" for ours, theirs in pairs(table, "dgc")}
    low, high = BAND
    return Verdict([
        Cell(place(ours), low <= ours.khat_over_k <= high, f"{ours.khat_over_k:.2f}{dgc.get(place(ours), '')}")
        for ours in _sidco(table)
    ])  # fmt: skip


def beats_best_dense(table: Frame) -> Verdict:
    """The fastest compressor of each place and ratio has to."""
    tried = table[table["ratio"].notna() & table["speedup_over_best_dense"].notna()]
    best = tried.loc[tried.groupby(["cell", "ratio"], sort=False)["speedup_over_best_dense"].idxmax()]
    return Verdict([
        Cell(place(row), row.speedup_over_best_dense > 1, f"{row.speedup_over_best_dense:.2f}x over {row.best_dense}")
        for row in best.itertuples()
    ])  # fmt: skip


def hardly_costs(table: Frame) -> Verdict:
    """Against the steps of the same job under `no_sync`, clipping and optimizer included."""
    tried = [row for row in _sidco(table) if row.ratio == SMALLEST and not math.isnan(row.compute_only_ms)]
    shares = [(place(row), row.compute_only_ms / row.step_ms) for row in tried]
    return Verdict([Cell(where, share >= NEAR, f"{100 * share:.0f} %") for where, share in shares])


CLAIMS: Mapping[str, Callable[[Frame], Verdict]] = {
    **{f"SIDCo trains faster than {said}": partial(faster_than, name) for name, said in RIVALS.items()},
    "SIDCo compresses in less time than Topk": partial(compresses_faster_than, "topk"),
    "SIDCo compresses in less time than DGC": partial(compresses_faster_than, "dgc"),
    "SIDCo compresses in less time than RedSync": partial(compresses_faster_than, "redsync"),
    "SIDCo compresses in less time than GaussianK": partial(compresses_faster_than, "gaussiank"),
    "SIDCo's k_hat/k stays within 0.8 and 1.25, an estimate as good as DGC's": estimates_well,
    "Compression beats the best dense baseline (fp32 or bf16)": beats_best_dense,
    "SIDCo at 0.001 trains at 85 % or more of the rate without any exchange (ours)": hardly_costs,
}
