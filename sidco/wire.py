"""How sparse messages travel: the type of their values, and places as indices or as a bit for each coordinate."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sidco.compressor import Compressor, target_count
from sidco.kernels import reference
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
    def coded(cls, payload: Sparse, kind: torch.dtype, bitmap: bool, *more: Any) -> Self:
        most = torch.finfo(kind).max
        rounded = payload.values.clamp(-most, most).to(kind).float()
        return cls(rounded, payload.indices, payload.length, kind, bitmap, *more)

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
class Fixed(Coded):
    """A message that is always as long: [count | places | values], with room for `capacity` coordinates."""

    capacity: int
    fixed: ClassVar[bool] = True

    def pack(self) -> Tensor:
        spare = self.capacity - self.count
        parts = (
            torch.tensor([self.count], dtype=torch.int32, device=self.values.device),
            _bits(self.indices, self.length) if self.bitmap else _padded(self.indices, spare),
            _padded(self.values.to(self.kind), spare),
        )
        return torch.cat([part.view(torch.uint8) for part in parts])

    def received(self, buffer: Tensor) -> Self:
        index = index_dtype(self.length)
        k = int(buffer[:4].clone().view(torch.int32))  # where a GPU's host waits
        if not 0 <= k <= self.capacity:
            raise ValueError(f"a message with room for {self.capacity} coordinates says it has {k}")
        rest = buffer[4:]
        end = -(-self.length // 8) if self.bitmap else self.capacity * index.itemsize
        places = _places(rest[:end], index) if self.bitmap else rest[:end].clone().view(index)[:k]
        values = rest[end:].clone().view(self.kind).float()[:k]
        return type(self)(values, places, self.length, self.kind, self.bitmap, self.capacity)


@dataclass(frozen=True)
class Wire(Compressor[Any]):
    """What `inner` sends, coded. Goes inside error feedback, which then keeps what rounding takes away.

    A bitmap is shorter than 32-bit indices where more than one coordinate in 32 is sent. With a `capacity` messages
    have room for ceil(capacity k) coordinates, k the target, and need no exchange of sizes; of more than that the
    largest are sent.
    """

    inner: Compressor[Any]
    values: str = "float32"
    bitmap: bool = False
    capacity: float | None = None

    def __post_init__(self) -> None:
        if self.values not in TYPES:
            raise ValueError(f"values must travel as one of {', '.join(TYPES)}, got {self.values!r}")
        if self.capacity is None:
            return
        if self.capacity < 1:
            raise ValueError(f"capacity must be null or at least 1 (times the target), got {self.capacity!r}")
        if not hasattr(self.inner, "ratio"):
            raise ValueError(f"a capacity needs a compressor with a ratio of its own, got {self.inner!r}")

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
        kind = TYPES[self.values]
        if self.capacity is None:
            return Coded.coded(payload, kind, self.bitmap)
        n = payload.numel
        room = min(n, math.ceil(self.capacity * target_count(n, self.inner.ratio)))  # pyright: ignore
        if payload.count > room:
            values, places = reference.largest(payload.values, room)
            payload = Sparse.of(values, payload.indices[places], n)
        return Fixed.coded(payload, kind, self.bitmap, room)

    def report(self, state: Any) -> dict[str, float]:
        return self.inner.report(state)


def _padded(x: Tensor, spare: int) -> Tensor:
    return torch.cat([x, x.new_zeros(spare)])


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
