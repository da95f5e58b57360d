"""How sparse messages travel: the type of their values, and places as indices or as a bit for each coordinate."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sidco.compressor import Compressor
from sidco.payload import Payload, Shared, Sparse, index_dtype
from sidco.view import Layout, VectorView

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Coded(Sparse):
    """A sparse message in other words: [places | values] as bytes, nothing else.

    `values` are rounded to `kind` already, so both ends mean the same; what float16 cannot hold is its largest number.
    A coordinate costs 2 or 4 bytes for its value, and 4 (8 from 2^31 on) for its index; or all places together n/8.
    """

    kind: torch.dtype
    bitmap: bool
    summable: ClassVar[bool] = False

    @classmethod
    def coded(cls, payload: Sparse, kind: torch.dtype, bitmap: bool) -> Self:
        most = torch.finfo(kind).max
        rounded = payload.values.clamp(-most, most).to(kind).float()
        return cls(rounded, payload.indices, payload.length, kind, bitmap)

    def pack(self) -> Tensor:
        places = _bits(self.indices, self.length) if self.bitmap else self.indices.view(torch.uint8)
        return torch.cat([places, self.values.to(self.kind).view(torch.uint8)])

    @classmethod
    def unpack(cls, buffer: Tensor, numel: int) -> Self:
        raise TypeError("the format is not in the buffer: ask a message that has it, by received(buffer)")

    def received(self, buffer: Tensor) -> Self:
        index, width = index_dtype(self.length), self.kind.itemsize
        end = -(-self.length // 8) if self.bitmap else buffer.numel() // (index.itemsize + width) * index.itemsize
        # copies, as bytes may start where a wider type cannot be viewed
        values = buffer[end:].clone().view(self.kind).float()
        indices = _places(buffer[:end], index) if self.bitmap else buffer[:end].clone().view(index)
        return type(self)(values, indices, self.length, self.kind, self.bitmap)


@dataclass(frozen=True)
class Wire(Compressor[Any]):
    """What `inner` sends, coded. Goes inside error feedback, which then keeps what rounding takes away.

    A bitmap is shorter than 32-bit indices where more than one coordinate in 32 is sent.
    """

    inner: Compressor[Any]
    values: str = "float32"
    bitmap: bool = False

    def __post_init__(self) -> None:
        if self.values not in TYPES:
            raise ValueError(f"values must travel as one of {', '.join(TYPES)}, got {self.values!r}")

    @property
    def band(self) -> tuple[float, float] | None:
        return self.inner.band

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> Any:
        return self.inner.init(x, layout=layout, seed=seed)

    def compress(self, x: Tensor, state: Any) -> tuple[Payload, Any]:
        payload, state = self.inner.compress(x, state)
        return self._coded(payload), state

    def take(self, view: VectorView, state: Any) -> tuple[Payload, Any]:
        payload, state = self.inner.take(view, state)
        coded = self._coded(payload)
        assert view.residual is not None
        payload.add_to(view.residual)  # all back, and away with what is really sent
        coded.add_to(view.residual, alpha=-1.0)
        return coded, state

    def _coded(self, payload: Payload) -> Coded:
        if not isinstance(payload, Sparse) or isinstance(payload, Shared):
            raise ValueError(f"a wire format needs messages of values and indices, got {type(payload).__name__}")
        return Coded.coded(payload, TYPES[self.values], self.bitmap)

    def report(self, state: Any) -> dict[str, float]:
        return self.inner.report(state)


def _bits(indices: Tensor, numel: int) -> Tensor:
    """(ceil(numel / 8),) uint8, the lowest bit first."""
    bits = torch.zeros(-(-numel // 8), dtype=torch.uint8, device=indices.device)
    ones = torch.ones_like(indices, dtype=torch.uint8) << (indices % 8).to(torch.uint8)
    return bits.index_add_(0, indices // 8, ones)  # unique indices: adding sets bits


def _places(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """The ascending indices of the bits that are set. Looks closely only at bytes that are not zero."""
    filled = bits.nonzero().squeeze(1)
    eight = torch.arange(8, dtype=torch.uint8, device=bits.device)
    which = ((bits[filled].unsqueeze(1) >> eight) & 1).nonzero()
    return (filled[which[:, 0]] * 8 + which[:, 1]).to(dtype)
