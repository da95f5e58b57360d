"""The speed-up table: throughput of each compressor against dense training on the same link.

Source: SIDCo, the speed-up panels of the figures on LSTM-PTB, ResNet-20, VGG16 and the ImageNet models. Differs from
the paper: theirs is time to a quality; here it is throughput over few steps, with the quality beside it.
"""

import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from experiments.artifacts import Artifact, Cell, Verdict, panels, place, styles
from experiments.results import Frame, geometric_mean, labels

FP32, BF16 = "none", "bf16"  # the dense baselines, by the names of their yaml files
DENSE = {FP32: "dense fp32", BF16: "dense bf16"}
RIVALS = {FP32: "no compression", "topk": "Topk", "dgc": "DGC"}  # and what the paper calls them
QUALITY = (0.8, 1.25)  # of k_hat/k: the authors' tolerance of 0.2, as a factor both ways

ROW = ["cell", "label", "ratio", "compression"]  # jobs that agree in these differ in seed only
FIRST = [
    "name_benchmark", "name_dataset", "name_compressor", "network", "rate_mbit_per_s", "unit", "metric", "origin",
    "name_feedback", "name_plan", "parameters", "world_size", "batch_per_rank", "hardware", "torch_version",
    "code_fingerprint",
]  # fmt: skip
MEANS = ["loss_last", "metric_value", "density", "step_ms", "compute_only_ms", "exposed_comm_ms", "stages_last"]
SPLIT = ["forward_backward_ms", "compress_ms", "exchange_ms", "mean_ms", "optimizer_ms"]
PARTS = {
    "forward_backward_ms": ("forward + backward", "#BBBBBB", ""),
    "compress_ms": ("compress", "#D55E00", ""),
    "exchange_ms": ("exchange", "#0072B2", ""),
    "exposed_ms": ("plain DDP: exchange not hidden", "#56B4E9", "////"),
    "mean_ms": ("mean", "#F0E442", ""),
    "optimizer_ms": ("optimizer", "#666666", ""),
}


def draw(runs: Frame) -> pd.DataFrame:
    """One row per benchmark, link, compressor and ratio; several seeds become a geometric mean and its spread."""
    runs = _against_dense(runs.rename(columns=lambda name: name.removesuffix("_median")))
    table = pd.DataFrame([_row(jobs) for _, jobs in runs.groupby(ROW, dropna=False)])
    table["_dense"] = table["compressor"].map(lambda name: [FP32, BF16, name].index(name))
    order = ["benchmark", "rate_mbit_per_s", "cell", "_dense", "ratio", "label"]
    table = table.sort_values(order, ascending=[True, False, True, True, False, True], ignore_index=True)
    return table.drop(columns="_dense")


def _against_dense(runs: Frame) -> pd.DataFrame:
    """Each job over the dense jobs of its own cell and seed, the fastest where there are several; NaN where none is."""
    speed, keys = runs["units_per_second"], pd.MultiIndex.from_frame(runs[["cell", "seed"]])
    dense = (speed[runs["name_compressor"] == name] for name in (FP32, BF16))
    fp32, bf16 = (of_one.groupby([runs["cell"], runs["seed"]]).max().reindex(keys).to_numpy() for of_one in dense)
    return runs.assign(
        label=labels(runs),
        over_fp32=speed / fp32,
        over_best_dense=speed / np.maximum(fp32, bf16),  # NaN unless both were run: the better of one is no contest
        best_dense=np.where(bf16 > fp32, BF16, FP32),
    )


def _row(jobs: Frame) -> dict[str, Any]:
    """One row of the table, of the jobs that differ in their seed. KB are 1000 bytes, per step and rank."""
    first, over = jobs.iloc[0], jobs["over_fp32"].dropna()
    split = jobs[SPLIT].mean()
    if math.isnan(split["exchange_ms"]):
        split["forward_backward_ms"] = math.nan  # plain DDP exchanges inside its backward: the two cannot be told apart
    low, high = (over * (jobs["step_ms"] / jobs[f"step_ms_{end}"])[over.index] for end in ("p80", "p20"))
    return {
        **{name.removeprefix("name_"): first[name] for name in (*FIRST, *ROW[:3])},
        "units_per_second": geometric_mean(jobs["units_per_second"]),
        "speedup_over_fp32": geometric_mean(over),
        "speedup_sd": over.std(),  # between seeds; NaN of one
        "speedup_p20": geometric_mean(low), "speedup_p80": geometric_mean(high),  # own steps over dense's median
        "speedup_over_best_dense": geometric_mean(jobs["over_best_dense"].dropna()),
        "best_dense": "/".join(sorted(set(jobs.loc[jobs["over_best_dense"].notna(), "best_dense"]))),
        **jobs[MEANS].mean().to_dict(), **split.to_dict(),
        "step_ms_p20": jobs["step_ms_p20"].mean(), "step_ms_p80": jobs["step_ms_p80"].mean(),
        "loss_after_steps": first["excluded_steps"] + first["steps_timed"],
        "khat_over_k": jobs["khat_over_k_mean"].mean(),
        "khat_over_k_ci90": math.sqrt((jobs["khat_over_k_ci90"] ** 2).sum(skipna=False)) / len(jobs),
        "payload_kb": jobs["payload_bytes"].mean() / 1000, "sent_kb": jobs["sent_bytes"].mean() / 1000,
        "seeds": len(jobs), "note": _note(jobs),
    }  # fmt: skip


def _note(jobs: Frame) -> str:
    notes = ["1 seed"] if len(jobs) == 1 else []
    for column, wanted in (("over_fp32", "dense fp32 (none)"), ("over_best_dense", "none and bf16")):
        seeds = jobs.loc[jobs[column].isna(), "seed"]
        if len(seeds):
            listed = ", ".join(map(str, sorted(seeds)))
            notes.append(
                f"no speed-up {column.replace('_', ' ')} for seed {listed}: {wanted} did not finish in this sweep"
            )
    return "; ".join(notes)


def _sidco(table: Frame) -> Iterable[Any]:
    return table[table["compressor"].str.startswith("sidco")].itertuples()


def _pairs(table: Frame, name: str) -> list[tuple[Any, Any]]:
    """Each row of SIDCo with the fastest row of that compressor at the same place and ratio, where there is one."""
    rivals = table[table["compressor"] == name]
    pairs = []
    for ours in _sidco(table):
        same = rivals[(rivals["cell"] == ours.cell) & (rivals["ratio"].isna() | (rivals["ratio"] == ours.ratio))]
        if len(same):
            pairs.append((ours, same.loc[same["units_per_second"].idxmax()]))
    return pairs


def _faster_than(name: str, table: Frame) -> Verdict:
    """By medians; a difference that the steps' own 20 % and 80 % quantiles bridge is told as such."""
    cells = []
    for ours, theirs in _pairs(table, name):
        times = ours.units_per_second / theirs.units_per_second
        overlap = ours.step_ms_p20 <= theirs.step_ms_p80 and theirs.step_ms_p20 <= ours.step_ms_p80
        figure = f"{times:.2f}x{' (within the spread of the steps)' if overlap else ''}"
        cells.append(Cell(place(ours), times > 1, figure))
    return Verdict(cells)


def _compresses_faster_than(name: str, table: Frame) -> Verdict:
    cells = []
    for ours, theirs in _pairs(table, name):
        figure = f"{ours.compress_ms:.2f} against {theirs.compress_ms:.2f} ms"
        cells.append(Cell(place(ours), ours.compress_ms < theirs.compress_ms, figure))
    return Verdict(cells)


def _estimates_well(table: Frame) -> Verdict:
    dgc = {place(ours): f" (dgc {theirs.khat_over_k:.2f})" for ours, theirs in _pairs(table, "dgc")}
    low, high = QUALITY
    return Verdict([
        Cell(place(ours), low <= ours.khat_over_k <= high, f"{ours.khat_over_k:.2f}{dgc.get(place(ours), '')}")
        for ours in _sidco(table)
    ])  # fmt: skip


def _beats_best_dense(table: Frame) -> Verdict:
    """The fastest compressor of each place and ratio has to."""
    tried = table[table["ratio"].notna() & table["speedup_over_best_dense"].notna()]
    best = tried.loc[tried.groupby(["cell", "ratio"], sort=False)["speedup_over_best_dense"].idxmax()]
    return Verdict([
        Cell(place(row), row.speedup_over_best_dense > 1, f"{row.speedup_over_best_dense:.2f}x over {row.best_dense}")
        for row in best.itertuples()
    ])  # fmt: skip


def headline(table: Frame, numbers: Frame) -> pd.DataFrame:
    """The paper's "up to" beside the largest ratio measured here; the two are never in one column."""
    rivals = {f"SIDCo over {said}": name for name, said in RIVALS.items()}
    rows = []
    for number in numbers.itertuples():
        found = [
            (ours.units_per_second / theirs.units_per_second, place(ours))
            for ours, theirs in _pairs(table, rivals.get(str(number.claim), ""))
        ]
        times, where = max(found, default=(math.nan, "no data"))
        rows.append({
            "claim": number.claim, "value": f"up to {number.value}{number.unit}", "origin": "paper",
            "page": number.page or "page not transcribed", "source": f"[{number.mark}] {number.source}",
            "measured_max": times, "measured_where": where,
        })  # fmt: skip
    return pd.DataFrame(rows)


def figures(table: Frame, folder: Path) -> list[Path]:
    """Speed-up against ratio, and where the time of a step goes: a panel for each benchmark and link."""
    looks = styles(table.loc[table["ratio"].notna(), "label"].unique())
    speedup, step_time = folder / "speedup.png", folder / "step_time.png"
    panels(
        table,
        speedup,
        "Throughput over that of dense fp32 (bars: 20 % and 80 % of steps)",
        3.2,
        lambda ax, rows: _speedup_panel(ax, rows, looks),
    )
    height = 0.9 + 0.24 * table.groupby("cell").size().max()
    panels(table, step_time, "Where the time of a step goes", height, _step_panel)
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
            ax.axhline(dense.max(), color="#555555", linestyle=style, linewidth=1, zorder=1, label=DENSE[name])
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


SPEEDUP = Artifact(
    name="speedup",
    source="SIDCo (arXiv 2101.10761): the speed-up panels of its figures on end-to-end training",
    experiment="speedup",
    draw=draw,
    figures=figures,
    headline=headline,
    claims={
        **{f"SIDCo trains faster than {said}": partial(_faster_than, name) for name, said in RIVALS.items()},
        "SIDCo compresses in less time than Topk": partial(_compresses_faster_than, "topk"),
        "SIDCo compresses in less time than DGC": partial(_compresses_faster_than, "dgc"),
        "SIDCo's k_hat/k stays within 0.8 and 1.25, an estimate as good as DGC's": _estimates_well,
        "Compression beats the best dense baseline (fp32 or bf16)": _beats_best_dense,
    },
)
