"""Numbers as text: the cells, columns and tables of a report."""

from typing import Any

import pandas as pd

from experiments.results import Frame

NOTHING = "–"  # no such number


def column(rows: Frame, name: str, form: str) -> Frame:
    """The column as text, a dash where there is no number."""
    return rows[name].map(lambda value: NOTHING if pd.isna(value) else form.format(value))


def plus_minus(rows: Frame, name: str, spread: str, form: str, spread_form: str = "{:.2f}") -> Frame:
    """The column with its spread, where it has one."""
    around = rows[spread].map(lambda value: "" if pd.isna(value) else f" ±{spread_form.format(value)}")
    return column(rows, name, form) + around


def seeds(rows: Frame) -> Frame:
    """How many; one is said to be one."""
    return rows["seeds"].map(lambda n: "1 seed" if n == 1 else f"{n} seeds")


def several(rows: Frame, name: str) -> str:
    """All values of a column, in order."""
    values = sorted(set(rows[name].dropna()))
    return ", ".join(f"{value:g}" if isinstance(value, int | float) else str(value) for value in values)


def markdown(text: Frame) -> str:
    """A table whose cells are text already."""
    lines = [list(text), ["---"] * len(text.columns), *text.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def bullets(facts: dict[str, Any]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def without_empty(text: Frame) -> pd.DataFrame:
    """Without the columns in which no row has an entry."""
    return text.loc[:, (text != NOTHING).any()]
