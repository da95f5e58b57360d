"""The figures of the speed-up table: speed-up against ratio, and where the time of a step goes."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from experiments.artifacts import BF16, FP32
from experiments.artifacts.pictures import GREY, panels, styles
from experiments.results import Frame

DENSE = {FP32: "dense fp32", BF16: "dense bf16"}
SPLIT = ["forward_backward_ms", "compress_ms", "exchange_ms", "mean_ms", "optimizer_ms"]
PARTS = {
    "forward_backward_ms": ("forward + backward", "#BBBBBB", ""),
    "compress_ms": ("compress", "#D55E00", ""),
    "exchange_ms": ("exchange", "#0072B2", ""),
    "exposed_ms": ("plain DDP: exchange not hidden", "#56B4E9", "////"),
    "mean_ms": ("mean", "#F0E442", ""),
    "optimizer_ms": ("optimizer", "#666666", ""),
}


def figures(table: Frame, _: Frame, folder: Path) -> list[Path]:
    """Speed-up against ratio, and where the time of a step goes: a panel for each benchmark and link."""
    looks = styles(table.loc[table["ratio"].notna(), "label"].unique())
    speedup, step_time = folder / "speedup.png", folder / "step_time.png"
    beside_dense = table[table.groupby("cell")["speedup_over_fp32"].transform("count") > 0]
    panels(
        beside_dense if len(beside_dense) else table,
        speedup,
        "Throughput over that of dense fp32 (bars: 20 % and 80 % of steps)",
        3.2,
        [lambda ax, rows: _speedup_panel(ax, rows, looks)],
    )
    height = 0.9 + 0.24 * table.groupby("cell").size().max()
    panels(table, step_time, "Where the time of a step goes", height, [_step_panel])
    return [speedup, step_time]


def _speedup_panel(ax: Axes, rows: Frame, looks: dict[str, dict[str, Any]]) -> None:
    for name, same in rows[rows["ratio"].notna()].groupby("label", sort=False):
        y = same["speedup_over_fp32"]
        error = [
            (y - same["speedup_p20"]).clip(lower=0),
            (same["speedup_p80"] - y).clip(lower=0),
        ]  # 0 may round to -1e-16
        ax.errorbar(
            same["ratio"], y, yerr=error, label=name, capsize=2.5, elinewidth=0.9, markersize=5, **looks[str(name)]
        )
    for name, style in ((FP32, "-"), (BF16, "--")):
        dense = rows.loc[rows["compressor"] == name, "speedup_over_fp32"].dropna()
        if len(dense):
            ax.axhline(dense.max(), color=GREY, linestyle=style, linewidth=1, zorder=1, label=DENSE[name])
    ax.set_xscale("log")
    ratios = sorted(rows["ratio"].dropna().unique())
    ax.set_xlim(1.3 * max(ratios, default=1), min(ratios, default=0.1) / 1.3)
    ax.set_xticks(ratios, [f"{ratio:g}" for ratio in ratios])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    ax.set_xlabel("ratio (to the right: less is sent)")
    ax.set_ylabel("times as fast")


def _step_panel(ax: Axes, rows: Frame) -> None:
    """Medians, one bar a row; plain DDP's exchange is what its step takes beyond one without exchange."""
    rows = rows.iloc[::-1].reset_index(drop=True)  # barh starts at the bottom
    plain = rows["exchange_ms"].isna()
    widths = rows[SPLIT].assign(exposed_ms=rows["exposed_comm_ms"].where(plain))
    alone = rows["compute_only_ms"] - rows["optimizer_ms"]
    widths["forward_backward_ms"] = widths["forward_backward_ms"].where(~plain, alone)
    left = pd.Series(0.0, index=rows.index)
    for part, (label, colour, hatch) in PARTS.items():
        width = widths[part].fillna(0.0)
        ax.barh(rows.index, width, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4, label=label)
        left += width
    ax.plot(rows["step_ms"], rows.index, "|", color="black", markersize=11, label="whole step")
    ratios = rows["ratio"].map(lambda ratio: "" if math.isnan(ratio) else f" {ratio:g}")
    ax.set_yticks(rows.index, rows["label"] + ratios, fontsize=8.5)
    ax.set_xlabel("ms a step, median")
