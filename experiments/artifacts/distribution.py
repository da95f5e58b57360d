"""What gradients look like: their distribution beside the three that SIDCo fits, early and late, with feedback and
without.

Source: SIDCo, the figure of empirical PDF and CDF with the fitted laws. Differs from it in that the distance of each
law is a number, that the normal law stands beside them, and that quantiles are compared where a threshold is taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.artifacts import Cell, Part, Printed, Verdict
from experiments.artifacts.distribution_pictures import figures
from experiments.artifacts.gradients import LIMITS, captures, measured, names, pictured, place, sample, shown_by_place
from experiments.artifacts.laws import FITS, NORMAL, laws
from experiments.results import Frame
from experiments.text import column

RATIOS = (0.01, 0.001)  # at which a threshold is compared with the empirical one
DRAWN = ("sidco_e", "topk", "none")  # the compressor whose gradients are drawn: the first that is there
LEGEND = (
    "KS: Kolmogorov and Smirnov's distance between the empirical distribution function of the magnitudes above zero "
    "and the fitted one, 0 to 1. η(0.001): the threshold that one stage of the fit takes for that ratio, over the "
    "magnitude that this share of the vector really exceeds: 1 is right, above 1 too few would be sent."
)


@dataclass(frozen=True)
class Distribution:
    name: str = "distribution"
    title: str = "What gradients look like"
    source: str = "SIDCo (arXiv 2101.10761): PDF and CDF of gradients with the three fitted laws, Fig 2"
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
            pictures=figures(pictured(found, table, DRAWN), folder / "figures"),
            claims={
                "One of the three laws is closer to the magnitudes than a normal law is": closer(table, NORMAL),
                "Gamma or generalised Pareto, of two parameters, are closer than the exponential (ours)": closer(
                    table, "exponential"
                ),
            },
            limits=LIMITS,
            printed=[Printed(name, shown.drop(columns="memory").iloc[:, :9]) for name, shown in texts.items()],
        )


def measure(x: np.ndarray) -> Iterator[dict[str, Any]]:
    """A row for each law, of x (n,)."""
    zeros = 1 - np.count_nonzero(x) / x.size
    magnitudes = np.abs(sample(x))
    magnitudes = magnitudes[magnitudes > 0]
    real = {share: np.quantile(magnitudes, 1 - share) for share in RATIOS}
    for name, law in laws(x).items():
        yield {
            "zeros": zeros, "values": magnitudes.size, "law": name, "ks": law.distance(magnitudes),
            **{f"threshold_{share:g}_over_empirical": law.quantile(share) / real[share] for share in RATIOS},
        }  # fmt: skip


def text(rows: Frame) -> pd.DataFrame:
    """A line a vector."""
    by_law = {law: same.reset_index(drop=True) for law, same in rows.groupby("law", sort=False)}
    distances = pd.DataFrame({law: same["ks"] for law, same in by_law.items()})
    first = by_law[NORMAL]
    return pd.DataFrame({
        **names(first),
        **{f"KS {law}": distances[law].map("{:.3f}".format) for law in distances},
        "closest": distances.idxmin(axis=1),
        **{f"η(0.001) {law}": column(by_law[law], "threshold_0.001_over_empirical", "{:.2f}") for law in FITS},
        "zeros": column(first, "zeros", "{:.1%}"),
    })  # fmt: skip


def closer(table: Frame, than: str) -> Verdict:
    """Is one of the other two or three fits closer than that law?"""
    rivals, cells = set(FITS) - {than}, []
    for _, same in table.groupby(["job", "step"], sort=False):
        theirs = same.loc[same["law"] == than].iloc[0]
        best = same.loc[same.loc[same["law"].isin(rivals), "ks"].idxmin()]
        figure = f"{best['law']} {best['ks']:.3f}, {than} {theirs['ks']:.3f}"
        cells.append(Cell(place(best), bool(best["ks"] < theirs["ks"]), figure))
    return Verdict(cells)


DISTRIBUTION = Distribution()
