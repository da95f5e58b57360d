"""One file per table or figure of the paper: a function of the table of runs, with the paper's claims attached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pandas as pd

from experiments.record import ROOT
from experiments.results import Frame, places
from experiments.text import NOTHING, markdown

FP32, BF16 = "none", "bf16"  # the dense baselines, by the names of their yaml files
ROW = ["cell", "label", "ratio", "compression"]  # jobs that agree in these differ in seed only
NEVER = "✗"  # a target that was not reached
PAPER = ROOT / "results" / "paper"
HEADLINE = PAPER / "headline.csv"
MARKS = {"P": "read in the paper", "C": "authors' released code", "D": "derived from released code"}


class Cell(NamedTuple):
    """A claim tried in one place of the table."""

    where: str  # benchmark, link, ratio
    holds: bool
    figure: str


class Verdict(NamedTuple):
    """What the table says of a claim."""

    cells: Sequence[Cell]

    @property
    def state(self) -> str:
        """A claim holds if it does wherever it could be tried."""
        if not self.cells:
            return "no data"
        return "holds" if all(cell.holds for cell in self.cells) else "fails"

    @property
    def tally(self) -> str:
        return f"({sum(cell.holds for cell in self.cells)} of {len(self.cells)})" if self.cells else ""


class Printed(NamedTuple):
    """A table for a terminal of 120 columns."""

    heading: str
    text: pd.DataFrame
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Part:
    """What an artifact has to say of a folder of runs."""

    table: pd.DataFrame  # tidy: tables/NAME.csv
    body: str  # markdown between the title and the pictures: facts, tables, notes
    pictures: Sequence[Path]  # PNG files in the folder's figures/
    claims: Mapping[str, Verdict]  # by the sentence
    limits: str  # what these numbers are not
    warning: str = ""  # shouted above the body
    paper: str = ""  # the paper's own numbers, which are in no table of ours
    printed: Sequence[Printed] = ()  # on the terminal


class Artifact(Protocol):
    """A table or figure of the paper, regenerated from a folder of runs."""

    @property
    def name(self) -> str:
        """Of its files."""
        ...

    @property
    def title(self) -> str:
        """Of its part of the report."""
        ...

    @property
    def source(self) -> str:
        """Paper, figure or table."""
        ...

    @property
    def experiment(self) -> str:
        """The grid in conf/experiment that fills it."""
        ...

    def part(self, runs: Frame, folder: Path) -> Part | None:
        """Of the rows of `results.read` and the files of their jobs below `folder`; None: nothing of its own is there.

        Its pictures, and files of its own below tables/, are written in here.
        """
        ...


def paper_numbers(path: Path = HEADLINE) -> pd.DataFrame:
    """Numbers transcribed from a paper, as text: what they are of, then value, unit, mark, page, source.

    An empty value is one that nobody with the paper at hand has entered yet. Raises ValueError where a number has no
    provenance that may be printed: `MARKS` are those that may.
    """
    numbers = pd.read_csv(path, dtype=str, keep_default_na=False)
    _check(path.name, numbers)
    return numbers


def _check(name: str, numbers: Frame) -> None:
    """Of the file of that name: raises what `paper_numbers` promises."""
    missing = [column for column in ("value", "unit", "mark", "page", "source") if column not in numbers]
    if missing:
        raise ValueError(f"{name}: expected a column {missing[0]}, got {', '.join(numbers)}")
    for line, number in enumerate(numbers.itertuples(), start=2):
        if number.mark not in ("", *MARKS):
            raise ValueError(
                f"{name}, line {line}: expected a number read in the paper (mark P) or in released code (C, D), "
                f"got one marked {number.mark}{', from memory' if number.mark == 'M' else ''}: "
                "look it up, give the page and mark it P, or empty its value and its mark"
            )
        whole, empty = number.value and number.mark and number.source, not (number.value or number.mark)
        if not (whole or empty):
            raise ValueError(
                f"{name}, line {line}: expected value, mark and source together, or all three empty, "
                f"got {number.value!r}, {number.mark!r}, {number.source!r}"
            )


def paper_said(*names: str, quantity: str | None = None, folder: Path = PAPER) -> str:
    """What the files of those names in results/paper have transcribed, as markdown, and how much they have not."""
    parts = [part for name in names for part in _said(name, paper_numbers(folder / f"{name}.csv"), quantity)]
    return "\n\n".join(parts)


def _said(name: str, numbers: Frame, quantity: str | None) -> list[str]:
    chosen = numbers if quantity is None else numbers[numbers["quantity"] == quantity]
    known, parts = chosen[chosen["value"] != ""], []
    if len(known):
        page = known["page"].replace("", "page not transcribed")
        said = known.assign(origin="paper", page=page, mark=known["mark"].map(MARKS))
        parts.append(markdown(said.replace("", NOTHING)))
    if len(known) < len(chosen):
        blank = len(chosen) - len(known)
        parts.append(f"{name}.csv: {blank} of {len(chosen)} numbers not transcribed.")
    return parts


def link(row: Any) -> str:
    """The network of a row, for people; what was not shaped shouts."""
    if row.network == "shaped":
        return f"{row.rate_mbit_per_s:g} Mb/s link"
    named = {"cluster": "cluster", "virtual": "virtual workers"}
    return named.get(row.network, "LOOPBACK, not shaped")


def where(runs: Frame) -> pd.Series:
    """The name of each row's cell: benchmark, link and, where several cells share these, what tells them apart."""
    names = [f"{row.name_benchmark}, {link(row)}" for row in runs.itertuples()]
    return places(runs, pd.Series(names, index=runs.index, dtype=object))


def place(row: Any) -> str:
    """Where in the table a row of a compressor with a ratio stands."""
    return f"{row.where}, {row.label} {row.ratio:g}"


def in_order(table: Frame) -> pd.DataFrame:
    """Cell by cell, dense first, then from the largest ratio down."""
    rank = table["compressor"].map(lambda name: [FP32, BF16, name].index(name))
    order = ["benchmark", "rate_mbit_per_s", "where", "cell", "_dense", "ratio", "label"]
    down = [name in ("rate_mbit_per_s", "ratio") for name in order]
    ordered = table.assign(_dense=rank).sort_values(order, ascending=[not is_down for is_down in down])
    return ordered.drop(columns="_dense").reset_index(drop=True)
