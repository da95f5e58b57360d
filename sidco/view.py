"""What a threshold estimator may ask of a vector, whoever holds it and however it is stored."""

from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sidco.kernels import reference

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

    def moments(self, above: Tensor | None = None, *, sums: Set[str] = frozenset(), sampled: bool = False) -> Moments:
        """Moments of the exceedances of `above`; None: of all |x|, zeros included. `sums` names the dear fields."""
        ...

    def sample(self, size: int, generator: torch.Generator) -> Tensor:
        """(size,) magnitudes drawn at random, with replacement."""
        ...


@dataclass(frozen=True)
class VectorView:
    """A vector that lies in memory. Exact: `sampled` changes nothing."""

    x: Tensor  # (n,)

    @property
    def numel(self) -> int:
        return self.x.numel()

    def moments(self, above: Tensor | None = None, *, sums: Set[str] = frozenset(), sampled: bool = False) -> Moments:
        return Moments(*reference.moments(self.x, above, sums))

    def sample(self, size: int, generator: torch.Generator) -> Tensor:
        places = torch.randint(self.numel, (size,), generator=generator, device=generator.device)
        return self.x[places.to(self.x.device)].float().abs()
