"""The figures of the micro-benchmark: speed-up over Top-k, times the memory limit, cost against d."""

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from experiments.artifacts.pictures import COLOURS, GREY, MARKERS, styles
from experiments.bench.claims import LARGE, OURS, SPEEDUP, TIMES_ADD, fits, used
from experiments.bench.subjects import ADD, TOPK
from experiments.results import Frame

MOST = 10  # lines that can be told apart in one panel
FIRST = (ADD, TOPK, "sidco_e", "sidco_gp", "sidco_p", "dgc", "redsync", "gaussiank", "randomk", "bf16")


def figures(rows: Frame, folder: Path) -> list[Path]:
    """PNG files written into the folder; only cold rows, with the memory that jobs give."""
    cold = used(rows)
    paths = [folder / f"{name}.png" for name in ("speedup_topk", "times_add", "cost")]
    _dots(cold, "speedup_topk", TOPK, SPEEDUP, "Times as fast as Top-k with error feedback", paths[0])
    _dots(cold, "times_add", ADD, TIMES_ADD, "Times the memory limit, residual.add_(gradient)", paths[1])
    if cold.loc[~cold["captured"].astype(bool), "numel"].nunique() < 2:
        return paths[:2]
    _cost(cold, paths[2])
    return paths


def _dots(rows: Frame, name: str, unit: str, limits: dict[float, float], title: str, path: Path) -> None:
    """A panel a vector: one line a compressor, one colour a ratio, quantiles as bars."""
    vectors = [same for _, same in rows.groupby("vector", sort=False)]
    most = max(same["compressor"].nunique() for same in vectors)
    page, axes = _page(len(vectors), 0.8 + 0.27 * most, rows, title)
    for ax, same in zip(axes, vectors, strict=False):
        names = _by_speed(same)
        ratios = sorted(same["ratio"].unique(), reverse=True)
        for number, ratio in enumerate(ratios):
            _ratio(ax, same[same["ratio"] == ratio], name, names, number, len(ratios))
            if ratio in limits and OURS in names and same["numel"].iloc[0] >= LARGE:
                place = names.index(OURS) + _shift(number, len(ratios))
                ax.plot(limits[ratio], place, "|", color=COLOURS[number], markersize=13, markeredgewidth=2.2, zorder=1)
        ax.axvline(1, color=GREY, linewidth=1, zorder=0)
        ax.set(xscale="log", title=same["vector"].iloc[0], xlabel=f"{unit} = 1")
        _ticks(ax)
        ax.set_yticks(range(len(names)), names, fontsize=8.5)
        ax.set_ylim(-0.7, len(names) - 0.3)
        ax.grid(axis="both", color="#EEEEEE")
        ax.set_axisbelow(True)
    handles: dict[str, Any] = {}
    for ax in axes:
        handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    if OURS in set(rows["compressor"]) and (rows["numel"] >= LARGE).any():
        handles[f"asked of {OURS}"] = Line2D([], [], color=GREY, marker="|", markersize=13, linestyle="")
    page.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    page.savefig(path, dpi=150)


def _ratio(ax: Axes, rows: Frame, name: str, names: list[str], number: int, ratios: int) -> None:
    places = rows["compressor"].map(names.index) + _shift(number, ratios)
    middle = rows[f"{name}_median"]
    error = [(middle - rows[f"{name}_p20"]).clip(lower=0), (rows[f"{name}_p80"] - middle).clip(lower=0)]
    ax.errorbar(
        middle, places, xerr=error, fmt=MARKERS[number % len(MARKERS)], color=COLOURS[number % len(COLOURS)],
        markersize=4.5, elinewidth=1, label=f"ratio {rows['ratio'].iloc[0]:g}",
    )  # fmt: skip


def _ticks(ax: Axes) -> None:
    """Plain numbers: 1, 2, 5, 10 where the axis is short, powers of ten where it is long."""
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _shift(number: int, ratios: int) -> float:
    """The largest ratio lies highest in its line."""
    return 0.22 * ((ratios - 1) / 2 - number)


def _by_speed(rows: Frame) -> list[str]:
    """From the slowest up, at the smallest ratio."""
    smallest = rows[rows["ratio"] == rows["ratio"].min()]
    return list(smallest.sort_values("compress_ms_median", ascending=False)["compressor"])


def _cost(rows: Frame, path: Path) -> None:
    """A panel a ratio: milliseconds against floats, the fitted exponent in the legend."""
    rows = rows[~rows["captured"].astype(bool)]
    present = [name for name in FIRST if name in set(rows["compressor"])]
    others = [name for name in rows["compressor"].unique() if name not in present]
    names = (present + others)[:MOST]
    looks, exponents = styles(names), fits(rows).set_index(["ratio", "compressor"])["exponent"]
    ratios = sorted(rows["ratio"].unique(), reverse=True)
    page, axes = _page(len(ratios), 5.2, rows, "Cost of compress against length, cold (in brackets: fitted exponent)")
    sizes = sorted(rows["numel"].unique())
    for ax, ratio in zip(axes, ratios, strict=False):
        for name in names:
            same = rows[(rows["ratio"] == ratio) & (rows["compressor"] == name)].sort_values("numel")
            fitted, middle = exponents.get((ratio, name), np.nan), same["compress_ms_median"]
            label = name if np.isnan(fitted) else f"{name} ({fitted:.2f})"
            error = [middle - same["compress_ms_p20"], same["compress_ms_p80"] - middle]
            ax.errorbar(same["numel"], middle, yerr=error, label=label, markersize=4, linewidth=1.2, elinewidth=0.8,
                        **looks[name])  # fmt: skip
        ax.set(xscale="log", yscale="log", title=f"ratio {ratio:g}", xlabel="floats", ylabel="ms a call, median")
        ax.set_xticks(sizes, [_short(size) for size in sizes])
        ax.minorticks_off()
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.grid(color="#EEEEEE")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=8, frameon=False)
    page.savefig(path, dpi=150)


def _short(count: float) -> str:
    """2621440 -> '2.6 M'."""
    unit, name = next(((u, n) for u, n in ((1e6, " M"), (1e3, " k")) if count >= u), (1, ""))
    return f"{count / unit:.3g}{name}" if count / unit >= 10 else f"{count / unit:.2g}{name}"


def _page(count: int, height: float, rows: Frame, title: str) -> tuple[Figure, list[Axes]]:
    """Panels of one size; three in a row where that fills the rows, else two."""
    columns = min(count, 3 if count % 3 == 0 else 2)
    lines = ceil(count / columns)
    page = Figure(figsize=(max(6.4, 4.4 * columns), height * lines + 1.3), layout="constrained")
    axes = list(page.subplots(lines, columns, squeeze=False).flat)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[count:]:
        ax.set_axis_off()
    first = rows.iloc[0]
    page.suptitle(
        f"{title}\n{first['hardware']}, {first['threads']} threads, torch {first['torch_version']}", fontsize=11
    )
    return page, axes
