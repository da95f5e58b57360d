"""What a threshold estimator may ask of a vector, whoever holds it and however it is stored."""

from collections.abc import Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sidco import kernels
from sidco.kernels import reference

SAMPLE = 1 << 17  # floats of a sample, at most: half a MiB, and a standard error of a twelfth of a count at 0.001
SHARE = 16  # a sample is no more than one value in so many: its cost shrinks with the vector
LONG = 8 * SAMPLE  # floats from which a sample is worth its error: a million

Layout = tuple[tuple[str, torch.Size], ...]
"""The named tensors that lie one after the other inside a flat vector."""


class Moments(NamedTuple):
    """Sums over a = |x| - above where |x| > above: 0-d float64 on the vector's device.

    The dear ones are computed only when asked for and are NaN otherwise, so a fit that forgets to ask is found at once.
    """

    count: Tensor  # pyright: ignore[reportIncompatibleMethodOverride] - nobody wants tuple.count here
    total: Tensor  # sum of a
    squares: Tensor  # sum of a^2
    logs: Tensor  # sum of ln a over a > 0
    maximum: Tensor  # largest a, 0 where there is none
    signed: Tensor  # sum of x itself over the same coordinates


class View(Protocol):
    """A vector seen only through its magnitudes: x itself, or a sum not yet added up."""

    @property
    def numel(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def moments(self, above: Tensor | None = None, *, sums: Set[str] = frozenset(), sampled: bool = False) -> Moments:
        """Moments of the exceedances of `above`; None: of all |x|, zeros included. `sums` names the dear fields."""
        ...

    def exponential(self, first: float, share: float, more: int, *, sampled: bool = False) -> Tensor:
        """The threshold of `sidco.fits.Exponential` in stages: fitted to all |x| for `first`, then `more` times to what
        exceeds the threshold so far, of which it leaves `share`. 0-d float64 on the vector's device.
        """
        ...

    def sample(self, size: int, generator: torch.Generator) -> Tensor:
        """(size,) magnitudes drawn at random, with replacement."""
        ...

    def histogram(self) -> Tensor:
        """(2^16,) int64: how many magnitudes have which upper 16 of their 31 bits."""
        ...


@dataclass(frozen=True)
class VectorView:
    """A vector x that lies in memory, or residual + scale * x, which does not."""

    x: Tensor  # (n,)
    residual: Tensor | None = None  # (n,) float32
    scale: float = 1.0

    @property
    def numel(self) -> int:
        return self.x.numel()

    @property
    def device(self) -> torch.device:
        return self.x.device

    def moments(self, above: Tensor | None = None, *, sums: Set[str] = frozenset(), sampled: bool = False) -> Moments:
        """Exact, or where `sampled` and the vector is long, of a fixed sample, scaled up to the whole."""
        if not sampled or self.numel < LONG:
            return Moments(*kernels.of(self.x).moments(self.x, above, sums, self.residual, self.scale))
        sums_of_sample = Moments(*kernels.of(self._sampled).moments(self._sampled, above, sums))
        factor = self.numel / self._sampled.numel()
        return Moments(*(part * factor for part in sums_of_sample))._replace(maximum=sums_of_sample.maximum)

    def exponential(self, first: float, share: float, more: int, *, sampled: bool = False) -> Tensor:
        """Means need no scaling up, so a sample stands for the whole as it is."""
        if not sampled or self.numel < LONG:
            return kernels.of(self.x).exponential(self.x, first, share, more, self.residual, self.scale)
        return kernels.of(self._sampled).exponential(self._sampled, first, share, more)

    def sample(self, size: int, generator: torch.Generator) -> Tensor:
        places = torch.randint(self.numel, (size,), generator=generator, device=generator.device).to(self.x.device)
        values = self.x[places].float()
        return (values if self.residual is None else self.residual[places] + self.scale * values).abs()

    def histogram(self) -> Tensor:
        return kernels.of(self.x).histogram(self.x, self.residual, self.scale)

    def take(self, threshold: Tensor) -> tuple[Tensor, Tensor]:
        """(values, ascending indices) where |v| > threshold. With a residual, that has become residual + scale * x,
        less what was taken.
        """
        expected = self._expected(threshold)
        if self.residual is None:
            return kernels.of(self.x).take(self.x, threshold, expected)
        return kernels.of(self.residual).accumulate_take_(self.residual, self.x, self.scale, threshold, expected)

    @cached_property
    def _sampled(self) -> Tensor:
        size = min(SAMPLE, self.numel // SHARE // reference.WIDTH * reference.WIDTH)
        return kernels.of(self.x).sampled(self.x, self.residual, self.scale, size)

    def _expected(self, threshold: Tensor) -> int:
        """About how many exceed it, on the generous side; 0, unknown, where a second go costs little or where asking
        would make the host wait for a device.
        """
        if self.numel < LONG or not self.x.is_cpu:
            return 0
        hits = kernels.cpu.exceeding(self._sampled, threshold)
        return int((hits + 4 * hits**0.5) * self.numel / self._sampled.numel())
