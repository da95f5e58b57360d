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
# # What gradients look like
#
# SIDCo fits a distribution to the magnitudes |g| and reads its threshold off the tail. Are gradients like that?
#
# Read are gradients that a job of yours has kept: `make artifact-distribution` keeps some, and so does any run with
# `capture.steps=[5,99]` on its command line. Without one, a small ResNet-20 is trained here for forty steps on the
# digits that come with scikit-learn: real gradients, but of a small model on an easy task, of one worker. What is seen
# below is said of these vectors alone.

# %%
from itertools import islice
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from experiments.artifacts.laws import FITS, NORMAL, laws
from experiments.artifacts.pictures import GREY, styles
from experiments.gradients import kept, of_digits, thinned
from sidco.compressors.topk import TopK
from sidco.feedback import ErrorFeedback

torch.set_num_threads(1)
paths = kept(Path("../outputs"))
if paths:
    vectors = {name: thinned(path) for name, path in paths.items()}
    print(f"captured by a job of yours: {next(iter(paths.values())).parent.parent.name}")
else:
    feedback, vectors = ErrorFeedback(TopK(0.001)), {}
    for step, gradient in enumerate(islice(of_digits(), 40)):
        if step == 0:
            vectors["step 0"], state = gradient, feedback.init(gradient)
        seen = state.residual + gradient  # by a Top-k behind error feedback, had it watched this training
        _, state = feedback.compress(gradient, state)
    vectors |= {f"step {step}": gradient, f"step {step}, with error feedback": seen}
    print("made here (no job has kept a gradient): ResNet-20 on scikit-learn's digits, one worker, uncompressed;")
    print("with error feedback: the gradient and what Top-k at 0.001 would have left unsent until then")

magnitudes = {name: x[x != 0].abs().sort().values.double().numpy() for name, x in vectors.items()}  # ascending
fitted = {name: laws(x.numpy()) for name, x in vectors.items()}
for name, x in vectors.items():
    print(f"{name}: {x.numel():,} values, {(x == 0).sum():,} of them zero, largest {magnitudes[name][-1]:.3g}")

# %% [markdown]
# ## The fits in numbers
#
# SIDCo's three distributions, and the normal one beside them, are fitted to all |g| > 0. `KS` is the largest
# distance between the fitted and the measured distribution function: small is good. `k̂/k` is what one stage would
# send over what it was asked for: close to 1 is good. A fit may be the best of the bulk, by KS, and miss the tail,
# which is all a compressor needs.

# %%
rows = []
for name, measured in magnitudes.items():
    for law_name, law in fitted[name].items():
        sent = {f"k̂/k at {d:g}": (measured > law.quantile(d)).mean() / d for d in (0.1, 0.01, 0.001)}
        rows.append({"vector": name, "law": law_name, "KS": law.distance(measured)} | sent)
table = pd.DataFrame(rows).set_index(["vector", "law"])
tail = table["k̂/k at 0.001"].clip(lower=1e-9).map(np.log).abs()
for name in vectors:
    print(f"{name}: nearest by KS is {table.loc[name, 'KS'].idxmin()}, at a ratio of 0.001 {tail[name].idxmin()}")
table.style.format("{:.3f}")

# %% [markdown]
# ## Density and tail
#
# Above, the density on a logarithmic scale: an exponential would be a straight line. Below, the share of values that
# exceed a threshold, both axes logarithmic: here a threshold is read off. Where the measured line (black) lies above a
# fit, that fit's threshold lets too much through; where it lies below, too little.

# %% picture="gradient_tail"
looks = {law: {"color": look["color"], "linestyle": "--"} for law, look in styles(FITS).items()}
looks[NORMAL] = {"color": GREY, "linestyle": ":"}
size = (4.2 * len(vectors), 5.6)
fig, axes = plt.subplots(2, len(vectors), figsize=size, layout="constrained", squeeze=False)
for (top, bottom), (name, measured) in zip(axes.T, magnitudes.items(), strict=True):
    edges = np.linspace(0, np.quantile(measured, 0.999), 81)  # a few of the largest would make the rest a line
    thresholds = np.geomspace(edges[-1] / 1e3, measured[-1], 300)
    width, heights = edges[1], np.histogram(measured, edges)[0] / len(measured) / edges[1]
    top.stairs(heights, edges, fill=True, color="#BBBBBB")
    shares = 1 - np.searchsorted(measured, thresholds, side="right") / len(measured)
    bottom.plot(thresholds, shares, color="black", label="measured")
    for law_name, law in fitted[name].items():
        top.plot(edges[1:] - width / 2, -np.diff(law.above(edges)) / width, **looks[law_name])
        bottom.plot(thresholds, law.above(thresholds), label=law_name, **looks[law_name])
    top.set(title=name, yscale="log", ylim=(heights[heights > 0].min() / 3, None), xlabel="|g|")
    top.locator_params(axis="x", nbins=4)
    bottom.set(xscale="log", yscale="log", ylim=(0.5 / len(measured), 1.5), xlabel="threshold")
axes[0, 0].set_ylabel("density")
axes[1, 0].set_ylabel("share above the threshold")
axes[1, 0].legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# ## Quantile against quantile
#
# On the diagonal a fit is right. To the upper right are the few largest values, those that a compressor sends: below
# the diagonal the fit's quantile is smaller than the measured one, so its threshold is too low and too much is sent.

# %%
fig, axes = plt.subplots(1, len(vectors), figsize=(4.2 * len(vectors), 3.6), layout="constrained", squeeze=False)
for ax, (name, measured) in zip(axes.flat, magnitudes.items(), strict=True):
    shares = np.geomspace(0.9, min(10 / len(measured), 0.5), 60)
    quantiles = np.quantile(measured, 1 - shares)
    ax.plot(quantiles, quantiles, color="black", linewidth=0.8)
    for law_name, law in fitted[name].items():
        ax.plot(quantiles, law.quantile(shares), ".", markersize=4, color=looks[law_name]["color"], label=law_name)
    ax.set(title=name, xscale="log", yscale="log", xlabel="measured quantile of |g|")
    ax.set_ylim(quantiles[0] / 2, quantiles[-1] * 3)
axes[0, 0].set_ylabel("fitted quantile")
axes[0, 0].legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# ## Sorted magnitudes: is a gradient compressible?
#
# The paper assumes a power law: the j-th largest |g| is at most c j^-p with p > 1/2. Then the error of Top-k falls at
# least as fast as k^(1/2 - p): the larger p, the fewer values hold most of the gradient. In this picture p is the
# steepness of the line; the dotted line has the slope -1/2. Look where the measured line is steeper: only there does it
# fall as fast as assumed. (`make artifact-power_law` fits p and compares errors.)

# %%
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for (name, measured), look in zip(magnitudes.items(), styles(magnitudes).values(), strict=True):
    ranks = np.unique(np.geomspace(1, len(measured), 400).astype(int))
    ax.plot(ranks, measured[-ranks] / measured[-1], label=name, color=look["color"])
    for low, high in ((0.0001, 0.01), (0.01, 0.5)):
        some = ranks[(ranks >= low * len(measured)) & (ranks <= high * len(measured))]
        slope = np.polyfit(np.log(some), np.log(measured[-some]), 1)[0]
        print(f"{name}: p = {-slope:.2f} between the largest {100 * low:g} % and {100 * high:g} %")
ax.plot(ranks, ranks**-0.5, ":", color="black", label="slope -1/2")
ax.set(xscale="log", yscale="log", xlabel="rank j", ylabel="j-th largest |g| over the largest", ylim=(1e-4, 2))
ax.legend(frameon=False, fontsize=9)
plt.show()
