"""SIDCo's three fits under its three rules of adaptation, side by side: k_hat/k, stages in use, loss.

Source: SIDCo, appendix (SIDCo-E, -GP, -P side by side); the rules are the modes -1 ("paper"), -2 ("sign") and -3
("trend") of the authors' released code. Differs from the paper: it shows one rule.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from experiments.artifacts import Cell, Verdict, place
from experiments.artifacts import estimation as estimates
from experiments.artifacts.estimation import BAND, SKIPPED, around_one
from experiments.artifacts.pictures import COLOURS, Panel, panels
from experiments.artifacts.remarks import shared_training
from experiments.artifacts.steps import LONG, StepTable, by_ratio
from experiments.recipe import rule
from experiments.results import Frame

RULES = {"trend": "-", "paper": "--", "sign": ":"}  # and how they are drawn
FITS = dict(zip(("sidco_e", "sidco_gp", "sidco_p"), COLOURS, strict=False))
SMOOTH = 10  # steps


def select(runs: Frame) -> Frame:
    """Jobs of SIDCo that are long enough, where more than one rule adapts the stages."""
    ours = runs["name_compressor"].isin(FITS) & runs["compression"].map(rule).isin(RULES)
    long = runs[ours & (runs["steps_total"] >= SKIPPED + LONG)]
    several = long["compression"].map(rule).groupby(long["cell"]).transform("nunique") > 1
    return long[several]


def draw(runs: Frame, steps: Frame) -> pd.DataFrame:
    """As of `estimation`, whose rows these are; the label always names the rule, where all are of one rule too."""
    table = estimates.draw(runs, steps)
    return table.assign(label=table["compressor"] + " rule=" + table["rule"])


def shown(rows: Frame) -> pd.DataFrame:
    """The rows of a cell as text: a fit's rules below each other."""
    ordered = rows.sort_values(["ratio", "compressor", "rule"], ascending=[False, True, False])
    text = estimates.shown(ordered)
    text.insert(0, "fit", ordered["compressor"])
    text.insert(1, "rule", ordered["rule"])
    return text.drop(columns="compressor")


def figures(table: Frame, _: Frame, folder: Path, *, steps: Frame) -> list[Path]:
    """k_hat/k and stages against steps, a row of panels for each cell and ratio."""
    path = folder / "rules.png"
    draws: list[Panel] = [partial(_panel, steps=steps, name=name) for name in ("khat_over_k", "stages")]
    panels(by_ratio(table), path, f"k̂/k and stages, means over {SMOOTH} steps (first seed)", 3.2, draws)
    return [path]


def _panel(ax: Axes, rows: Frame, *, steps: Frame, name: str) -> None:
    for row in rows.itertuples():
        of_job = steps[steps["job"] == row.jobs.split()[0]].reset_index(drop=True)
        means = of_job.groupby(of_job.index // SMOOTH)[["step", name]].mean()
        look = {"color": FITS[row.compressor], "linestyle": RULES[row.rule], "linewidth": 1.3}
        ax.plot(means["step"], means[name], label=f"{row.compressor} {row.rule}", **look)
    if name == "khat_over_k":
        around_one(ax)
    ax.set(xlabel="step", ylabel="k̂/k" if name == "khat_over_k" else "stages")


def _of(name: str, table: Frame) -> Iterable[Any]:
    return table[table["rule"] == name].itertuples()


def _within(name: str, table: Frame) -> Verdict:
    low, high = BAND
    return Verdict([
        Cell(place(row), low <= row.khat_over_k <= high, estimates.figure(row)) for row in _of(name, table)
    ])  # fmt: skip


def _more_stages(table: Frame) -> Verdict:
    """Of the smallest ratio against the largest, in the same cell, with the same fit and rule."""
    cells = []
    for _, rows in table.groupby(["cell", "compressor", "rule"], sort=False):
        ordered = list(rows.sort_values("ratio").itertuples())
        least, most = ordered[0], ordered[-1]
        if least.ratio < most.ratio:
            figure = f"{least.stages_mean:.1f} against {most.stages_mean:.1f} at {most.ratio:g}"
            cells.append(Cell(place(least), least.stages_mean > most.stages_mean, figure))
    return Verdict(cells)


ESTIMATES = "SIDCo's mean k̂/k lies within 0.8 and 1.25 under the rule"
RULES_TABLE = StepTable(
    name="rules",
    title="Fits and rules of adaptation",
    source="SIDCo (arXiv 2101.10761): appendix, SIDCo-E, -GP and -P; rules: the authors' released code",
    experiment="rules",
    select=select,
    columns=("khat_over_k", "stages"),
    series=True,
    draw=draw,
    facts=estimates.facts,
    heading=estimates.heading,
    tables=lambda rows: {f"Each fit under each rule, after the first {SKIPPED} steps of training": shown(rows)},
    terminal=lambda rows: shown(rows).drop(columns=["origin"]),
    notes=shared_training,
    figures=figures,
    claims={
        **{f"{ESTIMATES} {name}": partial(_within, name) for name in RULES},
        "The smaller the ratio, the more stages are in use": _more_stages,
    },
    limits=estimates.LIMITS,
)
