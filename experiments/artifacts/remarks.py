"""What is said beside the rows of a cell: how they train, whether the target was reached, why a number is blank."""

from typing import Any

import pandas as pd

from experiments.artifacts import BF16, FP32, NEVER
from experiments.recipe import PARTS, said
from experiments.results import Frame
from experiments.text import NOTHING, column

NOT_BLANK = ("", "1 seed")  # notes with a column of their own


def shared_training(rows: Frame) -> list[str]:
    """What all rows of a cell agree in of how they train."""
    parts = [said(told.iloc[0], part) for part, told in _told(rows) if told[part].nunique() == 1]
    return [f"all rows: {'; '.join(parts)}"] if parts else []


def own_training(rows: Frame) -> list[str]:
    """What each row of a cell has of its own: stated in the row."""
    own = {part: told.index for part, told in _told(rows) if told[part].nunique() > 1}
    return [
        "; ".join(said(row, part) for part, index in own.items() if place in index) or NOTHING
        for place, row in rows.iterrows()
    ]


def grouped_training(rows: Frame) -> list[str]:
    """The same in a line for all rows that agree, where there is no room for a column."""
    return _grouped(rows, [own if own != NOTHING else "" for own in own_training(rows)])


def reasons(rows: Frame) -> list[str]:
    """Why numbers are blank."""
    notes = [[part for part in note.split("; ") if part not in NOT_BLANK] for note in rows["note"]]
    return _grouped(rows, ["; ".join(parts) for parts in notes])


def never(row: Any) -> str:
    """The mark of a row whose target was not reached by every seed; a dash without a target; else empty."""
    if pd.isna(row.target):
        return NOTHING
    if row.reached_target == row.seeds:
        return ""
    return NEVER if row.seeds == 1 else f"{NEVER} {row.reached_target:g} of {row.seeds} seeds"


def _grouped(rows: Frame, texts: list[str]) -> list[str]:
    names = rows["label"] + column(rows, "ratio", " {:g}").replace(NOTHING, "")
    groups: dict[str, list[str]] = {}
    for name, text in zip(names, texts, strict=True):
        groups.setdefault(text, []).append(name)
    return [f"{', '.join(same)}: {text}" for text, same in groups.items() if text]


def _told(rows: Frame) -> list[tuple[str, Frame]]:
    """Each part of the recipe with the rows that have a choice in it: the dense baselines keep nothing back."""
    compressed = rows[~rows["compressor"].isin((FP32, BF16))]
    told = [part for part in PARTS if part in rows]
    return [(part, compressed if part == "memory" and len(compressed) else rows) for part in told]
