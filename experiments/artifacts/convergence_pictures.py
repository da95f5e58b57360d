"""The figure of how training goes: quality against epochs and steps, against time where there is one, and the loss."""

from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from experiments.artifacts import FP32
from experiments.artifacts.pictures import GREY, Panel, panels, styles
from experiments.curves import LOSS, QUALITY
from experiments.results import Frame

DENSE = {"color": GREY, "marker": "o", "linestyle": "--"}


def figures(table: Frame, curves: Frame, folder: Path) -> list[Path]:
    """One PNG, a row of panels for each cell; the panel against time only if a cell has one."""
    path = folder / "convergence.png"
    names = table["label"] + table["ratio"].map(lambda ratio: "" if isnan(ratio) else f" {ratio:g}")
    table = table.assign(line=names)
    looks = styles(table.loc[table["compressor"] != FP32, "line"].unique())
    looks |= {name: DENSE for name in table.loc[table["compressor"] == FP32, "line"]}
    draws: list[Panel] = [
        partial(panel, curves=curves, looks=looks) for panel in (_quality_by_epoch, _loss_by_step, _quality_by_time)
    ]
    timed = curves.loc[curves["curve"] == QUALITY, "seconds"].notna().any()
    title = "Quality and loss on the way (a band: from the lowest to the highest of several seeds)"
    panels(table, path, title, 3.4, draws if timed else draws[:2])
    return [path]


def _quality_by_epoch(ax: Axes, rows: Frame, *, curves: Frame, looks: dict[str, dict[str, Any]]) -> None:
    """Epochs, and below them steps: all rows of a cell have the same steps in an epoch."""
    _lines(ax, rows, curves[curves["curve"] == QUALITY], looks, "epoch")
    _target(ax, rows)
    first = rows.iloc[0]
    ax.set(xlabel="epoch", ylabel=first["metric"])
    if not isnan(first["epochs"]):
        each = first["steps_total"] / first["epochs"]
        steps = ax.secondary_xaxis(-0.24, functions=(lambda epoch: epoch * each, lambda step: step / each))
        steps.set_xlabel("step")


def _loss_by_step(ax: Axes, rows: Frame, *, curves: Frame, looks: dict[str, dict[str, Any]]) -> None:
    bare = {name: {**look, "marker": ""} for name, look in looks.items()}
    _lines(ax, rows, curves[curves["curve"] == LOSS], bare, "step", labelled=False)
    ax.set(xlabel="step", ylabel="train loss, smoothed")


def _quality_by_time(ax: Axes, rows: Frame, *, curves: Frame, looks: dict[str, dict[str, Any]]) -> None:
    """Of real ranks alone."""
    if rows.iloc[0]["network"] == "virtual":
        ax.text(0.5, 0.5, "virtual workers: no time", ha="center", transform=ax.transAxes)
        ax.set_axis_off()
        return
    _lines(ax, rows, curves[curves["curve"] == QUALITY], looks, "seconds")
    _target(ax, rows)
    ax.set(xlabel="seconds of training steps", ylabel=rows.iloc[0]["metric"])


def _lines(
    ax: Axes, rows: Frame, curve: Frame, looks: dict[str, dict[str, Any]], along: str, labelled: bool = True
) -> None:
    """Means over seeds, point by point, and between the lowest and the highest of several seeds a band."""
    for row in rows.itertuples():
        points = curve[curve["job"].isin(row.jobs.split())].groupby("step")
        x, y = points[along].mean(), points["value"]
        look = looks[row.line]
        ax.plot(x, y.mean(), label=row.line if labelled else None, markersize=4, linewidth=1.4, **look)
        if row.seeds > 1:
            ax.fill_between(x, y.min(), y.max(), color=look["color"], alpha=0.15, linewidth=0)


def _target(ax: Axes, rows: Frame) -> None:
    target = rows.iloc[0]["target"]
    if not isnan(target):
        ax.axhline(target, color="black", linestyle=":", linewidth=1, label="target")
