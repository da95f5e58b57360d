"""The figure of distributions: a line a vector: density and distribution function, signed and not, and quantiles."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.artifacts.gradients import sample
from experiments.artifacts.laws import NORMAL, Law, laws
from experiments.artifacts.pictures import COLOURS, GREY, machine, save, sheet
from experiments.results import Frame

HEADS = ("density of g", "share of g below", "density of |g|", "share of |g| above", "quantiles: fitted against real")
REAL: dict[str, Any] = {"color": "#B8B8B8", "label": "measured"}


def figures(drawn: Frame, folder: Path) -> list[Path]:
    """One PNG a place, of the vectors of `gradients.pictured`."""
    paths = []
    for name, rows in drawn.groupby("where", sort=False):
        path = folder / f"distribution_{re.sub('[^a-z0-9]+', '_', str(name).lower())}.png"
        title = f"{name}: gradients g and the laws fitted to |g|\n{machine(rows)}"
        figure, axes = sheet(len(rows), len(HEADS), title)
        for line, row in zip(axes, rows.itertuples(), strict=True):
            _vector(line, np.load(row.path))
            line[0].set_ylabel(f"{row.vector}\n{row.compressor}, step {row.step}", fontsize=9)
        for ax, head in zip(axes[0], HEADS, strict=True):
            ax.set_title(head, fontsize=10)
        for ax in axes.flat:
            ax.tick_params(labelsize=8)
        save(figure, axes.flat, path, 5)
        paths.append(path)
    return paths


def _vector(line: Any, x: np.ndarray) -> None:
    """The panels of x (n,)."""
    values = np.sort(sample(x))
    values = values[values != 0]
    magnitudes, fitted = np.sort(np.abs(values)), laws(x)
    looks = dict(zip(fitted, [{"color": colour, "linewidth": 1.2} for colour in COLOURS], strict=False))
    looks[NORMAL] = {"color": GREY, "linewidth": 1.2, "linestyle": ":"}
    span = 1.05 * np.quantile(magnitudes, 0.999)
    _signed(line[0], line[1], values, np.linspace(-span, span, 122), fitted, looks)
    edges = np.geomspace(np.quantile(magnitudes, 0.01) / 1.05, 1.05 * magnitudes[-1], 81)
    _unsigned(line[2], line[3], magnitudes, edges, fitted, looks)
    _quantiles(line[4], magnitudes, fitted, looks)


def _signed(
    density: Axes, below: Axes, values: np.ndarray, edges: np.ndarray, fitted: dict[str, Law], looks: dict[str, Any]
) -> None:
    counts, width = np.histogram(values, edges)[0], np.diff(edges)
    heights, middle = counts / values.size / width, (edges[1:] + edges[:-1]) / 2
    density.stairs(heights, edges, fill=True, **REAL)
    below.plot(edges, np.searchsorted(values, edges, side="right") / values.size, **{**REAL, "linewidth": 4})
    for name, law in fitted.items():
        shares = law.below_signed(edges)
        density.plot(middle, np.diff(shares) / width, label=name, **looks[name])
        below.plot(edges, shares, **looks[name])
    density.set(yscale="log", ylim=(heights[heights > 0].min() / 3, 3 * heights.max()), xlabel="g")
    below.set(xlabel="g")
    for ax in (density, below):
        ax.locator_params(axis="x", nbins=5)
        ax.ticklabel_format(axis="x", style="sci", scilimits=(-2, 2))


def _unsigned(
    density: Axes, above: Axes, magnitudes: np.ndarray, edges: np.ndarray, fitted: dict[str, Law], looks: dict[str, Any]
) -> None:
    """The distribution function is seen from above: it is the tail that a threshold cuts."""
    counts, width = np.histogram(magnitudes, edges)[0], np.diff(edges)
    heights, middle = counts / magnitudes.size / width, np.sqrt(edges[1:] * edges[:-1])
    density.stairs(heights, edges, fill=True, **REAL)
    shares = 1 - np.searchsorted(magnitudes, edges, side="right") / magnitudes.size
    above.plot(edges, shares, **{**REAL, "linewidth": 4})
    for name, law in fitted.items():
        density.plot(middle, -np.diff(law.above(edges)) / width, **looks[name])
        above.plot(edges, law.above(edges), **looks[name])
    density.set(xscale="log", yscale="log", ylim=(heights[heights > 0].min() / 3, 3 * heights.max()), xlabel="|g|")
    above.set(xscale="log", yscale="log", ylim=(0.5 / magnitudes.size, 1.5), xlabel="|g|")


def _quantiles(ax: Axes, magnitudes: np.ndarray, fitted: dict[str, Law], looks: dict[str, Any]) -> None:
    """From the share 0.9 above to the ten largest of the values looked at."""
    shares = np.geomspace(0.9, min(10 / magnitudes.size, 0.5), 60)
    real = np.quantile(magnitudes, 1 - shares)
    ax.plot(real, real, **{**REAL, "linewidth": 4})
    for name, law in fitted.items():
        ax.plot(real, law.quantile(shares), **looks[name])
    ax.set(xscale="log", yscale="log", ylim=(real[0] / 3, real[-1] * 3), xlabel="real quantile of |g|")
