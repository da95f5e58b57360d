"""The benchmarks: parameters, batch, epochs, and the share of a dense step that goes into communication, measured.

Source: SIDCo, Table 1; the recipes are those of the authors' released code. The share is (step - the same step without
exchange) / step of plain DDP, so what DDP hides behind its backward is not in it. Differs from the paper: its
definition of "communication overhead" is not known here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.artifacts import FP32, MARKS, PAPER, Cell, Part, Printed, Verdict, link, paper_numbers, where
from experiments.artifacts.scaling import timed_elsewhere
from experiments.results import Frame
from experiments.text import NOTHING, column, markdown, plus_minus, seeds, without_empty

LIMITS = """\
- Not the paper's cluster: the share is that of this machine, link and number of ranks. A faster processor makes it
  larger, a faster link smaller.
- Not the paper's sizes where a profile narrows a model or shortens a batch: parameters are those of the rows, the
  recipe's stand below.
- Not all communication: what DDP hides behind its backward costs nothing and counts nothing."""


@dataclass(frozen=True)
class Table1:
    """A line for each benchmark and link; of virtual workers, which have no times, where nothing else is there."""

    name: str = "table1"
    title: str = "The benchmarks"
    source: str = "SIDCo (arXiv 2101.10761): Table 1"
    experiment: str = "speedup"

    def part(self, runs: Frame, folder: Path) -> Part | None:
        table = draw(runs)
        if table.empty:
            return None
        text = shown(table)
        return Part(
            table=table,
            body=f"{markdown(text)}\n\n{_missing(table)}".strip(),
            pictures=[],
            claims={"Communication takes more than half of a dense step (ours)": _more_than_half(table)},
            limits=LIMITS,
            paper=recipes(),
            printed=[Printed("The benchmarks", text.drop(columns=["origin", "epochs run"], errors="ignore"))],
        )


def draw(runs: Frame) -> pd.DataFrame:
    """One row per benchmark, link and setting; ranks that share a node to see how they scale are in `scaling`."""
    runs = runs[~timed_elsewhere(runs)]
    runs = runs.assign(where=where(runs))
    timed = set(runs.loc[runs["network"] != "virtual", "name_benchmark"])
    kept = runs[(runs["network"] != "virtual") | ~runs["name_benchmark"].isin(timed)]
    rows = pd.DataFrame([_row(cell) for _, cell in kept.groupby("cell", sort=False)])
    if rows.empty:
        return rows
    return rows.sort_values(["benchmark", "rate_mbit_per_s", "where"]).reset_index(drop=True)


def _row(cell: Frame) -> dict[str, Any]:
    first, dense = cell.iloc[0], cell[cell["name_compressor"] == FP32]
    share = dense["exposed_comm_ms"] / dense["step_ms_median"]
    return {
        "benchmark": first["name_benchmark"], "model": first["name_model"], "dataset": first["name_dataset"],
        "where": first["where"], "link": link(first), "rate_mbit_per_s": first["rate_mbit_per_s"],
        "network": first["network"], "world_size": first["world_size"], "parameters": first["parameters"],
        "batch_per_rank": first["batch_per_rank"], "epochs_run": cell["epochs"].max(),
        "dense_step_ms": dense["step_ms_median"].mean(), "compute_only_ms": dense["compute_only_ms"].mean(),
        "communication_share": share.mean(), "communication_sd": share.std(),
        "seeds": len(dense) or cell["seed"].nunique(), "metric": first["metric"],
        "hardware": first["hardware"], "torch_version": first["torch_version"],
        "code_fingerprint": first["code_fingerprint"], "origin": first["origin"], "cell": first["cell"],
    }  # fmt: skip


def shown(table: Frame) -> pd.DataFrame:
    """The table as text."""
    percent = table.assign(share=100 * table["communication_share"], sd=100 * table["communication_sd"])
    return without_empty(pd.DataFrame({
        "benchmark": table["where"],
        "data": table["dataset"],
        "parameters": column(table, "parameters", "{:,}"),
        "ranks": column(table, "world_size", "{:g}"),
        "batch a rank": column(table, "batch_per_rank", "{:g}"),
        "epochs run": column(table, "epochs_run", "{:.3g}"),
        "dense step, ms": column(table, "dense_step_ms", "{:.1f}"),
        "compute alone, ms": column(table, "compute_only_ms", "{:.1f}"),
        "communication, % of a dense step": plus_minus(percent, "share", "sd", "{:.0f}", "{:.0f}"),
        "seeds": seeds(table),
        "origin": table["origin"],
    }))  # fmt: skip


def _missing(table: Frame) -> str:
    blank = table.loc[table["communication_share"].isna(), "where"]
    why = "no share: dense fp32 (none) with steps that compute alone was not run with the same training"
    return f"- {', '.join(blank)}: {why}" if len(blank) else ""


def _more_than_half(table: Frame) -> Verdict:
    return Verdict([
        Cell(row.where, row.communication_share > 0.5, f"{100 * row.communication_share:.0f} %")
        for row in table.dropna(subset="communication_share").itertuples()
    ])  # fmt: skip


def recipes(path: Path = PAPER / "table1.csv") -> str:
    """The paper's benchmarks, one a line; what nobody has transcribed says so."""
    numbers = paper_numbers(path)
    said = numbers["value"].replace("", "not transcribed")
    wide = numbers.assign(value=said).pivot(index="benchmark", columns="quantity", values="value")
    wide = wide.reindex(index=numbers["benchmark"].unique(), columns=numbers["quantity"].unique())
    marks = numbers[numbers["mark"] != ""].groupby("quantity", sort=False)["mark"].first()
    told = ", ".join(f"{quantity}: {MARKS[str(mark)]}" for quantity, mark in marks.items())
    return f"{markdown(wide.fillna(NOTHING).reset_index())}\n\nOrigin: paper. {told}."


TABLE1 = Table1()
