# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Speed-up curves
#
# How many times as fast is training when less is sent: for each compressor, ratio and link? Where does the time of a
# step go? And was as much sent as was asked for?
#
# Read are your own runs in `outputs/quick` (`make reproduce-table` makes them), or, where there are none, the reference
# in `results/reference`. For another profile change the path below, for example to `../outputs/real`.

# %%
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from IPython.display import Image, Markdown, display
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.artifacts.pictures import panels, styles
from experiments.artifacts.speedup import SPEEDUP
from experiments.reading import own_or_reference

reading = own_or_reference(Path("../outputs/quick"), SPEEDUP.select)
table = SPEEDUP.draw(reading.runs)
scratch = TemporaryDirectory()  # of pictures, gone with the kernel
folder = Path(scratch.name)
print(reading)
display(Markdown(f"**{SPEEDUP.warning(table)}**" if SPEEDUP.warning(table) else SPEEDUP.facts(reading.runs)))

# %% [markdown]
# ## The rows
#
# One row for each compressor and ratio of a *cell*: a benchmark on a link. `ratio` is the share of the gradient that
# was asked for, `k̂/k` how many times as much was sent (1 is exact), dense fp32 (`none`) is plain DDP without any hook.
# Rows of different cells are never compared.

# %%
for _, rows in table.groupby("cell", sort=False):
    display(Markdown(f"### {SPEEDUP.heading(rows)}"), SPEEDUP.terminal(rows).style.hide())

# %% [markdown]
# ## Speed-up against ratio
#
# To the right less is sent. The grey lines are the two dense baselines: a compressor has to be above both, or bf16
# alone would have done better.

# %%
speedup, step_time = SPEEDUP.figures(table, table[:0], folder)
display(Image(speedup))
tried = table[table["ratio"].notna()].dropna(subset=["speedup_over_fp32"])
for row in tried.loc[tried.groupby("cell", sort=False)["speedup_over_fp32"].idxmax()].itertuples():
    said = f"{row.where}: the fastest is {row.label} at {row.ratio:g}: {row.speedup_over_fp32:.2f} times dense fp32"
    if row.best_dense:
        said += f", {row.speedup_over_best_dense:.2f} times the better dense one ({row.best_dense})"
    print(f"{said}, with k̂/k = {row.khat_over_k:.2f}")

# %% [markdown]
# ## Where the time of a step goes
#
# If exchange is most of a dense bar, there is something to win; if it is little, compressing can only cost. A bar
# longer than its tick, the whole step, hides work behind the exchange.

# %%
display(Image(step_time))
for where, rows in table.groupby("where", sort=False):
    dense, others = rows[rows["compressor"] == "none"], rows[rows["ratio"].notna()]
    if dense.empty or others.empty:
        continue
    waits = 100 * (dense["exposed_comm_ms"] / dense["step_ms"]).mean()
    compresses = 100 * (others["compress_ms"] / others["step_ms"])
    said = f"compressing is {compresses.min():.0f} to {compresses.max():.0f} % of a compressed one"
    print(f"{where}: waiting for the exchange is {waits:.0f} % of a dense step; {said}")

# %% [markdown]
# ## Speed that is bought by sending less than was asked for
#
# A threshold that almost nothing exceeds is very fast. Judge a speed-up by where its mark stands: in the grey band, the
# compressor sent about what it was asked for; far to the left, it was fast because it stayed silent; far to the right,
# it sends more than it should and could be faster. Large marks are large ratios.
#
# And k̂/k close to 1 is not all: random-k sends exactly what it is asked for, whatever that is worth. Look at the loss
# or the quality in the tables above, too.

# %% picture="speed_and_estimate"
tried = tried[tried["khat_over_k"] > 0]  # what sent nothing at all has no place on this axis
looks = styles(tried["label"].unique())


def speed_and_estimate(ax, rows):
    for label, same in rows.groupby("label", sort=False):
        size = (60 + 20 * same["ratio"].map(math.log10)).clip(lower=8)
        look = {key: looks[label][key] for key in ("color", "marker")}
        ax.scatter(same["khat_over_k"], same["speedup_over_fp32"], s=size, label=label, **look)
    ax.axvspan(0.8, 1.25, color="#DDDDDD", zorder=0)
    ax.set(xscale="log", ylim=(0, None), xlabel="k̂/k: sent over asked for", ylabel="times as fast as dense fp32")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())


if len(tried):
    panels(tried, folder / "estimate.png", "Speed-up and estimate", 3.2, [speed_and_estimate])
    display(Image(folder / "estimate.png"))
print(f"{tried['khat_over_k'].between(0.8, 1.25).sum()} of {len(tried)} rows sent 0.8 to 1.25 of what was asked for")

# %% [markdown]
# ## The paper's claims on these rows, and what these numbers are not

# %%
verdicts = {sentence: judge(table) for sentence, judge in SPEEDUP.claims.items()}
said = [(sentence, verdict.state, verdict.tally) for sentence, verdict in verdicts.items()]
display(pd.DataFrame(said, columns=["claim", "here", "in how many places"]).style.hide(), Markdown(SPEEDUP.limits))
