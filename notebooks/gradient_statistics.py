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
# Read are gradients that a job of yours has kept (`capture.steps=[5,100]` on the command line of any run keeps two).
# Without one, a small ResNet-20 is trained here for forty steps on the digits that come with scikit-learn: real
# gradients, but of a small model on an easy task, of one worker. What is seen below is said of these vectors alone.

# %%
from itertools import islice
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from experiments.artifacts.pictures import styles
from experiments.gradients import kept, of_digits, thinned
from sidco.compressors.topk import TopK
from sidco.feedback import ErrorFeedback
from sidco.fits import Exponential, Gamma, Pareto
from sidco.view import VectorView

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

# %% [markdown]
# ## The fits in numbers
#
# The three distributions are fitted to all |g| > 0. `KS` is the largest distance between the fitted and the
# measured distribution function, on 200 quantiles: small is good. `k̂/k` is what one stage would send over what it
# was asked for: close to 1 is good. A fit may be the best of the bulk, by KS, and miss the tail, which is all a
# compressor needs.

# %%
FITS = {"exponential": Exponential(), "gamma": Gamma(), "generalised Pareto": Pareto()}
SHARES = torch.logspace(-5, -0.005, 200, dtype=torch.float64)  # of values above a threshold


def share_above(magnitudes, thresholds):
    """Of sorted magnitudes, above each threshold."""
    return 1 - np.searchsorted(magnitudes, thresholds, side="right") / len(magnitudes)


drawn, rows = {}, []
for name, x in vectors.items():
    measured = x[x != 0].abs().sort().values.numpy()
    sums = VectorView(x).moments(torch.zeros(()), sums=frozenset({"logs", "squares"}))
    drawn[name] = measured, {law: fit.threshold(sums, SHARES).numpy() for law, fit in FITS.items()}
    for law, thresholds in drawn[name][1].items():
        distance = np.abs(share_above(measured, thresholds) - SHARES.numpy()).max()
        sent = {d: share_above(measured, FITS[law].threshold(sums, d).item()) / d for d in (0.1, 0.01, 0.001)}
        rows.append({"vector": name, "fit": law, "KS": distance} | {f"k̂/k at {d:g}": c for d, c in sent.items()})
    print(f"{name}: {x.numel():,} values, {(x == 0).sum():,} of them zero, largest {measured[-1]:.3g}")
fits = pd.DataFrame(rows).set_index(["vector", "fit"])
tail = fits["k̂/k at 0.001"].clip(lower=1e-9).map(np.log).abs()
for name in vectors:
    print(f"{name}: {fits.loc[name, 'KS'].idxmin()} is nearest by KS, {tail[name].idxmin()} at a ratio of 0.001")
fits.style.format("{:.3f}")

# %% [markdown]
# ## Density and tail
#
# Above, the density on a logarithmic scale: an exponential would be a straight line. Below, the share of values that
# exceed a threshold, both axes logarithmic: here a threshold is read off. Where the measured line (black) lies above a
# fit, that fit's threshold lets too much through; where it lies below, too little.

# %% picture="gradient_tail"
looks = {law: {"color": look["color"], "linestyle": "--"} for law, look in styles(FITS).items()}
size = (4.2 * len(drawn), 5.6)
fig, axes = plt.subplots(2, len(drawn), figsize=size, layout="constrained", squeeze=False)
for (top, bottom), (name, (measured, fitted)) in zip(axes.T, drawn.items(), strict=True):
    end = np.quantile(measured, 0.999)
    inside = (measured <= end).mean()  # a few of the largest would make the rest a line
    heights, edges = np.histogram(measured, bins=80, range=(0, end), density=True)
    top.stairs(inside * heights, edges, fill=True, color="#BBBBBB")
    bottom.plot(np.quantile(measured, 1 - SHARES), SHARES, color="black", label="measured")
    for law, thresholds in fitted.items():
        top.plot(thresholds, -np.gradient(SHARES.numpy(), thresholds), **looks[law])
        bottom.plot(thresholds, SHARES, label=law, **looks[law])
    top.set(title=name, xlim=(0, end), yscale="log", ylim=(heights[heights > 0].min() / 3, None), xlabel="|g|")
    bottom.set(xscale="log", yscale="log", xlabel="threshold", xlim=(end / 1e3, measured[-1]))
axes[0, 0].set_ylabel("density")
axes[1, 0].set_ylabel("share above the threshold")
axes[1, 0].legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# ## Quantile against quantile
#
# On the diagonal a fit is right. Points to the upper right are the few largest values, those that a compressor sends:
# below the diagonal the fit's quantile is smaller than the measured one, so its threshold is too low and too much is
# sent.

# %%
fig, axes = plt.subplots(1, len(drawn), figsize=(4.2 * len(drawn), 3.6), layout="constrained", squeeze=False)
for ax, (name, (measured, fitted)) in zip(axes.flat, drawn.items(), strict=True):
    quantiles = np.quantile(measured, 1 - SHARES)
    for law, thresholds in fitted.items():
        ax.plot(quantiles, thresholds, ".", markersize=3, color=looks[law]["color"], label=law)
    ax.plot(quantiles[[0, -1]], quantiles[[0, -1]], color="black", linewidth=0.8)
    ax.set(title=name, xscale="log", yscale="log", xlabel="measured quantile of |g|")
    ax.set(xlim=(np.quantile(measured, 0.3), None), ylim=(np.quantile(measured, 0.3), None))
axes[0, 0].set_ylabel("fitted quantile")
axes[0, 0].legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# ## Sorted magnitudes: is a gradient compressible?
#
# The paper assumes a power law: the j-th largest |g| is at most c j^-p with p > 1/2. Then the error of Top-k falls
# at least as fast as k^(1/2 - p): the larger p, the fewer values hold most of the gradient. In this picture p is
# the steepness of the line; the dotted line has the slope -1/2. Look where the measured line is steeper: only from
# there on does it hold.

# %%
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for (name, (measured, _)), look in zip(drawn.items(), styles(drawn).values(), strict=True):
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
