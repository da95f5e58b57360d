"""GaussianK's theory on real vectors: how much of u Top-k leaves, the curve that its tighter bound assumes, how far u
is from normal, and how much is selected as training goes.

Source: Shi, Chu, Cheung, See (arXiv 1911.08772): histograms and distribution functions of u, the curve of π², the
bounds against the exact error, the accumulated number of selected gradients. Theorem 1 has ||u - T_k(u)||² at most
(1 - k/d)² ||u||² if the sorted squared magnitudes over the largest, π²_(i), are convex in i and below 1 - i/d; its
authors call that empirical. Without it (1 - k/d) ||u||² always holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from experiments.artifacts import Cell, Part, Printed, Verdict
from experiments.artifacts.gaussiank_pictures import figures
from experiments.artifacts.gradients import (
    LIMITS,
    SEED,
    captures,
    descending,
    measured,
    names,
    pictured,
    place,
    sample,
    shown_by_place,
    tail_energy,
)
from experiments.artifacts.selected import NEAR, counted, nearer, within
from experiments.results import Frame
from experiments.text import column
from sidco.compressor import target_count

FRACTIONS = (0.001, 0.005, 0.01)  # k over d, of the paper
CONVEX = 0.01  # of the area under the curve: what may lie above its convex hull
ROUNDING = 1e-6
TESTED = 5000  # values that Shapiro and Wilk's test is good for
DRAWN = ("gaussiank", "topk", "sidco_e")
LEGEND = (
    "Left by Top-k: ||u - T_k(u)||² over ||u||²; both bounds at these k are (1 - k/d) and (1 - k/d)². Above its hull: "
    "the share of the area under π² that lies above the largest convex curve below it, and the i around which most of "
    "it does; over 1 - i/d: the most that π² lies above that line, for i > 0. "
    f"W, p: Shapiro and Wilk's test of {TESTED:,} values."
)


@dataclass(frozen=True)
class GaussianKTheory:
    name: str = "gaussiank"
    title: str = "GaussianK's bounds, and what they assume"
    source: str = "GaussianK-SGD (arXiv 1911.08772), theorem 1 and the figures around it"
    experiment: str = "statistics"

    def part(self, runs: Frame, folder: Path) -> Part | None:
        found = captures(runs, folder)
        table = measured(found, measure)
        if table.empty:
            return None
        counts = counted(table, folder)
        counts.to_csv(folder / "tables" / f"{self.name}_selected.csv", index=False)
        body, texts = shown_by_place(table, text, LEGEND)
        return Part(
            table=table,
            body=body,
            pictures=[figures(pictured(found, table, DRAWN), counts, folder / "figures")],
            claims={
                f"π² is convex, but for {CONVEX:.0%} of the area under it (assumed by theorem 1)": convex(table),
                "π² lies below 1 - i/d (assumed by theorem 1)": below_line(table),
                "Top-k leaves at most (1 - k/d)² of ||u||², at every k (theorem 1)": bounded(table),
                "Gradients are not normal: Shapiro-Wilk p < 0.01": not_normal(table),
                f"GaussianK selects {NEAR[0]:.2g} to {NEAR[1]:.2g} times k on the mean, what it corrects for": within(
                    counts
                ),
                "What SIDCo selects over all steps is nearer to k than what GaussianK selects (ours)": nearer(counts),
            },
            limits=LIMITS,
            printed=[
                Printed(name, shown.drop(columns=["memory", "π² above its hull"])) for name, shown in texts.items()
            ],
        )


def measure(x: np.ndarray) -> Iterator[dict[str, Any]]:
    """The row of u = x (n,)."""
    ordered, values = descending(x), sample(x)
    ranks = curve_ranks(x.size)
    at, curve = ranks / x.size, pi_squared(ordered, ranks)
    gaps, over = curve - convex_hull(at, curve), (curve - (1 - at))[1:]
    weights = np.diff(at, append=1.0)  # of an area under the curve
    kept = np.array([target_count(x.size, share) for share in FRACTIONS])
    energy = tail_energy(ordered, np.concatenate([ranks, kept]))
    left, excess = energy / energy[0], energy[: ranks.size] / energy[0] - (1 - at) ** 2
    few = np.random.default_rng(SEED).choice(values, min(TESTED, values.size), replace=False)
    test: Any = stats.shapiro(few / np.abs(few).max() if few.any() else few)
    yield {
        "above_hull": (gaps * weights).sum() / (curve * weights).sum(), "above_hull_at": at[(gaps * at).argmax()],
        "over_line": over.max(), "over_line_at": at[1:][over.argmax()],
        **{f"left_{share:g}": value for share, value in zip(FRACTIONS, left[ranks.size :], strict=True)},
        **{f"bound_{share:g}": 1 - k / x.size for share, k in zip(FRACTIONS, kept, strict=True)},
        "over_square": excess.max(), "over_square_at": at[excess.argmax()],
        "shapiro_w": float(test.statistic), "shapiro_p": float(test.pvalue),
        "kurtosis": float(stats.kurtosis(values, fisher=False)), "values": values.size,
    }  # fmt: skip


def curve_ranks(count: int) -> np.ndarray:
    """Ranks i (m,) from 0 at which the curve is looked at: dense where it falls, and evenly over all of it."""
    falling = np.geomspace(1, count, 2048).astype(np.int64) - 1
    return np.unique(np.concatenate([falling, np.linspace(0, count - 1, 2048).astype(np.int64)]))


def pi_squared(ordered: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Squared magnitudes over the largest, at those ranks of `ordered` (n,)."""
    return (ordered[ranks].astype(np.float64) / float(ordered[0])) ** 2


def convex_hull(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The largest convex function below the points (x, y), both (m,), x ascending: its values at x."""
    kept: list[int] = []
    for point in range(x.size):
        while len(kept) > 1 and _above_chord(x, y, kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    return np.interp(x, x[kept], y[kept])


def _above_chord(x: np.ndarray, y: np.ndarray, left: int, middle: int, right: int) -> bool:
    return bool((y[middle] - y[left]) * (x[right] - x[left]) >= (y[right] - y[left]) * (x[middle] - x[left]))


def text(rows: Frame) -> pd.DataFrame:
    """A line a vector."""
    return pd.DataFrame({
        **names(rows),
        **{f"left by Top-k, {share:g} d": column(rows, f"left_{share:g}", "{:.3f}") for share in FRACTIONS},
        "π² above its hull": column(rows, "above_hull", "{:.2%}") + " at " + column(rows, "above_hull_at", "{:.2g} d"),
        "over 1 - i/d": [_over(row) for row in rows.to_dict("records")],
        "W": column(rows, "shapiro_w", "{:.3f}"),
        "p": column(rows, "shapiro_p", "{:.1g}"),
        "kurtosis": column(rows, "kurtosis", "{:.3g}"),
    })  # fmt: skip


def convex(table: Frame) -> Verdict:
    return Verdict([
        Cell(place(row), row["above_hull"] <= CONVEX,
             f"{row['above_hull']:.2%} of the area lies above its hull, most around i = {row['above_hull_at']:.2g} d")
        for row in table.to_dict("records")
    ])  # fmt: skip


def below_line(table: Frame) -> Verdict:
    return Verdict([
        Cell(place(row), row["over_line"] <= 0, _over(row))
        for row in table.to_dict("records")
    ])  # fmt: skip


def _over(row: dict[str, Any]) -> str:
    return "nowhere" if row["over_line"] <= 0 else f"by {row['over_line']:.2g} at i = {row['over_line_at']:.2g} d"


def bounded(table: Frame) -> Verdict:
    """The figure names the paper's k; the verdict is over every k that was looked at."""
    cells = []
    for row in table.to_dict("records"):
        pairs = [f"{row[f'left_{share:g}']:.3f} (at most {row[f'bound_{share:g}'] ** 2:.3f})" for share in FRACTIONS]
        holds = row["over_square"] <= ROUNDING
        where = "" if holds else f"; worst at k = {row['over_square_at']:.2g} d, by {row['over_square']:.2g}"
        cells.append(Cell(place(row), holds, f"{', '.join(pairs)}{where}"))
    return Verdict(cells)


def not_normal(table: Frame) -> Verdict:
    return Verdict([
        Cell(place(row), row["shapiro_p"] < 0.01,
             f"W = {row['shapiro_w']:.3f}, p = {row['shapiro_p']:.1g}, kurtosis {row['kurtosis']:.3g} (3 if normal)")
        for row in table.to_dict("records")
    ])  # fmt: skip


GAUSSIANK = GaussianKTheory()
