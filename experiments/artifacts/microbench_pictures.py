"""The figures of the micro-benchmark: bars by ratio for each vector, and cost against length."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from experiments.artifacts.pictures import GREY, save, sheet, styles
from experiments.bench.claims import KHAT
from experiments.bench.subjects import ADD
from experiments.results import Frame

QUANTITIES = {
    "speedup_topk": "times as fast as Topk",
    "times_add": f"times {ADD}, the memory pass",
    "khat_over_k": "k̂/k",
}
ORDER = ("topk", "dgc", "redsync", "gaussiank", "sidco_e", "sidco_gp", "sidco_p")


def figures(run: Frame, folder: Path) -> list[Path]:
    """PNG files of one run of the bench: one of bars, and of noise of several lengths one of lines."""
    rows, name = run[run["compressor"] != ADD], run["run"].iloc[0]
    known = [compressor for compressor in ORDER if compressor in set(rows["compressor"])]
    looks = styles([*known, *(other for other in rows["compressor"].unique() if other not in known)])
    paths = [folder / f"microbench_{name}.png"]
    _bars(rows, looks, paths[0])
    lengths = rows[~rows["captured"].astype(bool)]
    if lengths["numel"].nunique() > 1:
        paths.append(folder / f"microbench_{name}_size.png")
        _lines(lengths, looks, paths[1])
    return paths


def _bars(rows: Frame, looks: dict[str, dict[str, Any]], path: Path) -> None:
    """A line of panels for each vector, a group of bars for each ratio."""
    vectors = [same for _, same in rows.groupby("vector", sort=False)]
    figure, axes = sheet(len(vectors), len(QUANTITIES), _title("Compressors by themselves, cold", rows), (4.2, 2.5))
    for line, same in zip(axes, vectors, strict=True):
        for ax, (name, label) in zip(line, QUANTITIES.items(), strict=True):
            _groups(ax, same, name, looks)
            ax.set_ylabel(label, fontsize=9)
        first = same.iloc[0]
        line[0].set_title(f"{first['model']}, {first['numel']:,} floats", fontsize=10, loc="left")
    save(figure, axes.flat, path, len(looks))


def _groups(ax: Axes, rows: Frame, name: str, looks: dict[str, dict[str, Any]]) -> None:
    ratios = sorted(rows["ratio"].unique(), reverse=True)
    width = 0.85 / len(looks)
    for number, (compressor, look) in enumerate(looks.items()):
        same = rows[rows["compressor"] == compressor].set_index("ratio").reindex(ratios)
        middle = same[name if name in same else f"{name}_median"]
        error = None
        if f"{name}_p20" in same:
            error = [(middle - same[f"{name}_p20"]).clip(lower=0), (same[f"{name}_p80"] - middle).clip(lower=0)]
        places = np.arange(len(ratios)) + (number - (len(looks) - 1) / 2) * width
        hatch = "///" if look["linestyle"] == ":" else ""
        ax.bar(places, middle, width, yerr=error, color=look["color"], hatch=hatch, edgecolor="white", linewidth=0.3,
               error_kw={"elinewidth": 0.8}, label=compressor)  # fmt: skip
    if name == "khat_over_k":
        ax.axhspan(*KHAT, color="#EEEEEE", zorder=0)
    ax.axhline(1, color=GREY, linewidth=1)
    _plain_log(ax)
    ax.set_xticks(range(len(ratios)), [f"{ratio:g}" for ratio in ratios])
    ax.set_xlabel("ratio", fontsize=9)


def _lines(rows: Frame, looks: dict[str, dict[str, Any]], path: Path) -> None:
    """Time and throughput against length, at the smallest ratio."""
    rows = rows[rows["ratio"] == rows["ratio"].min()]
    title = _title(f"Cost against length, normal noise, ratio {rows['ratio'].iloc[0]:g}, cold", rows)
    figure, axes = sheet(1, 2, title, (4.6, 3.6))
    (latency, throughput), sizes = axes[0], sorted(rows["numel"].unique())
    for compressor, look in looks.items():
        same = rows[rows["compressor"] == compressor].sort_values("numel")
        line = {**look, "markersize": 4, "linewidth": 1.3, "label": compressor}
        latency.plot(same["numel"], same["compress_ms_median"], **line)
        throughput.plot(same["numel"], 1e-6 * same["floats_per_second"], **line)
    latency.set(ylabel="ms a call, median")
    throughput.set(ylabel="million floats a second")
    for ax in (latency, throughput):
        _plain_log(ax)
        ax.set(xscale="log", xlabel="floats")
        ax.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8.5)
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.grid(color="#EEEEEE")
    save(figure, axes.flat, path, 4)


def _plain_log(ax: Axes) -> None:
    """A logarithmic axis with 1, 2, 5, 10 in plain numbers."""
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _title(text: str, rows: Frame) -> str:
    first = rows.iloc[0]
    return f"{text}\n{first['device']}: {first['hardware']}, {first['threads']} threads, torch {first['torch_version']}"
