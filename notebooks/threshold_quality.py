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
# # How well do thresholds hit their target?
#
# A threshold compressor is asked for the k largest of d values and sends the k̂ that exceed its estimate. k̂/k = 1 is
# exact; above, it sends too much and is slow; below, it sends too little and learns slowly.
#
# First what was measured in training: your own runs in `outputs/quick`, or else the committed reference; of these the
# long runs that `make artifact-estimation` makes, where there are some. Then what happens on vectors whose distribution
# is known.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import torch
from IPython.display import Image, display

from experiments.artifacts import where
from experiments.artifacts.pictures import panels, styles
from experiments.reading import estimates, own_or_reference
from experiments.results import labels
from sidco.compressor import target_count
from sidco.compressors.dgc import DgcSampling
from sidco.compressors.gaussiank import GaussianK
from sidco.compressors.redsync import RedSync
from sidco.compressors.sidco import Sidco
from sidco.fits import Exponential, Gamma, Pareto
from sidco.vectors import samples

FITS = {"SIDCo-E": (Exponential(), Exponential()), "SIDCo-GP": (Gamma(), Pareto()), "SIDCo-P": (Pareto(), Pareto())}
RATIO, GOOD = 0.001, (0.8, 1.25)  # on the vectors below; SIDCo's own tolerance, as a factor
torch.set_num_threads(1)
scratch = TemporaryDirectory()  # of pictures, gone with the kernel
folder = Path(scratch.name)

reading = own_or_reference(Path("../outputs/quick"), estimates)
runs = reading.runs.assign(label=labels(reading.runs), where=where(reading.runs))
print(reading)

# %% [markdown]
# ## In training: the mean over all timed steps
#
# A good compressor stays inside the grey band at every ratio. Bars are the normal 90 % interval of the mean, as if
# steps were independent; where stages are still being adapted they are not, and the mean is that of the way there too.

# %%
looks = styles(runs["label"].unique())


def mean_by_ratio(ax, rows):
    for label, same in rows[rows["khat_over_k_mean"] > 0].sort_values("ratio").groupby("label", sort=False):
        mean, around = same["khat_over_k_mean"], same["khat_over_k_ci90"].fillna(0)
        low = around.clip(upper=0.95 * mean)  # a logarithm has no zero
        ax.errorbar(same["ratio"], mean, yerr=[low, around], label=label, capsize=2, markersize=4, **looks[label])
    ax.axhspan(*GOOD, color="#DDDDDD", zorder=0)
    ax.set(xscale="log", yscale="log", xlabel="ratio (to the right: less is sent)", ylabel="k̂/k")
    ax.invert_xaxis()


panels(runs, folder / "mean.png", "k̂/k over all timed steps: mean and 90 % interval", 3.2, [mean_by_ratio])
display(Image(folder / "mean.png"))
missed = runs[~runs["khat_over_k_mean"].between(*GOOD)]
print(f"{len(missed)} of {len(runs)} rows have a mean outside {GOOD[0]} to {GOOD[1]}")
if len(missed):
    print(missed.groupby("label")["job"].count().sort_values(ascending=False).to_string(header=False))

# %% [markdown]
# ## In training: step by step, and the stages that SIDCo has chosen
#
# At the smallest ratio, means over ten steps. This is where to see whether an estimate that is wrong at first finds its
# way: look for a line that crosses into the grey band and stays. One that leaves it again belongs to stages that go to
# and fro. A published reference may hold means only; then this needs runs of your own: `make artifact-estimation`.

# %%
steps = reading.steps()


def by_step(ax, rows, name, size):
    for row in rows.itertuples():
        of_job = steps[steps["job"] == row.job]
        line = {**looks[row.label], "marker": "", "linewidth": 1.2}
        ax.plot(of_job["step"], of_job[name].rolling(size, min_periods=1).mean(), label=row.label, **line)
    ax.set(xlabel=f"step (ratio {rows['ratio'].min():g})", ylabel={"khat_over_k": "k̂/k"}.get(name, name))


def estimate_by_step(ax, rows):
    by_step(ax, rows, "khat_over_k", 10)
    ax.axhspan(*GOOD, color="#DDDDDD", zorder=0)
    ax.set(yscale="log")


def stages_by_step(ax, rows):
    by_step(ax, rows, "stages", 1)
    ax.yaxis.get_major_locator().set_params(integer=True)


small = runs[runs["job"].isin(steps["job"]) & (runs["ratio"] == runs["ratio"].min())]
if len(small):
    panels(small, folder / "steps.png", "k̂/k and stages, step by step", 3.2, [estimate_by_step, stages_by_step])
    display(Image(folder / "steps.png"))
else:
    print("no steps here: `make artifact-estimation` makes them, and this cell then shows them")

# %% [markdown]
# ## On known vectors: how many stages does a tail need?
#
# One fit to all magnitudes is right only if the tail is like the bulk. Each further stage is fitted to what
# exceeded the one before. Look for the number of stages at which a line enters the grey band: it differs from
# vector to vector, so no fixed number will do. Where a line leaves the band again with more stages, the fit is
# wrong in the tail itself.

# %% picture="stages"
vectors, stages = samples(400_000, 0), range(1, 8)
looks = styles([*FITS, "DGC", "GaussianK", "RedSync"])
fig, axes = plt.subplots(1, len(vectors), figsize=(11, 3), layout="constrained", sharey=True)
for ax, (vector, x) in zip(axes, vectors.items(), strict=True):
    for name, (first, tail) in FITS.items():
        fixed = [Sidco(RATIO, first, tail, stages=m) for m in stages]
        sent = [compressor.compress(x, compressor.init(x))[0].count for compressor in fixed]
        ax.plot(stages, [max(n, 1) / target_count(x.numel(), RATIO) for n in sent], label=name, **looks[name])
    ax.axhspan(*GOOD, color="#DDDDDD", zorder=0)
    ax.set(title=vector, yscale="log", xlabel="stages", ylim=(0.04, 25))
axes[0].set_ylabel(f"k̂/k at ratio {RATIO:g}")
axes[-1].legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# ## The direction trap: why the rule matters
#
# Every five calls SIDCo looks at its mean k̂/k and, if that is more than 0.2 off, changes the number of stages by
# one. The rule `paper` (as the authors' code has it) takes one away when too much was sent. On a tail heavier than
# exponential (here a double gamma) one stage sends far too much, and the remedy is *more* stages: `paper` is at one
# already and stays there for ever. `sign` and `trend` turn round when a change did not help, and should reach the
# band within some tens of calls. `trend` is what this repository uses.

# %% picture="direction_trap"
fig, (top, bottom) = plt.subplots(2, 1, figsize=(6.4, 4.2), layout="constrained", sharex=True, height_ratios=(2, 1))
for (rule, look), width in zip(styles(["paper", "sign", "trend"]).items(), (4, 4, 1.5), strict=True):
    compressor, series = Sidco(RATIO, Exponential(), Exponential(), rule=rule), []
    state = compressor.init(torch.zeros(100_000))
    for call in range(60):
        payload, after = compressor.compress(samples(100_000, call)["double_gamma"], state)
        series.append((payload.count / state.target, state.stages))
        state = after
    ratios, used = zip(*series, strict=True)
    line = {"color": look["color"], "linewidth": width, "alpha": 0.5 if width > 2 else 1}
    top.plot(ratios, label=f"rule {rule}", **line)
    bottom.plot(used, drawstyle="steps-post", **line)
    print(f"{rule}: k̂/k of the last 20 calls {sum(ratios[-20:]) / 20:.2f}, {used[-1]} stages")
top.axhspan(*GOOD, color="#DDDDDD", zorder=0)
top.set(yscale="log", ylabel="k̂/k", title=f"SIDCo-E on a double gamma, ratio {RATIO:g}")
top.legend(frameon=False, fontsize=9)
bottom.set(xlabel="call", ylabel="stages", yticks=(1, 2, 3, 4))
plt.show()

# %% [markdown]
# ## Side by side, call after call
#
# A fresh vector at each call, SIDCo with the rule `trend`. Look at where a line ends, and at how long it takes to
# get there. DGC has nothing to learn, but takes as its threshold the largest of only 1,000 values of 100,000: it is
# noisy, and mostly low. GaussianK and RedSync correct a fixed number of times and stop wherever that is. SIDCo
# learns over the calls; a line of it that jumps to and fro is caught between a number of stages that sends too much
# and one that sends too little, although the figure of stages above may show a third that would fit: a limit of the
# rule `trend`. A line on the lowest edge has sent next to nothing.

# %%
estimators = {name: Sidco(RATIO, *fits) for name, fits in FITS.items()}
estimators |= {"DGC": DgcSampling(RATIO), "GaussianK": GaussianK(RATIO), "RedSync": RedSync(RATIO)}
fig, axes = plt.subplots(1, len(vectors), figsize=(11, 3.2), layout="constrained", sharey=True)
for ax, vector in zip(axes, vectors, strict=True):
    for name, compressor in estimators.items():
        state, series = compressor.init(torch.zeros(100_000), seed=1), []
        for call in range(40):
            payload, state = compressor.compress(samples(100_000, call)[vector], state)
            series.append(payload.count / target_count(100_000, RATIO))
        ax.plot([max(ratio, 0.04) for ratio in series], label=name, linewidth=1.2, color=looks[name]["color"])
    ax.axhspan(*GOOD, color="#DDDDDD", zorder=0)
    ax.set(title=vector, yscale="log", xlabel="call", ylim=(0.035, 25))
axes[0].set_ylabel(f"k̂/k at ratio {RATIO:g}")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
plt.show()
