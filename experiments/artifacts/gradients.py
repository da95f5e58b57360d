"""Captured gradients as a table of files: what the artifacts about them share.

A job counts if it kept gradients in both halves of its steps, for early and late are what these artifacts compare:
of each half the outermost. Of a step it is what the compressor saw: with error feedback residual + gradient.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.artifacts import where
from experiments.capture import SEEN
from experiments.recipe import SAID
from experiments.results import Frame
from experiments.text import bullets, column, markdown, several

SAMPLE, SEED = 1 << 20, 1  # values that stand for a longer vector, drawn with replacement
EARLY, LATE = "early", "late"
GRADIENT, SUM = "gradient", "residual + gradient"
KEPT = ["job", "network", "world_size", "origin", "hardware", "torch_version", "code_fingerprint", "steps_total"]
LIMITS = f"""\
- Not all gradients: one worker's, of the steps named, of the trainings named. A vector that is all zero is left out.
- Not the paper's models, unless the benchmark says so, nor gradients from the end of a training that has converged.
- Not every value: of a vector of more than {SAMPLE:,} floats, histograms, distances and quantiles are of so many of
  them, drawn with replacement (seed {SEED}); moments, sorted values and errors are of all."""


def captures(runs: Frame, folder: Path) -> pd.DataFrame:
    """A row a vector: where, compressor, ratio, feedback, vector, step, early or late, the path of its file, and the
    job's facts. Empty where no job kept any.
    """
    found = []
    for run in runs.itertuples():
        for when, step, path in _early_and_late(folder / "jobs" / run.job, run.steps_total):
            found.append({
                **{name: getattr(run, name) for name in KEPT},
                "compressor": run.name_compressor, "ratio": run.ratio, "feedback": run.memory,
                "vector": SUM if path.stem.endswith(SEEN) else GRADIENT, "when": when, "step": step, "path": path,
            })  # fmt: skip
    if not found:
        return pd.DataFrame()
    table = pd.DataFrame(found)
    rows = runs[runs["job"].isin(table["job"])]
    called = dict(zip(rows["job"], where(rows), strict=True))
    table.insert(0, "where", [called[job] for job in table["job"]])
    order = ["where", "compressor", "ratio", "feedback", "step"]
    return table.sort_values(order, kind="stable").reset_index(drop=True)


def _early_and_late(job: Path, steps: int) -> list[tuple[str, int, Path]]:
    files = {}
    for path in sorted((job / "captures").glob("step*.npy")):  # stepN before stepN_ef, which takes its place
        if found := re.fullmatch(rf"step(\d+)({SEEN})?", path.stem):
            files[int(found[1])] = path
    early, late = [step for step in files if step < steps / 2], [step for step in files if step >= steps / 2]
    if not (early and late):
        return []
    return [(EARLY, min(early), files[min(early)]), (LATE, max(late), files[max(late)])]


def measured(found: Frame, measure: Callable[[np.ndarray], Iterable[dict[str, Any]]]) -> pd.DataFrame:
    """The table of `captures` without its paths, a row for each that `measure` gives of a vector (n,) float32."""
    rows = []
    for row in found.to_dict("records"):
        x = np.load(row.pop("path"))
        if x.any():
            rows += [{**row, "numel": x.size, **more} for more in measure(x)]
    return pd.DataFrame(rows)


def sample(x: np.ndarray) -> np.ndarray:
    """x (n,) itself as float64, or SAMPLE of its values where it is longer."""
    if x.size > SAMPLE:
        x = x[np.random.default_rng(SEED).integers(x.size, size=SAMPLE)]
    return x.astype(np.float64)


def descending(x: np.ndarray) -> np.ndarray:
    """Magnitudes (n,) float32, the largest first."""
    ordered = np.abs(x)
    ordered.sort()
    return ordered[::-1]


def tail_energy(ordered: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """||x - T_k(x)||^2 for each k of `kept` (m,), below n: what Top-k leaves of `ordered` (n,). float64."""
    different, back = np.unique(kept, return_inverse=True)
    parts = np.add.reduceat(np.square(ordered, dtype=np.float64), different)
    return np.cumsum(parts[::-1])[::-1][back]


def pictured(found: Frame, table: Frame, prefer: Sequence[str]) -> pd.DataFrame:
    """The vectors of `table` that are drawn: of each place those of one job without error feedback and of one with,
    early and late, of the first compressor of `prefer` that is there. With a column `line`: what each is called there.
    """
    chosen, found = [], found.merge(table[["job", "step"]].drop_duplicates())
    for _, rows in found.groupby("where", sort=False):
        for vector in (GRADIENT, SUM):
            kind = rows[rows["vector"] == vector]
            for name in [name for name in (*prefer, *kind["compressor"]) if name in set(kind["compressor"])][:1]:
                of_one = kind[kind["compressor"] == name]
                chosen.append(of_one[of_one["job"] == of_one["job"].iloc[0]])
    drawn = pd.concat(chosen)
    return drawn.assign(line=drawn["vector"] + ", " + drawn["when"])


def told(drawn: Frame) -> str:
    """Whose vectors these of `pictured` are, for the title of a panel."""
    kinds = [
        f"{vector}: {same['compressor'].iloc[0]}, steps {several(same, 'step')}"
        for vector, same in drawn.groupby("vector", sort=False)
    ]
    return "\n".join(kinds)


def place(row: Any) -> str:
    """Which vector a claim was tried on."""
    return f"{row['where']}, {subject(row)}, {row['vector']} at step {row['step']}"


def subject(row: Any) -> str:
    """The compressor, and its ratio if it has one."""
    return row["compressor"] if pd.isna(row["ratio"]) else f"{row['compressor']} {row['ratio']:g}"


def shown_by_place(
    table: Frame, text: Callable[[Frame], pd.DataFrame], legend: str
) -> tuple[str, dict[str, pd.DataFrame]]:
    """The body of a part, and the tables in it: a `text` for each place."""
    texts = {str(name): text(rows) for name, rows in table.groupby("where", sort=False)}
    tables = [f"### {name}\n\n{markdown(shown)}" for name, shown in texts.items()]
    return "\n\n".join([facts(table), *tables, legend]), texts


def facts(table: Frame) -> str:
    """Where the vectors come from."""
    lengths = sorted(set(table["numel"]))
    return bullets({
        "vectors": f"{len(table.drop_duplicates(['job', 'step']))}, of {', '.join(f'{n:,}' for n in lengths)} floats",
        "captured": f"at steps {several(table, 'step')} of {several(table, 'steps_total')}, on one worker of "
        f"{several(table, 'world_size')}, before any averaging",
        "rows": f"origin: {several(table, 'origin')}",
    })  # fmt: skip


def names(rows: Frame) -> dict[str, Frame]:
    """The first columns of a table for people."""
    said = rows["feedback"].map(lambda memory: SAID.get(memory, memory))
    return {
        "compressor": rows["compressor"], "ratio": column(rows, "ratio", "{:g}"), "memory": said,
        "vector": rows["vector"], "step": column(rows, "step", "{:g}"),
    }  # fmt: skip
