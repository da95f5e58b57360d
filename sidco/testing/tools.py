"""What the laws are tried with."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from sidco.compressor import Compressor
from sidco.payload import Payload, mean_of
from sidco.vectors import samples

Law = Callable[[Compressor[Any]], None]

STEPS = 6


def dense_of(payload: Payload) -> Tensor:
    """(n,) float32: the vector the message stands for."""
    return mean_of([payload], torch.empty(payload.numel))


def messages(
    compressor: Compressor[Any], vectors: dict[str, Tensor] | None = None
) -> Iterator[tuple[str, Tensor, Payload]]:
    for name, x in (vectors or samples(5000, 1)).items():
        state = compressor.init(x, seed=1)
        for _ in range(STEPS):
            payload, state = compressor.compress(x, state)
            yield name, x, payload


def same(a: Tensor, b: Tensor, complaint: str) -> None:
    """Bit for bit, NaN included."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{complaint}: {a.dtype} {a.shape}, {b.dtype} {b.shape}"
    as_bytes = (a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
    assert torch.equal(*as_bytes), complaint
