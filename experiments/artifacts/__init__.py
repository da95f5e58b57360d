"""One file per table or figure of the paper: a function of the table of runs, with the paper's claims attached."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.record import ROOT
from experiments.results import Frame

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)  # Okabe and Ito: told apart by the colour-blind
MARKERS = ("o", "s", "^", "D", "v")
HEADLINE = ROOT / "results" / "paper" / "headline.csv"


class Cell(NamedTuple):
    """A claim tried in one place of the table."""

    where: str  # benchmark, link, ratio
    holds: bool
    figure: str


class Verdict(NamedTuple):
    """What the table says of a claim."""

    cells: Sequence[Cell]

    @property
    def state(self) -> str:
        """A claim holds if it does wherever it could be tried."""
        if not self.cells:
            return "no data"
        return "holds" if all(cell.holds for cell in self.cells) else "fails"

    @property
    def tally(self) -> str:
        return f"({sum(cell.holds for cell in self.cells)} of {len(self.cells)})" if self.cells else ""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """What is regenerated from runs. `draw` takes the rows of `results.read`; all else takes what `draw` returns."""

    name: str  # of its files
    source: str  # paper, figure or table
    experiment: str  # the grid in conf/experiment that fills it
    draw: Callable[[Frame], pd.DataFrame]
    figures: Callable[[Frame, Path], list[Path]]  # PNG files written into the folder
    claims: Mapping[str, Callable[[Frame], Verdict]]
    headline: Callable[[Frame, Frame], pd.DataFrame]  # (table, numbers of the paper) -> side by side


def paper_numbers(path: Path = HEADLINE) -> pd.DataFrame:
    """Numbers transcribed from the paper: claim, value, unit, mark, page, source, as text."""
    numbers = pd.read_csv(path, dtype=str, keep_default_na=False)
    recalled = numbers[numbers["mark"] == "M"]
    if len(recalled):
        raise ValueError(
            f"{path.name}: expected numbers read in the paper (mark P), got {len(recalled)} marked M, from memory: "
            "look them up, give the page and mark them P, or drop the lines"
        )
    return numbers


def link(row: Any) -> str:
    """The network of a row, for people; what was not shaped shouts."""
    if row.network == "shaped":
        return f"{row.rate_mbit_per_s:g} Mb/s link"
    return "cluster" if row.network == "cluster" else "LOOPBACK, not shaped"


def place(row: Any) -> str:
    """Where in the table a row of a compressor with a ratio stands."""
    return f"{row.benchmark}, {link(row)}, {row.label} {row.ratio:g}"


def styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour and marker of each line, the same in every panel; dotted where the colours begin anew."""
    looks = zip(cycle(COLOURS), cycle(MARKERS), cycle("-" * len(COLOURS) + ":" * len(COLOURS)))
    keys = ("color", "marker", "linestyle")
    return {name: dict(zip(keys, look, strict=True)) for name, look in zip(names, looks, strict=False)}


def panels(table: Frame, path: Path, title: str, height: float, panel: Callable[[Axes, Frame], None]) -> None:
    """A PNG of one panel per benchmark and link, two side by side, `height` inches each, with one legend for all."""
    cells = [rows for _, rows in table.groupby("cell", sort=False)]
    columns = min(2, len(cells))
    count = ceil(len(cells) / columns)
    figure = Figure(figsize=(8.4 if columns == 2 else 6.4, height * count + 1.2), layout="constrained")
    axes = list(figure.subplots(count, columns, squeeze=False).flat)
    handles: dict[str, Any] = {}
    for ax, rows in zip(axes, cells, strict=False):
        first = rows.iloc[0]
        panel(ax, rows)
        colour = "#B00000" if first["network"] == "loopback" else "black"
        ax.set_title(f"{first['benchmark']}, {link(first)}", fontsize=10, color=colour)
        ax.spines[["top", "right"]].set_visible(False)
        drawn, names = ax.get_legend_handles_labels()
        handles |= dict(zip(names, drawn, strict=True))
    for ax in axes[len(cells) :]:
        ax.set_axis_off()
    first = table.iloc[0]
    machine = f"{first['hardware']}, {first['world_size']} ranks, torch {first['torch_version']}"
    figure.suptitle(f"{title}\n{machine}", fontsize=11)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns + 2, frameon=False, fontsize=9
    )
    figure.savefig(path, dpi=150)
