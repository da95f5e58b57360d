"""The figure of the power law: sorted magnitudes and Top-k's error, a line of panels for each place."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from experiments.artifacts.gradients import descending, tail_energy, told
from experiments.artifacts.pictures import machine, save, sheet, styles
from experiments.results import Frame

POINTS = 400  # of a line, evenly spaced in ln j


def figures(drawn: Frame, table: Frame, folder: Path) -> Path:
    """One PNG; dashes: the fitted power; where p > 1/2, the law's bound on the error too, through the point
    where the fit begins. The last twentieth, down to nothing, is left out.
    """
    path, places = folder / "power_law.png", list(drawn.groupby("where", sort=False))
    figure, axes = sheet(len(places), 2, f"Sorted gradients and what Top-k leaves\n{machine(drawn)}", (5.0, 3.4))
    fits, looks = table.set_index(["job", "step"]), styles(drawn["line"].unique())
    for (sorted_ax, error_ax), (name, rows) in zip(axes, places, strict=True):
        for row in rows.itertuples():
            look = {"color": looks[row.line]["color"], "linewidth": 1.4}
            _vector(sorted_ax, error_ax, np.load(row.path), fits.loc[(row.job, row.step)], {**look, "label": row.line})
        sorted_ax.set(xscale="log", yscale="log", xlabel="rank j", ylabel="|g|, sorted")
        error_ax.set(xscale="log", yscale="log", xlabel="k", ylabel="σ_k over ||g||")
        sorted_ax.set_title(name, fontsize=10)
        error_ax.set_title(told(rows), fontsize=8, loc="left")
    save(figure, axes.flat, path, 2)
    return path


def _vector(sorted_ax: Axes, error_ax: Axes, x: np.ndarray, fit: Frame, look: dict) -> None:
    """The lines of x (n,), and dashes between a thousandth and a tenth of it."""
    ordered = descending(x)
    ranks = np.unique(np.geomspace(1, 0.95 * np.count_nonzero(x), POINTS).astype(np.int64))
    sorted_ax.plot(ranks, ordered[ranks - 1], **look)
    kept = np.concatenate([[0], ranks[ranks < x.size]])
    sigma = np.sqrt(tail_energy(ordered, kept))
    error_ax.plot(kept[1:], sigma[1:] / sigma[0], **look)
    fitted = ranks[(ranks >= 0.001 * x.size) & (ranks <= 0.1 * x.size)]
    if not fitted.size or np.isnan(fit["p"]):
        return
    dashes = {"color": "black", "linestyle": "--", "linewidth": 0.9}
    sorted_ax.plot(fitted, np.exp(fit["ln_c"]) * fitted ** -fit["p"], **dashes)
    if fit["p"] <= 0.5:
        return
    start = np.interp(fitted[0], kept, sigma) / sigma[0]
    error_ax.plot(fitted, start * (fitted / fitted[0]) ** (0.5 - fit["p"]), **dashes)
