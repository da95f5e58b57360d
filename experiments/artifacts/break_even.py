"""Below which link rate each compressor beats dense training: modelled from measured parts, beside what was measured.

The model, and what it leaves out, are in `break_even_model` and `break_even_text`.

Source: ours. pytorch issues 74148 and 74907 and epfml/powersgd 17 and 18 ask for it: compression that does not pay is
the rule on a fast link, and nobody says where it begins to.
"""

from collections.abc import Iterable
from math import inf, isnan
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from experiments.artifacts import BF16, FP32, ROW, Cell, Verdict, in_order, link
from experiments.artifacts import break_even_text as text
from experiments.artifacts.break_even_model import BreakEven, break_even, modelled_speedup
from experiments.artifacts.cells import CellTable
from experiments.artifacts.pictures import GREY, panels
from experiments.artifacts.scaling import timed_elsewhere
from experiments.build import digest
from experiments.results import Frame, apart_from, geometric_mean, labels, places

OF_LINK = {"network", "rate_mbit_per_s", "burst_kib"}  # settings in which the rows of one cell may differ
FIRST = [
    "name_benchmark", "name_dataset", "name_compressor", "where", "network", "parameters", "world_size",
    "batch_per_rank", "momentum", "weight_decay", "learning_rate", "memory", "hardware", "torch_version",
    "code_fingerprint",
]  # fmt: skip


def draw(runs: Frame) -> pd.DataFrame:
    """One row per benchmark, compressor, ratio and link that was run; what is modelled is the same on each link."""
    setting = apart_from(runs, OF_LINK)
    runs = runs.assign(link_cell=runs["cell"], setting=setting, cell=setting.map(digest), label=labels(runs))
    runs = runs.assign(where=places(runs, runs["name_benchmark"]))
    return in_order(
        pd.DataFrame([
            row
            for _, cell in runs.groupby("cell", sort=False)
            for _, jobs in cell.groupby(ROW, dropna=False)
            for row in _rows(jobs, cell)
        ])
    )  # fmt: skip


def _rows(jobs: Frame, cell: Frame) -> list[dict[str, Any]]:
    """Of the jobs that differ in link and seed; `cell`: all they may be compared with."""
    first, dense = jobs.iloc[0], cell[cell["name_compressor"] == FP32]
    compute = cell["compute_only_ms"].mean()
    sent, overhead = _parts(jobs)
    dense_bytes, _ = _parts(dense)  # plain DDP has no compress and no mean of its own
    bf16_bytes, bf16_overhead = _parts(cell[cell["name_compressor"] == BF16])
    over_fp32 = break_even(dense_bytes - sent, overhead)
    over_bf16 = break_even(bf16_bytes - sent, overhead - bf16_overhead)
    modelled = {
        **{name.removeprefix("name_"): first[name] for name in (*FIRST, *ROW[:3])},
        "sent_kb": sent / 1000, "overhead_ms": overhead, "compute_only_ms": compute,
        "break_even_over_fp32": over_fp32.side, "rate_over_fp32_mbit_per_s": over_fp32.rate,
        "break_even_over_bf16": over_bf16.side, "rate_over_bf16_mbit_per_s": over_bf16.rate,
        "loss_last": jobs["loss_last"].mean(),
        "origin": "modelled", "note": "",
    }  # fmt: skip
    rows = []
    for (_, rate), same in jobs.groupby(["network", "rate_mbit_per_s"], dropna=False):
        speedup = modelled_speedup(compute, dense_bytes, sent, overhead, rate)
        on_link = {"link": link(same.iloc[0]), "rate_mbit_per_s": rate, "seeds": len(same)}
        rows.append({
            **modelled, **on_link, "modelled_speedup": speedup, "measured_speedup": _measured(same, dense),
            "jobs": " ".join(same["job"]),
        })  # fmt: skip
    return rows


def _parts(jobs: Frame) -> tuple[float, float]:
    """Bytes that a step sends, and milliseconds it takes to compress and to take the mean."""
    return jobs["sent_bytes"].mean(), (jobs["compress_ms_median"] + jobs["mean_ms_median"]).mean()


def _measured(jobs: Frame, dense: Frame) -> float:
    """Throughput over that of dense with the same link and seed; NaN where none is."""
    theirs = dense.groupby(["link_cell", "seed"])["units_per_second"].max()
    keys = pd.MultiIndex.from_frame(jobs[["link_cell", "seed"]])
    return geometric_mean((jobs["units_per_second"] / theirs.reindex(keys).to_numpy()).dropna())


def figures(table: Frame, _: Frame, folder: Path) -> list[Path]:
    """A bar for each compressor and ratio, as far as the link up to which it pays; the links run as lines."""
    path = folder / "break_even.png"
    known = table["ratio"].notna() & (table["break_even_over_fp32"] != "")  # where dense was run
    rows = table[known].drop_duplicates(["cell", "label", "ratio"])
    if rows.empty:
        return []
    height = 0.9 + 0.24 * rows.groupby("cell").size().max()
    title = "Up to which link rate compression beats dense fp32 (modelled)"
    panels(rows, path, title, height, [lambda ax, cell: _panel(ax, cell, table)])
    return [path]


def _panel(ax: Axes, rows: Frame, table: Frame) -> None:
    rows = rows.iloc[::-1].reset_index(drop=True)  # barh starts at the bottom
    links = table.loc[table["cell"] == rows.iloc[0]["cell"], "rate_mbit_per_s"].dropna().unique()
    finite = [rate for rate in (*rows["rate_over_fp32_mbit_per_s"], *links) if 0 < rate < inf] or [100.0]
    left, right = min(finite) / 5, 5 * max(finite)
    for side, colour, label in (("below", "#0072B2", "pays below"), ("any", "#009E73", "pays on any link")):
        chosen = rows[rows["break_even_over_fp32"] == side]
        if chosen.empty:
            continue
        widths = chosen["rate_over_fp32_mbit_per_s"].clip(upper=right) - left
        ax.barh(chosen.index, widths, left=left, color=colour, label=label)
    for row in rows[rows["break_even_over_fp32"].isin(("never", "above"))].itertuples():
        said = BreakEven(row.break_even_over_fp32, row.rate_over_fp32_mbit_per_s).text
        ax.text(left * 1.1, row.Index, said, va="center", fontsize=8.5, color="#B00000")
    for rate in links:
        ax.axvline(rate, color=GREY, linestyle="--", linewidth=1, label="a link that was run")
    ax.set_xscale("log")
    ax.set_xlim(left, right)
    ax.set_yticks(rows.index, [f"{row.label} {row.ratio:g}" for row in rows.itertuples()], fontsize=8.5)
    ax.set_xlabel("Mb/s")


def _over_fp32(row: Any) -> BreakEven:
    return BreakEven(row.break_even_over_fp32, row.rate_over_fp32_mbit_per_s)


def _agrees(table: Frame) -> Verdict:
    """On each link that was run and whose rate is known."""
    cells = []
    for row in table[table["ratio"].notna()].itertuples():
        found = _over_fp32(row)
        if found.side and not isnan(row.rate_mbit_per_s) and not isnan(row.measured_speedup):
            right = found.pays(row.rate_mbit_per_s) == (row.measured_speedup > 1)
            figure = f"pays {found.text}; measured {text.times(row.measured_speedup)}"
            cells.append(Cell(f"{row.where}, {row.link}, {row.label} {row.ratio:g}", right, figure))
    return Verdict(cells)


def _faster_link_than_topk(table: Frame) -> Verdict:
    """By the rate below which each pays; where one pays only above a rate, the two cannot be set side by side."""
    cells = []
    once = table.drop_duplicates(["cell", "label", "ratio"])
    for ours, theirs in _pairs(once):
        mine, other = _over_fp32(ours), _over_fp32(theirs)
        if {mine.side, other.side} <= {"below", "any", "never"}:
            told = f"{mine.text} against {other.text}"
            cells.append(Cell(f"{ours.where}, {ours.label} {ours.ratio:g}", mine.rate > other.rate, told))
    return Verdict(cells)


def _pairs(table: Frame) -> Iterable[tuple[Any, Any]]:
    """Each row of SIDCo with that of Topk in the same cell, at the same ratio."""
    for ours in table[table["compressor"].str.startswith("sidco")].itertuples():
        same = (table["cell"] == ours.cell) & (table["ratio"] == ours.ratio) & (table["compressor"] == "topk")
        for theirs in table[same].itertuples():
            yield ours, theirs


BREAK_EVEN = CellTable(
    name="break_even",
    title="Does it pay? Break-even link rates, modelled",
    source="ours, after SIDCo's claim that estimating a threshold costs less than it saves",
    experiment="speedup",
    select=lambda runs: runs[(runs["network"] != "virtual") & (runs["world_size"] > 1) & ~timed_elsewhere(runs)],
    draw=draw,
    facts=text.facts,
    heading=text.heading,
    tables=lambda rows: {"Links on which it pays (modelled), and what was measured": text.shown(rows)},
    terminal=lambda rows: text.shown(rows).drop(columns="origin"),
    notes=lambda rows: [],
    figures=figures,
    claims={
        "SIDCo pays up to a faster link than Topk does": _faster_link_than_topk,
        "The model's verdict is the measured one, on the links that were run (ours)": _agrees,
    },
    limits=text.LIMITS,
)
