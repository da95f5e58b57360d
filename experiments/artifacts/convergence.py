"""Where training ends: quality after some epochs of each compressor, beside dense training on the same batches.

Source: SIDCo, the quality its figures on end-to-end training keep (Figs 3, 5, 6) and the training loss of Fig 4. Of
virtual workers, which have no speed, and of ranks that were evaluated on the way. Differs from the paper: the epochs
and the learning rate are those of the rows, not of the paper's recipes, unless a row says so.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from experiments.artifacts import FP32, ROW, Cell, Verdict, in_order, place, where
from experiments.artifacts import convergence_text as text
from experiments.artifacts.cells import CellTable
from experiments.artifacts.convergence_pictures import figures
from experiments.recipe import later
from experiments.results import Frame, labels

WITHIN = 1.0  # points of the metric
FIRST = [
    "name_benchmark", "name_dataset", "name_compressor", "where", "network", "rate_mbit_per_s", "metric",
    "higher_is_better", "origin", "momentum", "weight_decay", "learning_rate", "memory", "target", "parameters",
    "world_size", "batch_per_rank", "epochs", "steps_total", "hardware", "torch_version", "code_fingerprint",
]  # fmt: skip
MEANS = {
    "metric_value": "final", "metric_best": "best", "gap_to_dense": "gap_to_dense", "loss_last": "loss_last",
    "density": "density", "khat_over_k_mean": "khat_over_k",
}  # fmt: skip


def draw(runs: Frame) -> pd.DataFrame:
    """One row per benchmark, compressor and ratio; several seeds become a mean and its standard deviation."""
    runs = runs.assign(label=labels(runs), where=where(runs), gap_to_dense=_gap_to_dense(runs))
    return in_order(pd.DataFrame([_row(jobs) for _, jobs in runs.groupby(ROW, dropna=False)]))


def _gap_to_dense(runs: Frame) -> pd.Series:
    """Of the dense job of the same cell and seed, in units of the metric: below 0 is worse than dense."""
    final, dense = runs["metric_value"], runs["name_compressor"] == FP32
    keys = pd.MultiIndex.from_frame(runs[["cell", "seed"]])
    ends = final[dense].groupby([runs["cell"], runs["seed"]]).mean().reindex(keys).to_numpy()
    return (final - ends) * np.where(runs["higher_is_better"], 1, -1)


def _row(jobs: Frame) -> dict[str, Any]:
    """One row of the table, of the jobs that differ in their seed. KB are 1000 bytes, per step and worker."""
    first, reached = jobs.iloc[0], jobs["steps_to_target"].notna()
    return {
        **{name.removeprefix("name_"): first[name] for name in (*FIRST, *ROW[:3])},
        **later(first),
        **{name: jobs[column].mean() for column, name in MEANS.items()},
        "final_sd": jobs["metric_value"].std(), "gap_sd": jobs["gap_to_dense"].std(),  # between seeds; NaN of one
        "reached_target": reached.sum() if jobs["target"].notna().any() else np.nan,  # seeds
        "steps_to_target": jobs["steps_to_target"].mean() if reached.all() else np.nan,
        "payload_kb": jobs["payload_bytes"].mean() / 1000,
        "seeds": len(jobs), "note": _note(jobs), "jobs": " ".join(jobs["job"]),
    }  # fmt: skip


def _note(jobs: Frame) -> str:
    notes = ["1 seed"] if len(jobs) == 1 else []
    alone = jobs.loc[jobs["gap_to_dense"].isna(), "seed"]
    if len(alone):
        seeds = ", ".join(map(str, sorted(alone)))
        why = "dense fp32 (none) did not finish in this sweep with the same training"
        notes.append(f"no gap to dense for seed {seeds}: {why}")
    return "; ".join(notes)


def _sidco(table: Frame) -> Iterable[Any]:
    return table[table["compressor"].str.startswith("sidco")].itertuples()


def _close_to(name: str, table: Frame) -> Verdict:
    """SIDCo's end against that of the best row of that compressor in the same cell and at the same ratio."""
    cells = []
    for ours in _sidco(table):
        same = table[(table["compressor"] == name) & (table["cell"] == ours.cell)]
        same = same[same["ratio"].isna() | (same["ratio"] == ours.ratio)].dropna(subset="final")
        if not len(same) or pd.isna(ours.final):
            continue
        sign = 1 if ours.higher_is_better else -1
        theirs = same.loc[(sign * same["final"]).idxmax()]
        gap = sign * (ours.final - theirs["final"])
        seeds = "1 seed" if ours.seeds == 1 else f"{ours.seeds} seeds"
        figure = f"{ours.final:.2f} against {theirs['final']:.2f} {ours.metric} after {_long(ours)}, {seeds}"
        cells.append(Cell(place(ours), bool(gap >= -WITHIN), figure))
    return Verdict(cells)


def _long(row: Any) -> str:
    return f"{row.steps_total} steps" if pd.isna(row.epochs) else f"{row.epochs:.3g} epochs"


def _select(runs: Frame) -> Frame:
    evaluated = runs["metric_value"].notna()  # runs for gradients or for speed alone need not be
    return runs[((runs["network"] == "virtual") | (runs["points"] > 0)) & evaluated]


CONVERGENCE = CellTable(
    name="convergence",
    title="Convergence",
    source="SIDCo (arXiv 2101.10761): the quality reached in its figures on end-to-end training, Fig 4",
    experiment="convergence",
    select=_select,
    draw=draw,
    facts=text.facts,
    heading=text.heading,
    tables=text.tables,
    terminal=text.terminal,
    notes=text.notes,
    figures=figures,
    curves=True,
    limits=text.LIMITS,
    claims={
        "SIDCo ends within one point of dense, after as many epochs as these": partial(_close_to, FP32),
        "SIDCo ends within one point of Topk, after as many epochs as these": partial(_close_to, "topk"),
    },
)
