"""The training loss on the way, against steps and against seconds: a row of panels for each benchmark and ratio.

Source: SIDCo, Fig 4. Differs from the paper: the steps are those of the rows, not of whole trainings; a loss is a mean
over blocks of steps.
"""

from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from experiments.artifacts import FP32, NEVER, ROW, Cell, Verdict, in_order, link, place, where
from experiments.artifacts.pictures import GREY, Panel, panels, styles
from experiments.artifacts.remarks import reasons, shared_training
from experiments.artifacts.steps import LONG, StepTable, by_ratio
from experiments.recipe import later
from experiments.results import Frame, labels
from experiments.text import bullets, column, seeds, several, without_empty

BLOCKS = 40  # of a curve
FIRST = [
    "name_benchmark", "name_dataset", "name_compressor", "where", "network", "rate_mbit_per_s", "origin", "momentum",
    "weight_decay", "learning_rate", "memory", "parameters", "world_size", "batch_per_rank", "steps_total", "hardware",
    "torch_version", "code_fingerprint",
]  # fmt: skip
LIMITS = """\
- Not quality: a training loss says nothing of images or words that were not trained on; see convergence.
- Not whole trainings: as many steps as the rows have. Dense's loss at its own end is the goal of the last two columns.
- Not seconds of virtual workers: they take turns in one process and have none. Seconds are those of steps alone.
- Not certainty: of several seeds the first is drawn; numbers are means over all."""


def select(runs: Frame) -> Frame:
    """Jobs that are long enough to have a curve, where dense has one to be compared with; not those run for their
    gradients, with and without a memory.
    """
    long = runs[(runs["steps_total"] >= LONG) & (runs.get("name_experiment", "") != "statistics")]
    return long[long["cell"].isin(long.loc[long["name_compressor"] == FP32, "cell"])]


def draw(runs: Frame, steps: Frame) -> pd.DataFrame:
    """One row per benchmark, link, compressor and ratio; several seeds become a mean."""
    runs = runs.assign(label=labels(runs), where=where(runs))
    curves = {job: blocks(of_job) for job, of_job in steps.groupby("job")}
    goals = _goals(runs, curves)
    return in_order(pd.DataFrame([_row(jobs, curves, goals) for _, jobs in runs.groupby(ROW, dropna=False)]))


def blocks(steps: Frame) -> pd.DataFrame:
    """Means of the loss over blocks of steps, at the last step of each and the second it ended in."""
    steps = steps.reset_index(drop=True)
    of_block = steps.groupby(steps.index * BLOCKS // len(steps))
    return of_block[["step", "seconds"]].max().assign(loss=of_block["loss"].mean())


def _goals(runs: Frame, curves: dict[str, Frame]) -> dict[tuple[str, int], float]:
    """Dense's loss at its end, of each cell and seed."""
    dense = runs[runs["name_compressor"] == FP32]
    return {(row.cell, row.seed): curves[row.job]["loss"].iloc[-1] for row in dense.itertuples()}


def _row(jobs: Frame, curves: dict[str, Frame], goals: dict[tuple[str, int], float]) -> dict[str, Any]:
    """One row of the table, of the jobs that differ in their seed. The steps to a loss are NaN unless all got there."""
    first = jobs.iloc[0]
    found = [curves[job] for job in jobs["job"]]
    wanted = [goals.get((row.cell, row.seed), nan) for row in jobs.itertuples()]
    there = [curve[curve["loss"] <= goal].head(1) for curve, goal in zip(found, wanted, strict=True)]
    reached = pd.concat(there) if all(len(end) for end in there) else found[0][:0]
    timed = nan if first["network"] == "virtual" else reached["seconds"].mean()
    known = not any(pd.isna(goal) for goal in wanted)
    return {
        **{name.removeprefix("name_"): first[name] for name in (*FIRST, *ROW[:3])}, **later(first),
        **{f"loss_{part}": _mean(found, share) for part, share in (("quarter", 0.25), ("half", 0.5), ("end", 1.0))},
        "goal": sum(wanted) / len(wanted), "reached_goal": sum(map(len, there)) if known else nan,
        "steps_to_goal": reached["step"].mean() + 1, "seconds_to_goal": timed, "seeds": len(jobs),
        "note": "" if known else "no steps to dense's loss: dense fp32 (none) did not finish with the same training",
        "jobs": " ".join(jobs["job"]),
    }  # fmt: skip


def _mean(curves: list[Frame], share: float) -> float:
    """The loss after that share of the blocks."""
    ends = [curve["loss"].iloc[max(0, round(share * len(curve)) - 1)] for curve in curves]
    return sum(ends) / len(ends)


def facts(rows: Frame) -> str:
    """How long they trained."""
    return bullets({
        "steps": several(rows, "steps_total"),
        "workers": f"{several(rows, 'world_size')} ({', '.join(sorted({link(row) for row in rows.itertuples()}))})",
        "seeds": several(rows, "seed"),
    })  # fmt: skip


def heading(rows: Frame) -> str:
    """Of a cell: what was trained."""
    first = rows.iloc[0]
    name, rest = first["where"].split(", ", 1)
    size = f"{first['parameters'] / 1e6:.2f} M parameters, {first['steps_total']} steps of {first['batch_per_rank']}"
    return f"{name} on {first['dataset']}, {rest} ({size} a worker)"


def tables(rows: Frame) -> dict[str, pd.DataFrame]:
    """The rows of a cell: the loss on the way, and when it was as low as dense's at its end."""
    goal = rows["goal"].dropna()
    named = f"dense's {goal.iloc[0]:.3f}" if len(goal) else "dense's"
    return {
        "Training loss": without_empty(pd.DataFrame({
            "compressor": rows["label"],
            "ratio": column(rows, "ratio", "{:g}"),
            "after a quarter": column(rows, "loss_quarter", "{:.3f}"),
            "after half": column(rows, "loss_half", "{:.3f}"),
            "at the end": column(rows, "loss_end", "{:.3f}"),
            f"steps to {named}": _to_goal(rows, "steps_to_goal", "{:.0f}"),
            f"seconds to {named}": _to_goal(rows, "seconds_to_goal", "{:.3g}"),
            "seeds": seeds(rows),
            "origin": rows["origin"],
        }))
    }  # fmt: skip


def _to_goal(rows: Frame, name: str, form: str) -> list[str]:
    """A dash without a goal or without seconds; the mark where a seed never got there."""
    text = column(rows, name, form)
    never = (rows["reached_goal"] < rows["seeds"]) & ((name != "seconds_to_goal") | (rows["network"] != "virtual"))
    return [NEVER if bad else said for said, bad in zip(text, never, strict=True)]


def notes(rows: Frame) -> list[str]:
    never = (rows["reached_goal"] < rows["seeds"]).any()
    marked = [f"{NEVER}: the loss that dense had at its end was never seen in these steps"] if never else []
    return [*shared_training(rows), *marked, *reasons(rows)]


def figures(table: Frame, _: Frame, folder: Path, *, steps: Frame) -> list[Path]:
    """Loss against steps and, where there are seconds, against seconds; a row for each cell and ratio."""
    path = folder / "loss_curves.png"
    looks = styles(table.loc[table["compressor"] != FP32, "label"].unique())
    dense = {"color": GREY, "marker": "", "linestyle": "--"}
    looks |= {name: dense for name in table.loc[table["compressor"] == FP32, "label"]}
    draws: list[Panel] = [partial(_panel, steps=steps, looks=looks, along="step")]
    if (table["network"] != "virtual").any():
        draws.append(partial(_panel, steps=steps, looks=looks, along="seconds"))
    panels(by_ratio(table), path, f"Training loss, means over {BLOCKS} blocks of steps (first seed)", 3.0, draws)
    return [path]


def _panel(ax: Axes, rows: Frame, *, steps: Frame, looks: dict[str, dict[str, Any]], along: str) -> None:
    if along == "seconds" and rows.iloc[0]["network"] == "virtual":
        ax.text(0.5, 0.5, "virtual workers: no time", ha="center", transform=ax.transAxes)
        ax.set_axis_off()
        return
    for row in rows.itertuples():
        curve = blocks(steps[steps["job"] == row.jobs.split()[0]])
        ax.plot(curve[along], curve["loss"], label=row.label, **{**looks[row.label], "marker": "", "linewidth": 1.3})
    ax.set(xlabel="step" if along == "step" else "seconds of training steps", ylabel="train loss")


def _as_low_as_dense(table: Frame) -> Verdict:
    """Within as many steps as dense took: to 5 % of the loss, for two runs of dense differ by as much."""
    return Verdict([
        Cell(place(row), row.loss_end <= 1.05 * row.goal, f"{row.loss_end:.3f} against {row.goal:.3f}")
        for row in table[table["compressor"].str.startswith("sidco")].dropna(subset="goal").itertuples()
    ])  # fmt: skip


def _sooner(table: Frame) -> Verdict:
    """In seconds of training steps, of real ranks."""
    cells = []
    dense = table[table["compressor"] == FP32].groupby("cell")["seconds_to_goal"].min()
    for row in table[table["compressor"].str.startswith("sidco")].itertuples():
        theirs = dense.get(row.cell, nan)
        if not pd.isna(theirs):
            said = NEVER if pd.isna(row.seconds_to_goal) else f"{row.seconds_to_goal:.3g} s"
            cells.append(Cell(place(row), bool(row.seconds_to_goal < theirs), f"{said} against {theirs:.3g} s"))
    return Verdict(cells)


LOSS_CURVES = StepTable(
    name="loss_curves",
    title="Training loss",
    source="SIDCo (arXiv 2101.10761): Fig 4",
    experiment="loss_curves",
    select=select,
    columns=("loss", "seconds"),
    draw=draw,
    facts=facts,
    heading=heading,
    tables=tables,
    terminal=lambda rows: next(iter(tables(rows).values())).drop(columns="origin"),
    notes=notes,
    figures=figures,
    claims={
        "SIDCo's training loss ends as low as dense's (to 5 %), after as many steps": _as_low_as_dense,
        "SIDCo reaches dense's last training loss in less time than dense": _sooner,
    },
    limits=LIMITS,
)
