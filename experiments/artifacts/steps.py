"""A table of cells whose rows are made of every step of their jobs, not of their summaries alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from math import isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.artifacts import Part
from experiments.artifacts.cells import CellTable
from experiments.curves import series
from experiments.results import Frame, labels

LONG = 100  # steps that a job needs to say anything of how training goes on


@dataclass(frozen=True, kw_only=True)
class StepTable(CellTable):
    """As a `CellTable`, but `draw` and `figures` take `steps` too: the columns `columns` of every timed step."""

    columns: Sequence[str]
    draw: Callable[..., pd.DataFrame]
    figures: Callable[..., list[Path]]
    series: bool = False  # are the steps a file of their own: tables/NAME_series.csv?

    def part(self, runs: Frame, folder: Path) -> Part | None:
        chosen = self.select(runs)
        steps = series(folder, chosen, self.columns)
        if self.series and len(chosen):
            told = chosen.assign(benchmark=chosen["name_benchmark"], label=labels(chosen)).set_index("job")
            said = told[["benchmark", "cell", "label", "ratio", "seed"]].join(steps.set_index("job"))
            said.to_csv(folder / "tables" / f"{self.name}_series.csv", index=False, float_format="%.5g")
        plain: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(CellTable)}
        plain |= {name: partial(plain[name], steps=steps) for name in ("draw", "figures")}
        return CellTable(**plain).part(runs, folder)


def by_ratio(table: Frame) -> pd.DataFrame:
    """The table with a cell for each ratio, and what has no ratio in each of them: for a row of panels each."""
    parts = []
    for cell, rows in table.groupby("cell", sort=False):
        for ratio in sorted(rows["ratio"].dropna().unique(), reverse=True) or [nan]:
            same = rows[rows["ratio"].isna() | (rows["ratio"] == ratio)]
            named = "" if isnan(ratio) else f", ratio {ratio:g}"
            parts.append(same.assign(cell=f"{cell} {ratio}", where=same["where"] + named))
    return pd.concat(parts)
