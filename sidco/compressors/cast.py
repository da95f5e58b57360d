"""Every coordinate in a narrower float: what a compressor has to beat before anything else."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sidco.compressor import Compressor
from sidco.payload import Dense, Payload
from sidco.view import Layout

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Cast(Compressor[None]):
    """Sends all of x as `dtype`: float32 (what plain DDP does, through the hook), bfloat16 or float16.

    The mean is taken as DDP takes it: each rank divides by W before the sum, so float16 does not overflow in it.
    """

    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in FORMATS:
            raise ValueError(f"dtype must be one of {', '.join(FORMATS)}, got {self.dtype!r}")

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> None:
        return None

    def compress(self, x: Tensor, state: None) -> tuple[Payload, None]:
        return Dense(x.to(FORMATS[self.dtype], copy=True)), None
