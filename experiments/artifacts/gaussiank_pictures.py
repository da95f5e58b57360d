"""The figure of GaussianK's theory: u against a normal, the curve of π², the bounds, and what was selected."""

from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from scipy import stats

from experiments.artifacts.gradients import descending, sample, tail_energy, told
from experiments.artifacts.pictures import GREY, machine, save, sheet, styles
from experiments.recipe import SAID
from experiments.results import Frame

HEADS = ("density of u over its spread", "share below", "π² against i/d", "left by Top-k", "selected so far")
SPREADS = np.linspace(-6, 6, 241)
SELECTED = ("#56B4E9", "#E69F00", "#888888")  # colours that no vector has
DOTTED = {"color": "black", "linestyle": ":", "linewidth": 1.2}


def figures(drawn: Frame, counts: Frame, folder: Path) -> Path:
    """One PNG, a line of panels for each place."""
    path, places = folder / "gaussiank.png", list(drawn.groupby("where", sort=False))
    title = f"What GaussianK assumes and bounds: u is what a compressor sees\n{machine(drawn)}"
    figure, axes = sheet(len(places), len(HEADS), title, (3.6, 3.1))
    looks = styles(drawn["line"].unique())
    colours = dict(zip(sorted(set(counts["compressor"])), cycle(SELECTED), strict=False))
    for line, (name, rows) in zip(axes, places, strict=True):
        for row in rows.itertuples():
            look = {"color": looks[row.line]["color"], "linewidth": 1.3, "label": row.line}
            _vector(line[:4], np.load(row.path), look)
        _references(line[:4])
        _selected(line[4], counts[counts["where"] == name], colours)
        line[0].set_ylabel(f"{name}\n{told(rows)}", fontsize=8)
    for ax, head in zip(axes[0], HEADS, strict=True):
        ax.set_title(head, fontsize=10)
    save(figure, axes.flat, path, 4)
    return path


def _vector(line: np.ndarray, x: np.ndarray, look: dict) -> None:
    """The lines of u = x (n,)."""
    density, below, curve, left = line
    values, ordered = np.sort(sample(x)), descending(x)
    values /= values.std() or 1.0
    counts, width = np.histogram(values, SPREADS)[0], np.diff(SPREADS)
    density.plot((SPREADS[1:] + SPREADS[:-1]) / 2, counts / values.size / width, **look)
    below.plot(SPREADS, np.searchsorted(values, SPREADS, side="right") / values.size, **look)
    ranks = np.unique(np.geomspace(1, x.size, 500).astype(np.int64)) - 1
    curve.plot((ranks + 1) / x.size, (ordered[ranks] / float(ordered[0])) ** 2, **look)
    left.plot((ranks + 1) / x.size, tail_energy(ordered, ranks) / tail_energy(ordered, np.array([0])), **look)


def _references(line: np.ndarray) -> None:
    """What the vectors are held against."""
    density, below, curve, left = line
    density.plot(SPREADS, stats.norm.pdf(SPREADS), label="normal", **DOTTED)
    below.plot(SPREADS, stats.norm.cdf(SPREADS), **DOTTED)
    shares = np.geomspace(1e-5, 1, 300)
    curve.plot(shares, 1 - shares, label="1 - i/d, 1 - k/d", color=GREY, linestyle="--", linewidth=1.2)
    left.plot(shares, 1 - shares, color=GREY, linestyle="--", linewidth=1.2)
    left.plot(shares, (1 - shares) ** 2, label="(1 - k/d)²", color="black", linestyle="-.", linewidth=1.2)
    for share in (0.001, 0.005, 0.01):
        left.axvline(share, color="#DDDDDD", linewidth=0.8, zorder=0)
    density.set(yscale="log", ylim=(1e-6, 30), xlabel="u over its standard deviation")
    below.set(xlabel="u over its standard deviation")
    curve.set(xscale="log", xlabel="i/d", xlim=(1e-5, 1))
    left.set(xscale="log", xlabel="k/d", xlim=(1e-5, 1))


def _selected(ax: Axes, counts: Frame, colours: dict[str, str]) -> None:
    """Solid with error feedback, dashed without; dotted what was asked."""
    if counts.empty:
        ax.text(0.5, 0.5, "no compressor that selects", ha="center", transform=ax.transAxes)
        ax.set_axis_off()
        return
    for (name, _), steps in counts.groupby(["compressor", "job"], sort=False):
        memory = steps["feedback"].iloc[0]
        dashes = "--" if memory == "none" else "-"
        label = f"{name}, {SAID.get(memory, memory)}"
        ax.plot(steps["step"] + 1, steps["accumulated"], color=colours[name], linestyle=dashes, label=label)
    asked = counts[counts["job"] == counts["job"].iloc[0]]
    ax.plot(asked["step"] + 1, asked["asked"], label="k times steps", **DOTTED)
    ax.set(xlabel="step", ylabel="coordinates")
