"""How many coordinates are selected as training goes, from the records of the steps."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.artifacts import Cell, Verdict
from experiments.artifacts.gradients import subject
from experiments.recipe import SAID
from experiments.results import Frame
from sidco.compressor import target_count

SELECT = ("topk", "gaussiank")  # and SIDCo, under whichever of its names
NEAR = (2 / 3, 4 / 3)  # of k: what GaussianK corrects its threshold for
COLUMNS = ["where", "compressor", "ratio", "feedback", "job", "step", "selected", "accumulated", "asked"]


def counted(table: Frame, folder: Path) -> pd.DataFrame:
    """A row a step of the jobs of `table`: coordinates selected in it and so far, on one worker, and k times the steps
    so far.
    """
    found = []
    for row in table.drop_duplicates("job").itertuples():
        if row.compressor not in SELECT and not row.compressor.startswith("sidco"):
            continue
        lines = (folder / "jobs" / row.job / "steps.jsonl").read_text().splitlines()
        steps = pd.DataFrame([json.loads(line) for line in lines])[["step", "density"]]
        steps["selected"] = (steps["density"] * row.numel).round()
        steps["accumulated"] = steps["selected"].cumsum()
        steps["asked"] = target_count(row.numel, row.ratio) * np.arange(1, len(steps) + 1)
        for name in ("where", "compressor", "ratio", "feedback", "job"):
            steps[name] = getattr(row, name)
        found.append(steps)
    return pd.concat(found).reindex(columns=COLUMNS) if found else pd.DataFrame(columns=COLUMNS)


def within(counts: Frame) -> Verdict:
    """Over all steps together."""
    return Verdict([
        Cell(_place(end), NEAR[0] <= end["times"] <= NEAR[1], f"{end['times']:.2f} times k over {end['steps']} steps")
        for end in _ends(counts) if end["compressor"] == "gaussiank"
    ])  # fmt: skip


def nearer(counts: Frame) -> Verdict:
    """Each SIDCo against GaussianK at the same place and ratio, with the same memory; too many counts as too few."""
    ends, cells = _ends(counts), []
    rivals = {(end["where"], end["ratio"], end["feedback"]): end for end in ends if end["compressor"] == "gaussiank"}
    for ours in ends:
        theirs = rivals.get((ours["where"], ours["ratio"], ours["feedback"]))
        if theirs and ours["compressor"].startswith("sidco"):
            figure = f"{ours['times']:.2f} times k, GaussianK {theirs['times']:.2f}"
            cells.append(Cell(_place(ours), _factor(ours) < _factor(theirs), figure))
    return Verdict(cells)


def _ends(counts: Frame) -> list[dict[str, Any]]:
    """Of each job what it came to: its last row, with how many `times` what was asked, in how many `steps`."""
    found = []
    for _, steps in counts.groupby("job", sort=False):
        last = steps.iloc[-1].to_dict()
        found.append({**last, "times": last["accumulated"] / last["asked"], "steps": len(steps)})
    return found


def _factor(end: dict[str, Any]) -> float:
    return max(end["times"], 1 / end["times"]) if end["times"] else float("inf")


def _place(end: dict[str, Any]) -> str:
    return f"{end['where']}, {subject(end)}, {SAID.get(end['feedback'], end['feedback'])}"
