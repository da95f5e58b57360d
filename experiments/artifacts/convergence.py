"""Where training ends: quality after some epochs of each compressor, beside dense training on the same batches.

Source: SIDCo, the quality its figures on end-to-end training keep (Figs 3, 5, 6) and the training loss of Fig 4. Of
virtual workers, which have no speed, and of ranks that were evaluated on the way. Differs from the paper: the epochs
and the learning rate are those of the rows, not of the paper's recipes, unless a row says so.
"""

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
    "metric_value": "final", "metric_best": "best", "gap_to_dense": "gap_to_dense",
    "gap_to_topk": "gap_to_topk", "loss_last": "loss_last",
    "density": "density", "khat_over_k_mean": "khat_over_k",
}  # fmt: skip


def draw(runs: Frame) -> pd.DataFrame:
    """One row per benchmark, compressor and ratio; several seeds become a mean and its standard deviation."""
    runs = runs.assign(label=labels(runs), where=where(runs), gap_to_dense=_gap(runs, FP32))
    runs = runs.assign(gap_to_topk=_gap(runs, "topk", "ratio"))
    return in_order(pd.DataFrame([_row(jobs) for _, jobs in runs.groupby(ROW, dropna=False)]))


def _gap(runs: Frame, name: str, *same: str) -> pd.Series:
    """To the best job of that compressor in the cell, of the same seed; in units of the metric, below 0 is worse."""
    alike, final = ["cell", "seed", *same], runs["metric_value"] * np.where(runs["higher_is_better"], 1, -1)
    theirs = runs["name_compressor"] == name
    ends = final[theirs].groupby([runs.loc[theirs, key] for key in alike]).max()
    return final - ends.reindex(pd.MultiIndex.from_frame(runs[alike])).to_numpy()


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
        "seeds": len(jobs), "seeds_beside_dense": jobs["gap_to_dense"].count(),
        "seeds_beside_topk": jobs["gap_to_topk"].count(), "note": _note(jobs), "jobs": " ".join(jobs["job"]),
    }  # fmt: skip


def _note(jobs: Frame) -> str:
    notes = ["1 seed"] if len(jobs) == 1 else []
    alone = jobs.loc[jobs["gap_to_dense"].isna(), "seed"]
    if len(alone):
        seeds = ", ".join(map(str, sorted(alone)))
        why = "dense fp32 (none) did not finish in this sweep with the same training"
        notes.append(f"no gap to dense for seed {seeds}: {why}")
    return "; ".join(notes)


def _close_to(rival: str, table: Frame) -> Verdict:
    """SIDCo's end beside the rival's, seed by seed: a difference between seeds is not one between compressors."""
    cells = []
    for row in table[table["compressor"].str.startswith("sidco")].dropna(subset=f"gap_to_{rival}").itertuples():
        gap, seeds = getattr(row, f"gap_to_{rival}"), getattr(row, f"seeds_beside_{rival}")
        beside = f"{abs(gap):.2f} {'better' if gap > 0 else 'worse'} than {rival}"
        tried = "1 seed" if seeds == 1 else f"mean of {seeds} seeds"
        figure = f"{row.final:.2f} {row.metric}, {beside} after {_long(row)}, {tried}"
        cells.append(Cell(place(row), gap >= -WITHIN, figure))
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
        "SIDCo ends within one point of dense, after as many epochs as these": partial(_close_to, "dense"),
        "SIDCo ends within one point of Topk, after as many epochs as these": partial(_close_to, "topk"),
    },
)
