"""Do sorted gradients fall like a power of their rank, fast enough to be compressible?

Source: SIDCo, section on compressible gradients and its appendix: |g|_(j) <= c1 j^-p with p > 1/2, so that the error of
Top-k, sigma_k = ||g - T_k(g)||_2, is at most c2 k^(1/2 - p). Differs from it in that p is fitted between the ranks that
the paper's ratios select, which is where the law is used, and once more beyond them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.artifacts import Cell, Part, Printed, Verdict
from experiments.artifacts.gradients import (
    LIMITS,
    captures,
    descending,
    measured,
    names,
    pictured,
    place,
    shown_by_place,
    tail_energy,
)
from experiments.artifacts.power_law_pictures import figures
from experiments.results import Frame
from experiments.text import column

FITTED, BEYOND = (0.001, 0.1), (0.1, 0.5)  # shares of d between which a slope is fitted: the paper's ratios; the rest
POINTS = 200  # of a fit, evenly spaced in ln j
DRAWN = ("sidco_e", "topk", "none")
LEGEND = (
    f"p: less the slope of ln |g|_(j) against ln j, least squares over ranks j from {FITTED[0]:g} to {FITTED[1]:g} d, "
    "evenly spaced in ln j; misfit: the largest factor between |g|_(j) and the fitted line there. Slope of σ_k: of ln "
    "σ_k against ln k over the same k. A finite d makes σ_k fall faster than the law's 1/2 - p as k nears d. "
    "Beyond a tenth of d gradients may fall faster (the column beside): a bound for all j holds with a larger p and "
    "a larger c1, but says little of the k that are used."
)


@dataclass(frozen=True)
class PowerLaw:
    name: str = "power_law"
    title: str = "Power-law decay and sparsification error"
    source: str = "SIDCo (arXiv 2101.10761): compressibility of gradients, appendix"
    experiment: str = "statistics"

    def part(self, runs: Frame, folder: Path) -> Part | None:
        found = captures(runs, folder)
        table = measured(found, measure)
        if table.empty:
            return None
        body, texts = shown_by_place(table, text, LEGEND)
        return Part(
            table=table,
            body=body,
            pictures=[figures(pictured(found, table, DRAWN), table, folder / "figures")],
            claims={
                "Sorted gradients fall as j^-p with p > 1/2 (SIDCo's compressibility)": compressible(table),
                "Where p > 1/2, σ_k falls at least as fast as k^(1/2 - p)": bounded(table),
            },
            limits=LIMITS,
            printed=[Printed(name, shown.drop(columns="memory")) for name, shown in texts.items()],
        )


def measure(x: np.ndarray) -> Iterator[dict[str, Any]]:
    """The row of x (n,)."""
    ordered = descending(x)
    ranks = ranks_between(*FITTED, x)
    slope, start, misfit = line(ranks, ordered[ranks - 1])
    sigma_slope, _, _ = line(ranks, np.sqrt(tail_energy(ordered, ranks)))
    further = ranks_between(*BEYOND, x)
    yield {
        "p": -slope, "ln_c": start, "misfit": misfit, "p_beyond": -line(further, ordered[further - 1])[0],
        "sigma_slope": sigma_slope,
    }  # fmt: skip


def ranks_between(low: float, high: float, x: np.ndarray) -> np.ndarray:
    """Ranks j (m,), counted from 1, evenly spaced in ln j between two shares of the length of x (n,); only those of
    values that are not zero, the smallest excepted.
    """
    ranks = np.geomspace(max(1, low * x.size), max(1, high * x.size), POINTS).astype(np.int64)
    return np.unique(ranks[ranks < np.count_nonzero(x)])


def line(ranks: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """Of ln values against ln ranks: slope, height at rank 1, and the largest factor between a value and the line.
    NaN of fewer than two points.
    """
    if ranks.size < 2:
        return np.nan, np.nan, np.nan
    x, y = np.log(ranks), np.log(values.astype(np.float64))
    slope, start = np.polyfit(x, y, 1)
    return float(slope), float(start), float(np.exp(np.abs(y - slope * x - start).max()))


def text(rows: Frame) -> pd.DataFrame:
    """A line a vector."""
    return pd.DataFrame({
        **names(rows),
        "p": column(rows, "p", "{:.3f}"),
        "misfit": column(rows, "misfit", "{:.2f}x"),
        f"p from {BEYOND[0]:g} d to {BEYOND[1]:g} d": column(rows, "p_beyond", "{:.3f}"),
        "slope of σ_k": column(rows, "sigma_slope", "{:.3f}"),
        "1/2 - p": (0.5 - rows["p"]).map("{:.3f}".format),
    })  # fmt: skip


def compressible(table: Frame) -> Verdict:
    return Verdict([
        Cell(place(row), row["p"] > 0.5, f"p = {row['p']:.3f}, within a factor of {row['misfit']:.2f}")
        for row in table.dropna(subset="p").to_dict("records")
    ])  # fmt: skip


def bounded(table: Frame) -> Verdict:
    return Verdict([
        Cell(place(row), row["sigma_slope"] <= 0.5 - row["p"], f"{row['sigma_slope']:.3f} against {0.5 - row['p']:.3f}")
        for row in table[table["p"] > 0.5].dropna(subset="sigma_slope").to_dict("records")
    ])  # fmt: skip


POWER_LAW = PowerLaw()
