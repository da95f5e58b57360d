"""An artifact that is a table of cells: one for each benchmark and link, whose rows may be compared with each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from experiments.artifacts import Part, Printed, Verdict
from experiments.artifacts.remarks import grouped_training
from experiments.curves import curves
from experiments.results import Frame
from experiments.text import markdown


@dataclass(frozen=True, kw_only=True)
class CellTable:
    """`select` and `draw` take the rows of `results.read`, `facts` those selected; all else takes what `draw` returns,
    or of it the rows of one cell.
    """

    name: str
    title: str
    source: str
    experiment: str
    select: Callable[[Frame], Frame]  # the rows it is about
    draw: Callable[[Frame], pd.DataFrame]
    facts: Callable[[Frame], str]
    heading: Callable[[Frame], str]  # of a cell
    tables: Callable[[Frame], Mapping[str, pd.DataFrame]]  # of a cell: text by caption
    terminal: Callable[[Frame], pd.DataFrame]  # of a cell: text that fits 120 columns
    notes: Callable[[Frame], Sequence[str]]  # on a cell: what its rows share, why a number is blank
    figures: Callable[[Frame, Frame, Path], list[Path]]  # (table, curves): PNG files written into the folder
    claims: Mapping[str, Callable[[Frame], Verdict]]
    curves: bool = False  # does it draw how training went on the way?
    limits: str
    legend: str = ""  # below the tables
    warning: Callable[[Frame], str] = lambda table: ""
    headline: Callable[[Frame], str] | None = None  # the paper's numbers beside ours

    def part(self, runs: Frame, folder: Path) -> Part | None:
        rows = self.select(runs)
        if rows.empty:
            return None
        table, lines = self.draw(rows), curves(folder, rows if self.curves else rows[:0])
        if self.curves:
            lines.to_csv(folder / "tables" / f"{self.name}_curves.csv", index=False)
        return Part(
            table=table,
            body=f"{self.facts(rows)}\n\n{self._cells(table)}",
            pictures=self.figures(table, lines, folder / "figures"),
            claims={sentence: judge(table) for sentence, judge in self.claims.items()},
            limits=self.limits,
            warning=self.warning(table),
            paper=self.headline(table) if self.headline else "",
            printed=[self._printed(cell) for _, cell in table.groupby("cell", sort=False)],
        )

    def _cells(self, table: Frame) -> str:
        parts = []
        for _, rows in table.groupby("cell", sort=False):
            parts.append(f"### {self.heading(rows)}")
            parts += [f"{caption}:\n\n{markdown(text)}" for caption, text in self.tables(rows).items()]
            parts.append("\n".join(f"- {note}" for note in self.notes(rows)))
        return "\n\n".join(filter(None, [*parts, self.legend]))

    def _printed(self, rows: Frame) -> Printed:
        return Printed(self.heading(rows), self.terminal(rows), (*grouped_training(rows), *self.notes(rows)))
