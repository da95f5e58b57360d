"""Every coordinate in a narrower float: what a compressor has to beat before anything else."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sidco.compressor import Compressor
from sidco.payload import Dense, Payload
from sidco.view import Layout

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAGNITUDE, INFINITY = 0x7FFF, 0x7C00  # of the bits of a float16


class CastState(NamedTuple):
    """Coordinates of the last vector that the format could not hold: 0-d int64 on the vector's device."""

    overflowed: Tensor  # became infinite
    underflowed: Tensor  # became zero, and were not


@dataclass(frozen=True)
class Cast(Compressor[CastState | None]):
    """Sends all of x as `dtype`: float32 (what plain DDP does, through the hook), bfloat16 or float16.

    The mean is taken as DDP takes it: each rank divides by W before the sum, so float16 does not overflow in it.
    A coordinate of 65520 or more is infinite in float16 before that, and stops all ranks; one of 2^-25 or less is zero.
    Both are counted, for float16 only: bfloat16 has float32's range, and counting costs as much as the cast again.
    """

    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in FORMATS:
            raise ValueError(f"dtype must be one of {', '.join(FORMATS)}, got {self.dtype!r}")

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> CastState | None:
        if self.dtype != "float16":
            return None
        none = torch.zeros((), dtype=torch.int64, device=x.device)
        return CastState(none, none.clone())

    def compress(self, x: Tensor, state: CastState | None) -> tuple[Payload, CastState | None]:
        values = x.to(FORMATS[self.dtype], copy=True)
        return Dense(values), None if state is None else _lost(x, values)

    def report(self, state: CastState | None) -> dict[str, float]:
        return {} if state is None else {name: count.item() for name, count in state._asdict().items()}


def _lost(x: Tensor, values: Tensor) -> CastState:
    """What became infinite or zero on the way from x (n,) to float16. As integers: torch is slow on halves."""
    bits = values.view(torch.int16) & MAGNITUDE
    return CastState(
        torch.count_nonzero(bits == INFINITY),
        torch.count_nonzero(x) - torch.count_nonzero(bits),
    )
