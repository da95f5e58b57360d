"""The break-even rates as text, and what has to be said beside them."""

from math import isnan, nan
from typing import Any

import pandas as pd

from experiments.artifacts import BF16, FP32, link
from experiments.artifacts.break_even_model import BreakEven
from experiments.results import Frame
from experiments.text import NOTHING, bullets, column, several

LIMITS = """\
- Not a measurement: the rates are modelled from parts that were measured; the measured verdict stands beside them.
- Nothing overlaps in the model: neither dense's exchange, which DDP hides in part behind its backward, nor that of
  smaller groups. What dense hides lowers the true break-even rate.
- No latency, no cost for each message, no packet lost: bits over the rate. Many ranks or small messages pay less.
- Bits are those that left one rank, at this number of ranks: dense's stay about the same with more ranks, those of an
  all-gather grow with each.
- Compressing takes as long at any rate: a mean over the links that were run. Dense fp32 has no such part: what its
  all-reduce costs the processor is inside its exchange.
- Speed alone: whether training ends as well stands in the tables of convergence and loss."""


def facts(rows: Frame) -> str:
    """On which links the parts were measured."""
    return bullets({
        "links that were run": ", ".join(sorted({link(row) for row in rows.itertuples()})),
        "ranks": several(rows, "world_size"),
        "rule": "pays while rate < (dense bits - sent bits) / (compress + mean - dense's own); nothing overlaps, no "
        "latency",
    })  # fmt: skip


def heading(rows: Frame) -> str:
    """Of a cell: what was trained."""
    first = rows.iloc[0]
    million, ranks = first["parameters"] / 1e6, first["world_size"]
    size = f"{million:.2f} M parameters, {first['batch_per_rank']} a rank, {ranks} ranks"
    return f"{first['where']} on {first['dataset']} ({size})"


def shown(rows: Frame) -> pd.DataFrame:
    """The rows of a cell as text, the links side by side."""
    text = []
    for _, same in rows.groupby(["label", "ratio"], sort=False, dropna=False):
        first = same.iloc[:1]
        row = {
            "compressor": first["label"].iloc[0],
            "ratio": column(first, "ratio", "{:g}").iloc[0],
            "loss (not trained)": column(first, "loss_last", "{:.3f}").iloc[0],
            "sent KB": column(first, "sent_kb", "{:.4g}").iloc[0],
            "compress + mean, ms": column(first, "overhead_ms", "{:.2f}").iloc[0],
            "pays over fp32": _of(first.iloc[0], FP32, "fp32").text,
            "pays over bf16": _of(first.iloc[0], BF16, "bf16").text,
            "origin": "modelled",
        }
        for on in same.itertuples():
            itself = on.compressor == FP32  # which does not pay over itself
            row[f"measured, {on.link}"] = NOTHING if itself else times(on.measured_speedup)
            if not isnan(on.rate_mbit_per_s) and not itself:
                row[f"modelled, {on.link}"] = times(on.modelled_speedup)
        text.append(row)
    return pd.DataFrame(text).fillna(NOTHING)


def _of(row: Any, baseline: str, name: str) -> BreakEven:
    """A dense baseline does not pay against itself."""
    if row["compressor"] in (FP32, baseline):
        return BreakEven("", nan)
    return BreakEven(row[f"break_even_over_{name}"], row[f"rate_over_{name}_mbit_per_s"])


def times(value: float) -> str:
    """A speed-up and its verdict."""
    if isnan(value):
        return NOTHING
    return f"{value:.2f}x {'pays' if value > 1 else 'does not'}"
