"""Sparsity-inducing distributions: moments of magnitudes -> the threshold that a share delta of them exceeds.

Source: SIDCo (Abdelmoniem et al., MLSys 2021), section 2; the same closed forms in the authors' released code.
All work on 0-d float64 tensors, on the vector's device, without a host synchronisation. An empty set gives 0.
"""

import math
from collections.abc import Set
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from sidco.view import Moments

NEWTON_STEPS = 24


class Fit(Protocol):
    """A one-sided law fitted from sums."""

    sums: ClassVar[Set[str]]  # the dear fields of Moments it needs

    def threshold(self, moments: Moments, delta: float | Tensor) -> Tensor:
        """eta with P(A > eta) = delta for A under the fitted law; A is |x| or an exceedance. 0-d, finite, >= 0."""
        ...


@dataclass(frozen=True)
class Exponential:
    """eta = -mean ln delta."""

    sums: ClassVar[Set[str]] = frozenset()

    def threshold(self, moments: Moments, delta: float | Tensor) -> Tensor:
        return -_mean(moments) * _log(delta, moments)


@dataclass(frozen=True)
class Gamma:
    """Shape from the closed-form approximation of the maximum likelihood, scale from the mean.

    s = ln mean - mean ln; shape = (3 - s + sqrt((s - 3)^2 + 24 s)) / (12 s).
    `exact` inverts the regularised incomplete gamma function (the authors' code with error feedback); otherwise
    eta = -scale (ln delta + ln Gamma(shape)), which holds for a shape near 1 (their code without).
    Differs from the authors' code in that exact zeros are not fitted (they enter it as ln 2.2e-16): `Sidco` passes
    the moments of the non-zero magnitudes and raises delta accordingly.
    """

    exact: bool = True
    sums: ClassVar[Set[str]] = frozenset({"logs"})

    def threshold(self, moments: Moments, delta: float | Tensor) -> Tensor:
        mean = _mean(moments)
        count = moments.count.clamp_min(1)
        safe = torch.where(mean > 0, mean, torch.ones_like(mean))
        # equal magnitudes give s = 0 (or below by rounding), an infinite shape
        s = (safe.log() - moments.logs / count).clamp_min(1e-8)
        shape = (3 - s + ((s - 3) ** 2 + 24 * s).sqrt()) / (12 * s)
        delta = torch.as_tensor(delta, dtype=torch.float64, device=mean.device)
        quantile = gamma_tail_quantile(shape, delta) if self.exact else -(delta.log() + torch.lgamma(shape))
        return (mean / shape * quantile).clamp_min(0)


@dataclass(frozen=True)
class Pareto:
    """Generalised Pareto by moments: q = mean^2 / var, xi = (1 - q)/2, b = mean (q + 1)/2,
    eta = (b/xi)(delta^-xi - 1), with the limit -b ln delta at xi = 0.
    """

    sums: ClassVar[Set[str]] = frozenset({"squares"})

    def threshold(self, moments: Moments, delta: float | Tensor) -> Tensor:
        mean = _mean(moments)
        variance = (moments.squares - moments.total * mean) / (moments.count - 1).clamp_min(1)
        # magnitudes all equal, or a single one: q -> infinity, a law with all its mass at the mean
        safe = torch.where(mean > 0, mean, torch.ones_like(mean))
        q = 1 / (variance / safe**2).clamp_min(1e-12)
        xi, b = (1 - q) / 2, mean * (q + 1) / 2
        log = _log(delta, moments)
        xi_safe = torch.where(xi.abs() < 1e-9, torch.ones_like(xi), xi)
        return torch.where(xi.abs() < 1e-9, -b * log, b * torch.expm1(-xi_safe * log) / xi_safe).clamp_min(0)


def gamma_tail_quantile(shape: Tensor, delta: Tensor) -> Tensor:
    """t with Q(shape, t) = delta, Q the regularised upper incomplete gamma function. Newton on ln Q.

    ln Q is convex in t for shape < 1 and concave above, so after one step the iterates stay on one side of the root
    and cannot oscillate; a fixed number of steps keeps the device free of host synchronisations.
    """
    z = torch.special.ndtri(1 - delta)
    hilferty = shape * (1 - 1 / (9 * shape) + z / (3 * shape.sqrt())) ** 3  # good for shape > 1
    series = -(delta.log() + torch.lgamma(shape))  # good for shape <= 1
    t = torch.where(shape > 1, hilferty, series).clamp_min(1e-3 * shape)
    for _ in range(NEWTON_STEPS):
        tail = torch.special.gammaincc(shape, t).clamp_min(1e-300)
        log_density = (shape - 1) * t.log() - t - torch.lgamma(shape)
        step = (tail.log() - delta.log()) * (tail.log() - log_density).exp()
        t = torch.maximum(t + step, t / 8)  # a tangent from far right may point below zero
    return torch.where(delta >= 1, torch.zeros_like(t), t)


def _mean(moments: Moments) -> Tensor:
    return moments.total / moments.count.clamp_min(1)


def _log(delta: float | Tensor, moments: Moments) -> Tensor | float:
    return delta.to(moments.total).log() if isinstance(delta, Tensor) else math.log(delta)
