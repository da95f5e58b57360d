"""How near the number selected comes to k: k_hat/k over hundreds of steps, of each estimator, benchmark and ratio.

Source: SIDCo, the lower panels of Figs 3, 5 and 6 (mean k_hat/k with a 90 % interval) and the appendix's running
average of the achieved ratio. Differs from the paper: the first 20 steps, in which the controller of the stages finds
its place, are left aside; the interval is that of means over blocks of 10 steps, for neighbouring steps are alike.
"""

from collections.abc import Iterable
from functools import partial
from math import log, sqrt
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from experiments.artifacts import ROW, Cell, Verdict, in_order, link, paper_said, place, where
from experiments.artifacts.pictures import GREY, Panel, panels, styles
from experiments.artifacts.remarks import shared_training
from experiments.artifacts.steps import LONG, StepTable
from experiments.recipe import later, rule
from experiments.results import Z90, Frame, labels
from experiments.text import bullets, column, plus_minus, seeds, several, without_empty

ESTIMATORS = ("sidco_e", "sidco_gp", "sidco_p", "dgc", "gaussiank", "redsync")
SKIPPED = 20  # steps from the start of training
BLOCK = 10  # steps whose mean counts as one observation
BAND = (0.8, 1.25)  # of k_hat/k: the authors' tolerance of 0.2, as a factor both ways
TOLERANCE = 0.2
FIRST = [
    "name_benchmark", "name_dataset", "name_compressor", "where", "network", "rate_mbit_per_s", "origin", "momentum",
    "weight_decay", "learning_rate", "memory", "parameters", "world_size", "batch_per_rank", "hardware",
    "torch_version", "code_fingerprint",
]  # fmt: skip
LIMITS = """\
- Not the paper's training: batch, learning rate and number of steps are those named here. Gradients late in a long
  training have other tails.
- Not of all workers: of rank 0, or of the first virtual worker.
- Not certainty: ± is the normal 90 % interval 1.645 s/√n of means over blocks of 10 steps, which are less alike than
  neighbouring steps are. Where the number of stages changes late, a mean is of two regimes: the median and the share of
  steps within 0.8 and 1.25 tell."""


def select(runs: Frame) -> Frame:
    """Jobs of an estimator, with its usual rule, that are long enough."""
    known = runs["name_compressor"].isin(ESTIMATORS) & runs["khat_over_k_mean"].notna()
    return runs[known & (runs["steps_total"] >= SKIPPED + LONG) & runs["compression"].map(rule).isin(("", "trend"))]


def draw(runs: Frame, steps: Frame) -> pd.DataFrame:
    """One row per benchmark, estimator and ratio; the interval of several seeds is that of the mean of their means."""
    runs = runs.assign(label=labels(runs), where=where(runs), rule=runs["compression"].map(rule))
    by_job = {job: of_job for job, of_job in steps[steps["step"] >= SKIPPED].groupby("job")}
    rows = [_row(jobs, [by_job[job] for job in jobs["job"]]) for _, jobs in runs.groupby(ROW, dropna=False)]
    return in_order(pd.DataFrame(rows))


def _row(jobs: Frame, found: list[Frame]) -> dict[str, Any]:
    """One row of the table, of the jobs that differ in their seed; `found`: the steps that count of each."""
    first, every = jobs.iloc[0], pd.concat(found)
    errors = [interval(of_job["khat_over_k"]) for of_job in found]
    c = every["khat_over_k"]
    return {
        **{name.removeprefix("name_"): first[name] for name in (*FIRST, *ROW[:3])}, **later(first),
        "rule": first["rule"], "steps_counted": min(map(len, found)),
        "first_step": min(int(of_job["step"].min()) for of_job in found),
        "khat_over_k": sum(of_job["khat_over_k"].mean() for of_job in found) / len(found),
        "khat_over_k_ci90": sqrt(sum(error**2 for error in errors)) / len(errors),
        "khat_over_k_median": c.median(), "khat_over_k_p5": c.quantile(0.05), "khat_over_k_p95": c.quantile(0.95),
        "within_band": c.between(*BAND).mean(), "stages_mean": every["stages"].mean(),
        "stages_last": sum(of_job["stages"].iloc[-1] for of_job in found) / len(found),
        "density": jobs["density"].mean(), "loss_last": jobs["loss_last"].mean(),
        "seeds": len(jobs), "note": "1 seed" if len(jobs) == 1 else "", "jobs": " ".join(jobs["job"]),
    }  # fmt: skip


def interval(values: Frame) -> float:
    """Half the 90 % interval of the mean, from means over blocks of steps; NaN of fewer than two blocks."""
    values = values.reset_index(drop=True)
    whole = values[: len(values) // BLOCK * BLOCK]
    means = whole.groupby(whole.index // BLOCK).mean()
    return Z90 * means.std() / sqrt(max(len(means), 1))


def facts(rows: Frame) -> str:
    """Which steps count."""
    kinds = sorted({link(row) for row in rows.itertuples()})
    return bullets({
        "workers": f"{several(rows, 'world_size')} ({', '.join(kinds)})",
        "steps": f"{several(rows, 'steps_total')}; those after the first {SKIPPED} of training count",
        "seeds": several(rows, "seed"),
    })  # fmt: skip


def heading(rows: Frame) -> str:
    """Of a cell: what was trained."""
    first = rows.iloc[0]
    count, million = first["world_size"], first["parameters"] / 1e6
    size = f"{million:.2f} M parameters, {count} worker{'s' if count > 1 else ''} of {first['batch_per_rank']}"
    name, rest = first["where"].split(", ", 1)
    return f"{name} on {first['dataset']}, {rest} ({size})"


def shown(rows: Frame) -> pd.DataFrame:
    """The rows of a cell as text."""
    return without_empty(pd.DataFrame({
        "compressor": rows["label"],
        "ratio": column(rows, "ratio", "{:g}"),
        "k̂/k": plus_minus(rows, "khat_over_k", "khat_over_k_ci90", "{:.2f}"),
        "median": column(rows, "khat_over_k_median", "{:.2f}"),
        "5 %": column(rows, "khat_over_k_p5", "{:.2f}"),
        "95 %": column(rows, "khat_over_k_p95", "{:.2f}"),
        "% of steps within 0.8 to 1.25": column(rows.assign(percent=100 * rows["within_band"]), "percent", "{:.0f}"),
        "stages, mean": column(rows, "stages_mean", "{:.1f}"),
        "at the end": column(rows, "stages_last", "{:g}"),
        "train loss": column(rows, "loss_last", "{:.3f}"),
        "steps": column(rows, "steps_counted", "{:g}"),
        "seeds": seeds(rows),
        "origin": rows["origin"],
    }))  # fmt: skip


def figures(table: Frame, _: Frame, folder: Path, *, steps: Frame) -> list[Path]:
    """The mean with its interval against the ratio, and the running average against steps, a panel for each ratio."""
    looks = styles(table["label"].unique())
    quality, running = folder / "estimation.png", folder / "estimation_running.png"
    title = "k̂/k: mean, 90 % interval (grey: within 0.8 and 1.25)"
    panels(table, quality, title, 3.2, [partial(_quality_panel, looks=looks)])
    ratios = sorted(table["ratio"].unique(), reverse=True)
    draws: list[Panel] = [partial(running_panel, steps=steps, looks=looks, ratio=ratio) for ratio in ratios]
    panels(table, running, f"Running average of k̂/k after the first {SKIPPED} steps", 3.2, draws)
    return [quality, running]


def _quality_panel(ax: Axes, rows: Frame, *, looks: dict[str, dict[str, Any]]) -> None:
    names = list(rows["label"].unique())
    for number, name in enumerate(names):
        same = rows[rows["label"] == name]
        aside = 1.06 ** (number - len(names) / 2)  # so that bars of one ratio stand side by side
        look = {**looks[name], "linestyle": ""}
        low = same["khat_over_k_ci90"].clip(upper=0.95 * same["khat_over_k"])  # a logarithm has no zero
        error = [low.fillna(0), same["khat_over_k_ci90"].fillna(0)]
        ax.errorbar(same["ratio"] * aside, same["khat_over_k"], yerr=error, label=name, capsize=2.5, **look)
    around_one(ax)
    ax.set_xscale("log")
    ratios = sorted(rows["ratio"].unique())
    ax.set_xlim(1.6 * max(ratios), min(ratios) / 1.6)
    ax.set_xticks(ratios, [f"{ratio:g}" for ratio in ratios])
    ax.xaxis.minorticks_off()
    ax.set(xlabel="ratio", ylabel="k̂/k")


def running_panel(
    ax: Axes, rows: Frame, *, steps: Frame, looks: dict[str, dict[str, Any]], ratio: float, along: str = "label"
) -> None:
    """Of the first seed: an average over seeds would hide how one run goes."""
    for row in rows[rows["ratio"] == ratio].itertuples():
        of_job = steps[(steps["job"] == row.jobs.split()[0]) & (steps["step"] >= SKIPPED)]
        average = of_job["khat_over_k"].expanding().mean()
        look = {**looks[getattr(row, along)], "marker": ""}
        ax.plot(of_job["step"], average, label=getattr(row, along), linewidth=1.3, **look)
    around_one(ax)
    ax.set(xlabel=f"step (ratio {ratio:g})", ylabel="k̂/k, average so far")


def around_one(ax: Axes) -> None:
    """A logarithmic axis on which the band that counts as good is grey."""
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter("{x:g}")  # 0.1, not 10^-1
    ax.yaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
    ax.yaxis.set_minor_formatter("{x:g}")
    ax.axhspan(*BAND, color=GREY, alpha=0.15, linewidth=0)
    ax.axhline(1, color=GREY, linewidth=0.8)


def _sidco(table: Frame) -> Iterable[Any]:
    return table[table["compressor"].str.startswith("sidco")].itertuples()


def within(table: Frame) -> Verdict:
    """Every row of SIDCo."""
    low, high = BAND
    return Verdict([Cell(place(row), low <= row.khat_over_k <= high, figure(row)) for row in _sidco(table)])


def _usually(table: Frame) -> Verdict:
    """A mean of 1 may be of steps far below it and steps far above."""
    return Verdict([Cell(place(row), row.within_band >= 0.5, figure(row)) for row in _sidco(table)])


def figure(row: Any) -> str:
    """The estimate of a row, for a claim."""
    around = "" if pd.isna(row.khat_over_k_ci90) else f" ±{row.khat_over_k_ci90:.2f}"
    return f"{row.khat_over_k:.2f}{around}, {100 * row.within_band:.0f} % of {row.steps_counted} steps within"


def _nearer_than(name: str, slack: float, table: Frame) -> Verdict:
    """By the distance of the mean from 1, as a factor: half of k is as far away as twice k."""
    cells = []
    for ours in _sidco(table):
        same = table[(table["compressor"] == name) & (table["cell"] == ours.cell) & (table["ratio"] == ours.ratio)]
        for theirs in same.itertuples():
            near = _distance(ours.khat_over_k) <= _distance(theirs.khat_over_k) + slack
            cells.append(Cell(place(ours), near, f"{ours.khat_over_k:.2f} against {theirs.khat_over_k:.2f}"))
    return Verdict(cells)


def _distance(c: float) -> float:
    return abs(log(c)) if c > 0 else float("inf")


ESTIMATION = StepTable(
    name="estimation",
    title="Estimation quality",
    source="SIDCo (arXiv 2101.10761): Figs 3, 5, 6, lower panels; appendix, running average of the achieved ratio",
    experiment="estimation",
    select=select,
    columns=("khat_over_k", "stages"),
    series=True,
    draw=draw,
    facts=facts,
    heading=heading,
    tables=lambda rows: {f"k̂/k after the first {SKIPPED} steps of training": shown(rows)},
    terminal=lambda rows: shown(rows).drop(columns=["origin", "train loss"]),
    notes=shared_training,
    figures=figures,
    claims={
        "SIDCo's mean k̂/k lies within 0.8 and 1.25": within,
        "SIDCo estimates k as well as DGC does, to a factor of 1.2": partial(_nearer_than, "dgc", log(1 + TOLERANCE)),
        "SIDCo's mean k̂/k is nearer to 1 than GaussianK's": partial(_nearer_than, "gaussiank", 0.0),
        "SIDCo's mean k̂/k is nearer to 1 than RedSync's": partial(_nearer_than, "redsync", 0.0),
        "SIDCo's k̂/k lies within 0.8 and 1.25 in half of the steps or more (ours)": _usually,
    },
    headline=lambda table: paper_said("fig3_lstm", "fig5_cifar", "fig6_imagenet", quantity="estimation"),
    limits=LIMITS,
)
