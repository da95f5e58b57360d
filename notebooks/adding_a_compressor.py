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
# # Adding a compressor
#
# A compressor is a frozen record of settings with two methods. One that keeps whatever exceeds a threshold, a
# `Thresholder`, only says how the threshold is found; selecting, packing, error feedback, wire and mean are there.
#
# Here is a new one from idea to table row: in this notebook first, where nothing has to be installed or registered.

# %%
from dataclasses import dataclass
from itertools import islice
from math import log
from statistics import median
from typing import NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
import torch

from experiments.artifacts.pictures import styles
from experiments.bench.clock import Clock
from experiments.gradients import of_digits
from sidco.compressor import Thresholder, target_count
from sidco.compressors.sidco import Sidco
from sidco.compressors.topk import TopK
from sidco.fits import Exponential
from sidco.testing import LAWS

torch.set_num_threads(1)

# %% [markdown]
# ## The idea, in ten lines
#
# SIDCo corrects a wrong fit by more stages. Could one number do? Keep |x| > factor · mean |x|. Begin with the
# factor that is right for an exponential distribution, -ln ratio; when a call has sent too much, raise it; too
# little, lower it.
#
# `view` answers questions about the vector (sums, a sample, a histogram) and need not hold it as it stands: behind
# error feedback it is residual + gradient, and nothing has been written yet. What must be remembered from call to
# call is the state: a NamedTuple, handed in and returned. `self` never changes.


# %%
class Learnt(NamedTuple):
    target: int  # k
    factor: float  # of the mean


@dataclass(frozen=True)
class MultipleOfMean(Thresholder[Learnt]):
    """Keeps |x| > factor * mean |x|; the factor follows what was sent: factor *= (k̂/k)^gain after each call."""

    ratio: float
    gain: float = 0.1
    band = (0.8, 1.25)  # a promise: in the long run k̂/k lies in here, and the laws below hold us to it

    def init(self, x, *, layout=None, seed=0):
        return Learnt(target_count(x.numel(), self.ratio), -log(self.ratio))

    def threshold(self, view, state):
        sums = view.moments(sampled=True)  # of a sample where the vector is long
        return state.factor * sums.total / sums.count.clamp_min(1), state

    def observe(self, state, count):
        return state._replace(factor=state.factor * (max(count, 1) / state.target) ** self.gain)


# %% [markdown]
# ## Does it obey the laws?
#
# Each law is a function that raises an AssertionError with the reason. They try zeros, constants, denormals, 1e30, and
# NaN on one rank; they check that nothing is lost with error feedback, that the same input gives the same bits at any
# thread count, and that the promise above is kept. Try it: set `band = (0.99, 1.01)`, or let `threshold` return
# `torch.tensor(1e-3), state`.

# %%
for law in LAWS:
    try:
        law(MultipleOfMean(0.01))
        print(f"obeyed  {law.__name__}")
    except AssertionError as reason:
        print(f"BROKEN  {law.__name__}: {reason}")

# %% [markdown]
# ## Does it hit its target on real gradients?
#
# Forty steps of ResNet-20 on scikit-learn's digits, the same gradients for all, without error feedback. Look at how
# soon each line reaches the grey band, and how far it swings there: one number answers at every call and goes on
# swinging with each gradient, SIDCo moves by whole stages, once in five calls. Top-k is exact by definition.

# %%
gradients = list(islice(of_digits(), 40))
compressors = {
    "MultipleOfMean": MultipleOfMean,
    "SIDCo-E": lambda ratio: Sidco(ratio, Exponential(), Exponential()),
    "Top-k": TopK,
}
looks, rows = styles(compressors), []
fig, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
for ax, ratio in zip(axes, (0.01, 0.001), strict=True):
    for name, make in compressors.items():
        compressor, series = make(ratio), []
        state = compressor.init(gradients[0])
        for gradient in gradients:
            payload, state = compressor.compress(gradient, state)
            series.append(payload.count / target_count(gradient.numel(), ratio))
        ax.plot(series, label=name, color=looks[name]["color"])
        later = pd.Series(series[20:])
        rows.append({"compressor": name, "ratio": ratio, "mean k̂/k": later.mean(), "spread (std)": later.std()})
    ax.axhspan(0.8, 1.25, color="#DDDDDD", zorder=0)
    ax.set(title=f"ratio {ratio:g}", yscale="log", xlabel="step")
axes[0].set_ylabel("k̂/k")
axes[0].legend(frameon=False, fontsize=9)
plt.show()
pd.DataFrame(rows).style.hide().format("{:.2f}", ["mean k̂/k", "spread (std)"]).set_caption("from step 20 on")

# %% [markdown]
# ## What does it cost?
#
# Median milliseconds of one call on one thread, without error feedback: on the last gradient, and on the same one
# sixteen times over, for on long vectors compressors part (both thresholds are then fitted to a sample). These are
# times of *this* machine at this moment with warm caches: compare rows, not figures. `make bench` measures
# properly.

# %%
costs = {}
for times in (1, 16):
    x = gradients[-1].repeat(times)
    for name, make in compressors.items():
        compressor, spent = make(0.001), []
        state = compressor.init(x)
        for _ in range(12):
            (_, state), seconds = Clock().time(lambda: compressor.compress(x, state))  # noqa: B023 - called at once
            spent.append(1e3 * seconds)
        costs[name, f"{x.numel():,} values"] = median(spent[5:])  # SIDCo first has to find its stages
pd.Series(costs).unstack(sort=False).style.format("{:.2f} ms")

# %% [markdown]
# ## Making it permanent
#
#     make new-compressor NAME=multiple_of_mean
#
# writes two skeletons. The class above, with its imports and types, goes into
# `sidco/compressors/multiple_of_mean.py`; `conf/compressor/multiple_of_mean.yaml` says what it is made of:
#
# ```yaml
# _target_: sidco.compressors.multiple_of_mean.MultipleOfMean
# ratio: ${ratio}
# gain: 0.1
# ```
#
# Nothing else changes. It is now in the battery, in the test that real ranks equal virtual workers bit for bit, in
# `make bench` and in every sweep, because these look for the yaml:
#
#     .venv/bin/python -m pytest tests/test_battery.py -k multiple_of_mean
#     make compare C=multiple_of_mean        # its rows beside SIDCo-E, Top-k and dense, over an emulated link
#
# Then `speedup_curves` and `threshold_quality` show it among the others. Did it work? k̂/k close to 1 does not yet
# make a good compressor: look at the loss beside it, with error feedback, over a training:
#
#     .venv/bin/python -m experiments.train -m experiment=convergence profile=convergence \
#         compressor=none,multiple_of_mean
