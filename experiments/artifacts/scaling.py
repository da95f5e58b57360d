"""Many ranks in one node: throughput of 1, 2, 4 ranks, and how much of W times one rank's is left.

Source: SIDCo, Fig 8 (one node with 8 GPUs), and GaussianK's scaling efficiency T_W / (W T_1), weak scaling: each rank
has its own batch. T_1 is one rank without compression, which has nobody to send to. Differs from both: CPUs, and
ranks that share cores where a machine has fewer of them than ranks; the table says how many a rank has.
"""

from math import nan
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from experiments.artifacts import FP32, ROW, Cell, Verdict, paper_said
from experiments.artifacts.cells import CellTable
from experiments.artifacts.pictures import GREY, panels, styles
from experiments.artifacts.remarks import reasons, shared_training
from experiments.build import digest
from experiments.recipe import later
from experiments.results import Frame, apart_from, geometric_mean, labels, places
from experiments.text import bullets, column, seeds, several, without_empty

FIRST = [
    "name_benchmark", "name_dataset", "name_compressor", "where", "network", "unit", "metric", "origin", "momentum",
    "weight_decay", "learning_rate", "memory", "parameters", "world_size", "batch_per_rank", "cores",
    "threads_per_rank", "hardware", "torch_version", "code_fingerprint",
]  # fmt: skip
LIMITS = """\
- Not a network: ranks meet over 127.0.0.1, at whatever rate that gives, or over what joins the GPUs of a node.
- Not a scaling of the method where ranks share cores: with less than one core for each thread of a rank, computing
  alone takes longer with each rank, whatever is sent. "If sending were free" is the efficiency that would be left if it
  were.
- Not trained models: loss is that after the few steps of the sweep.
- Not certainty: throughput is from medians of a step's time; of several seeds, a geometric mean."""


def on_one_node(runs: Frame) -> pd.Series:
    """Which rows are part of a scaling on one node: over loopback, with others of another number of ranks."""
    if runs.empty:
        return pd.Series(dtype=bool)
    sizes = runs["world_size"].groupby(apart_from(runs, {"world_size"})).transform("nunique")
    return (runs["network"] == "loopback") & (sizes > 1)


def timed_elsewhere(runs: Frame) -> pd.Series:
    """Which rows no speed table shows: those of a scaling on one node, and of the loss curves' grid."""
    grid = runs.get("name_experiment", pd.Series(None, index=runs.index, dtype=object))
    return on_one_node(runs) | (grid == "loss_curves")


def draw(runs: Frame) -> pd.DataFrame:
    """One row per benchmark, compressor, ratio and number of ranks."""
    setting = apart_from(runs, {"world_size"})
    runs = runs.assign(setting=setting, cell=setting.map(digest), label=labels(runs))
    runs = runs.assign(where=places(runs, runs["name_benchmark"] + ", one node"))
    single = runs[(runs["world_size"] == 1) & (runs["name_compressor"] == FP32)]
    alone = single.groupby("cell")["units_per_second"].agg(geometric_mean)
    table = pd.DataFrame([_row(jobs, alone) for _, jobs in runs.groupby([*ROW, "world_size"], dropna=False)])
    dense_first = table.assign(_compressed=table["compressor"] != FP32)
    order = ["where", "cell", "_compressed", "label", "ratio", "world_size"]
    return dense_first.sort_values(order).drop(columns="_compressed").reset_index(drop=True)


def _row(jobs: Frame, alone: Frame) -> dict[str, Any]:
    """One row of the table, of the jobs that differ in their seed; `alone`: T_1 of each cell."""
    first, ranks = jobs.iloc[0], jobs.iloc[0]["world_size"]
    rate, one = geometric_mean(jobs["units_per_second"]), alone.get(first["cell"], nan)
    return {
        **{name.removeprefix("name_"): first[name] for name in (*FIRST, *ROW[:3])}, **later(first),
        "rate_mbit_per_s": nan,
        "units_per_second": rate, "speedup": rate / one, "efficiency": rate / (ranks * one),
        "step_ms": jobs["step_ms_median"].mean(), "compute_only_ms": jobs["compute_only_ms"].mean(),
        "exposed_comm_ms": jobs["exposed_comm_ms"].mean(), "loss_last": jobs["loss_last"].mean(),
        "cores_for_a_thread": min(1.0, first["cores"] / (ranks * first["threads_per_rank"])), "seeds": len(jobs),
        "note": "no efficiency: dense fp32 (none) of one rank did not finish in this sweep" if pd.isna(one) else "",
    }  # fmt: skip


def facts(rows: Frame) -> str:
    """How the ranks share the node."""
    return bullets({
        "cores of the node": several(rows, "cores"),
        "ranks": several(rows, "world_size"),
        "threads of a rank": several(rows, "threads_per_rank"),
        "steps": f"{several(rows, 'steps_timed')} timed after {several(rows, 'excluded_steps')} excluded",
        "seeds": several(rows, "seed"),
    })  # fmt: skip


def heading(rows: Frame) -> str:
    """Of a cell: what was trained."""
    first = rows.iloc[0]
    size = f"{first['parameters'] / 1e6:.2f} M parameters, {first['batch_per_rank']} a rank, {first['cores']} cores"
    return f"{first['where']}, {first['dataset']} ({size})"


def shown(rows: Frame) -> pd.DataFrame:
    """The rows of a cell as text."""
    first = rows.iloc[0]
    return without_empty(pd.DataFrame({
        "compressor": rows["label"],
        "ratio": column(rows, "ratio", "{:g}"),
        "ranks": column(rows, "world_size", "{:g}"),
        f"{first['unit']}/s": column(rows, "units_per_second", "{:.4g}"),
        "times one dense rank": column(rows, "speedup", "{:.2f}x"),
        "T_W / (W T_1)": column(rows, "efficiency", "{:.2f}"),
        "cores for a thread": column(rows, "cores_for_a_thread", "{:.2f}"),
        "step, ms": column(rows, "step_ms", "{:.1f}"),
        "compute alone, ms": column(rows, "compute_only_ms", "{:.1f}"),
        "loss (not trained)": column(rows, "loss_last", "{:.3f}"),
        "if sending were free": column(_free(rows), "free", "{:.2f}"),
        "seeds": seeds(rows),
        "origin": rows["origin"],
    }))  # fmt: skip


def _free(rows: Frame) -> pd.DataFrame:
    """The efficiency of steps that compute alone: that of one dense rank over that of W."""
    one = rows.loc[(rows["compressor"] == FP32) & (rows["world_size"] == 1), "step_ms"]
    return rows.assign(free=(one.iloc[0] if len(one) else nan) / rows["compute_only_ms"])


def warning(table: Frame) -> str:
    """Said where ranks share cores."""
    shared = table[table["cores_for_a_thread"] < 1]
    if shared.empty:
        return ""
    sizes = ", ".join(f"{size:g}" for size in sorted(shared["world_size"].unique()))
    cores = several(table, "cores")
    return f"With {sizes} ranks on {cores} cores RANKS SHARE CORES: their efficiency is not a network's."


def figures(table: Frame, _: Frame, folder: Path) -> list[Path]:
    """Throughput against the number of ranks, beside W times one rank."""
    path = folder / "scaling.png"
    names = [f"{row.label}{'' if pd.isna(row.ratio) else f' {row.ratio:g}'}" for row in table.itertuples()]
    table = table.assign(line=names)
    looks = styles(table["line"].unique())
    panels(table, path, "Throughput of one node (dashed: W times one dense rank)", 3.2, [
        lambda ax, rows: _panel(ax, rows, looks)
    ])  # fmt: skip
    return [path]


def _panel(ax: Axes, rows: Frame, looks: dict[str, dict[str, Any]]) -> None:
    for name, same in rows.groupby("line", sort=False):
        ax.plot(same["world_size"], same["units_per_second"], label=name, markersize=5, **looks[str(name)])
    one = (rows["units_per_second"] / rows["speedup"]).dropna()
    sizes = sorted(rows["world_size"].unique())
    if len(one):
        ax.plot(sizes, [size * one.iloc[0] for size in sizes], color=GREY, linestyle="--", linewidth=1)
    ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
    ax.set_ylim(bottom=0)
    ax.set(xlabel="ranks", ylabel=f"{rows.iloc[0]['unit']}/s")


def _scales_better(table: Frame) -> Verdict:
    """SIDCo's throughput over dense's, with the same number of ranks, of which there is more than one."""
    cells = []
    dense = table[table["compressor"] == FP32].groupby(["cell", "world_size"])["efficiency"].max()
    for row in table[table["compressor"].str.startswith("sidco") & (table["world_size"] > 1)].itertuples():
        theirs = dense.get((row.cell, row.world_size), nan)
        if not pd.isna(theirs) and not pd.isna(row.efficiency):
            told = f"{row.efficiency:.2f} against {theirs:.2f}"
            where = f"{row.where}, {row.world_size} ranks, {row.label} {row.ratio:g}"
            cells.append(Cell(where, row.efficiency > theirs, told))
    return Verdict(cells)


SCALING = CellTable(
    name="scaling",
    title="Scaling on one node",
    source="SIDCo (arXiv 2101.10761): Fig 8; GaussianK (arXiv 1911.08772): scaling efficiency",
    experiment="scaling",
    select=lambda runs: runs[on_one_node(runs)],
    draw=draw,
    facts=facts,
    heading=heading,
    tables=lambda rows: {"Throughput of all ranks together": shown(rows)},
    terminal=lambda rows: shown(rows).drop(columns=["origin", "compute alone, ms"], errors="ignore"),
    notes=lambda rows: [*shared_training(rows), *reasons(rows)],
    figures=figures,
    warning=warning,
    claims={"SIDCo scales better than dense on one node": _scales_better},
    headline=lambda table: paper_said("fig8_one_node", "gaussiank"),
    limits=LIMITS,
)
