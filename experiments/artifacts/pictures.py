"""What the figures share: colours, markers and a page of panels."""

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from math import ceil
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
GREY = "#555555"  # of dense
Panel = Callable[[Axes, Frame], None]


def styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour and marker of each line, the same in every panel; dotted where the colours begin anew."""
    looks = zip(cycle(COLOURS), cycle(MARKERS), cycle("-" * len(COLOURS) + ":" * len(COLOURS)))
    keys = ("color", "marker", "linestyle")
    return {name: dict(zip(keys, look, strict=True)) for name, look in zip(names, looks, strict=False)}


def panels(table: Frame, path: Path, title: str, height: float, draws: Sequence[Panel]) -> None:
    """A PNG of the panels of each cell, `height` inches each, with one legend for all.

    Cells with one panel stand two side by side; those with several have a row each.
    """
    cells = [rows for _, rows in table.groupby("cell", sort=False)]
    columns = len(draws) if len(draws) > 1 else min(2, len(cells))
    count = ceil(len(cells) * len(draws) / columns)
    width = {1: 6.4, 2: 8.4}.get(columns, 4.0 * columns)
    figure = Figure(figsize=(width, height * count + 1.2), layout="constrained")
    axes = list(figure.subplots(count, columns, squeeze=False).flat)
    for ax, (rows, draw) in zip(axes, [(rows, draw) for rows in cells for draw in draws], strict=False):
        first = rows.iloc[0]
        draw(ax, rows)
        colour = "#B00000" if first["network"] == "loopback" else "black"
        ax.set_title(first["where"], fontsize=10, color=colour, wrap=True)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[len(cells) * len(draws) :]:
        ax.set_axis_off()
    figure.suptitle(f"{title}\n{machine(table)}", fontsize=11)
    save(figure, axes, path, columns + 2)


def sheet(lines: int, columns: int, title: str, size: tuple[float, float] = (3.4, 2.8)) -> tuple[Figure, Any]:
    """A page of empty panels of `size` inches: axes (lines, columns)."""
    figure = Figure(figsize=(size[0] * columns, size[1] * lines + 1.2), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    return figure, axes


def save(figure: Figure, axes: Iterable[Axes], path: Path, columns: int) -> None:
    """A PNG, with one legend for all panels."""
    handles: dict[str, Any] = {}
    for ax in axes:
        drawn, names = ax.get_legend_handles_labels()
        handles |= dict(zip(names, drawn, strict=True))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    figure.savefig(path, dpi=150)


def machine(table: Frame) -> str:
    """What the rows were measured on, for a title."""
    first, virtual = table.iloc[0], table["network"] == "virtual"
    kind = "virtual workers" if virtual.all() else "workers" if virtual.any() else "ranks"
    sizes = "/".join(f"{n}" for n in sorted(set(table["world_size"])))
    return f"{first['hardware']}, {sizes} {kind}, torch {first['torch_version']}"
