"""Laws of magnitudes, as their quantiles: the three fits as SIDCo itself makes them, and the normal one beside them.

A fit is asked for thresholds, as a compressor asks it; its distribution is what they trace out, so that no estimator
is written twice.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats

from sidco.fits import Exponential, Fit, Gamma, Pareto
from sidco.view import VectorView

FITS: dict[str, Fit] = {"exponential": Exponential(), "gamma": Gamma(), "generalised Pareto": Pareto()}
NORMAL = "normal"
# shares above a quantile, descending, dense at both ends: what lies between two of them is interpolated
SHARES = np.concatenate([1 - np.geomspace(1e-6, 0.5, 400), np.geomspace(0.5, 1e-9, 800)[1:]])


@dataclass(frozen=True)
class Law:
    """A distribution of magnitudes: at `quantiles` (m,), ascending, the SHARES of it that lie above."""

    quantiles: np.ndarray

    def above(self, x: np.ndarray) -> np.ndarray:
        """P(A > x), for x (…,) of at least 0."""
        return np.interp(x, self.quantiles, SHARES, left=1.0, right=0.0)

    def below_signed(self, x: np.ndarray) -> np.ndarray:
        """P(X <= x) of a symmetric X whose magnitude has this law."""
        return 0.5 * (1 + np.sign(x) * (1 - self.above(np.abs(x))))

    def quantile(self, share: Any) -> Any:
        """The magnitude that this share lies above."""
        return np.interp(-np.asarray(share), -SHARES, self.quantiles)

    def distance(self, magnitudes: np.ndarray) -> float:
        """Kolmogorov and Smirnov's, of magnitudes (n,): the largest difference between two distribution functions."""
        found: Any = stats.ks_1samp(magnitudes, lambda a: 1 - self.above(a), method="asymp")
        return float(found.statistic)


def laws(x: np.ndarray) -> dict[str, Law]:
    """By name, fitted to the non-zero magnitudes of x (n,) float32; the normal one has mean zero."""
    moments = VectorView(torch.from_numpy(x)).moments(torch.zeros(()), sums=frozenset({"squares", "logs"}))
    shares = torch.from_numpy(SHARES)
    found = {name: fit.threshold(moments, shares).numpy() for name, fit in FITS.items()}
    found[NORMAL] = stats.halfnorm.isf(SHARES, scale=float((moments.squares / moments.count).sqrt()))
    return {name: Law(quantiles) for name, quantiles in found.items()}
