"""What crosses the wire: a message that stands for a dense vector, knows its bytes and adds itself to a sum."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from sidco import kernels

INT32_MAX = 2**31 - 1


class Payload(ABC):
    """A message standing for a dense vector of `numel` values; `unpack(pack())` gives it back bit for bit."""

    summable: ClassVar[bool]  # may packed buffers be added on the wire, that is by an all-reduce?
    # are all ranks' buffers equally long, and begin with an int32 >= 0? Then no sizes are exchanged before them
    fixed: ClassVar[bool] = False

    @property
    @abstractmethod
    def numel(self) -> int:
        """Coordinates it stands for."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Coordinates sent."""

    @abstractmethod
    def pack(self) -> Tensor:
        """(m,) one contiguous buffer: what is sent, whole. Its `nbytes` are the bytes of the message."""

    @classmethod
    @abstractmethod
    def unpack(cls, buffer: Tensor, numel: int) -> Self:
        """The inverse of `pack`; the result may share memory with `buffer`."""

    def received(self, buffer: Tensor) -> Self:
        """The message `buffer` stands for, on a rank that sent this one: what all ranks know need not travel."""
        return type(self).unpack(buffer, self.numel)

    @abstractmethod
    def add_to(self, out: Tensor, alpha: float = 1.0) -> None:
        """out += alpha * self, where `out` is (numel,)."""

    @abstractmethod
    def clear(self, out: Tensor) -> None:
        """Zero the coordinates it carries in `out` (numel,): the masking of momentum correction."""


@dataclass(frozen=True)
class Dense(Payload):
    """Every coordinate, in the float type it travels in: the sum of two messages is the message of the sum."""

    values: Tensor  # (n,) float32, float16 or bfloat16
    summable: ClassVar[bool] = True

    @property
    def numel(self) -> int:
        return self.values.numel()

    @property
    def count(self) -> int:
        return self.values.numel()

    def pack(self) -> Tensor:
        return self.values

    @classmethod
    def unpack(cls, buffer: Tensor, numel: int) -> Self:
        return cls(buffer)

    def add_to(self, out: Tensor, alpha: float = 1.0) -> None:
        out.add_(self.values, alpha=alpha)

    def clear(self, out: Tensor) -> None:
        out.zero_()


@dataclass(frozen=True)
class Sparse(Payload):
    """k values with their places: 8 bytes a coordinate (12 where indices need 64 bits), nothing else.

    The buffer is [values | indices] as raw 32-bit words. Indices are never cast to a float type, where they are
    exact only to 2^24. There is no header: the length of the buffer tells k.
    """

    values: Tensor  # (k,) float32
    indices: Tensor  # (k,) ascending, unique; int32 while numel < 2^31, else int64
    length: int
    summable: ClassVar[bool] = False

    @classmethod
    def of(cls, values: Tensor, indices: Tensor, numel: int) -> Self:
        """From values of any float type and ascending indices of any integer type."""
        if values.dtype != torch.float32:  # asked first: a conversion to what it is costs as much as other steps here
            values = values.float()
        dtype = index_dtype(numel)
        return cls(values, indices if indices.dtype == dtype else indices.to(dtype), numel)

    @property
    def numel(self) -> int:
        return self.length

    @property
    def count(self) -> int:
        return self.values.numel()

    def pack(self) -> Tensor:
        return torch.cat([self.values.view(torch.int32), self.indices.view(torch.int32)])

    @classmethod
    def unpack(cls, buffer: Tensor, numel: int) -> Self:
        dtype = index_dtype(numel)
        words = 1 + dtype.itemsize // 4
        k, rest = divmod(buffer.numel(), words)
        if rest:
            raise ValueError(f"a sparse message has {words} words a coordinate, got {buffer.numel()} words")
        indices = buffer[k:]
        if dtype == torch.int64:  # its words may start at an address that int64 cannot be viewed at
            indices = indices.clone()
        return cls(buffer[:k].view(torch.float32), indices.view(dtype), numel)

    def validate(self) -> None:
        """Raise unless indices are unique, ascending and in range: what a receiver may check of a stranger."""
        k = self.count
        if self.indices.numel() != k:
            raise ValueError(f"{k} values with {self.indices.numel()} indices: a message needs one each")
        if not k:
            return
        if k > 1 and not bool((self.indices[1:] > self.indices[:-1]).all()):
            raise ValueError("indices must be unique and ascending")
        first, last = int(self.indices[0]), int(self.indices[-1])
        if first < 0 or last >= self.numel:
            raise ValueError(f"indices must lie in [0, {self.numel}), got {first} to {last}")

    def add_to(self, out: Tensor, alpha: float = 1.0) -> None:
        kernels.of(out).scatter_add_(out, self.indices, self.values, alpha)

    def clear(self, out: Tensor) -> None:
        out[self.indices.long()] = 0


@dataclass(frozen=True)
class Shared(Sparse):
    """Values at places that every rank knows: 4 bytes a coordinate, and messages may be summed on the wire."""

    summable: ClassVar[bool] = True

    def pack(self) -> Tensor:
        return self.values

    @classmethod
    def unpack(cls, buffer: Tensor, numel: int) -> Self:
        raise TypeError("the places are not in the buffer: ask a message that knows them, by received(buffer)")

    def received(self, buffer: Tensor) -> Self:
        return type(self)(buffer, self.indices, self.length)


@dataclass(frozen=True)
class Signs(Payload):
    """scale * sign, a bit a coordinate: four bytes of scale, then ceil(n/8) bytes, lowest bit first.

    Zero counts as positive; a vector of zeros has scale 0 and stays one.
    """

    scale: Tensor  # (1,) float32
    bits: Tensor  # (ceil(n/8),) uint8
    length: int
    summable: ClassVar[bool] = False

    @classmethod
    def of(cls, x: Tensor) -> Self:
        """mean|x| sign(x)."""
        n = x.numel()
        positive = torch.zeros(-(-n // 8) * 8, dtype=torch.uint8, device=x.device)
        positive[:n] = x >= 0
        places = torch.arange(8, dtype=torch.uint8, device=x.device)
        bits = (positive.view(-1, 8) << places).sum(1, dtype=torch.uint8)
        mean = x.abs().double().sum() / max(n, 1)
        return cls(mean.float().view(1), bits, n)

    @property
    def numel(self) -> int:
        return self.length

    @property
    def count(self) -> int:
        return self.length

    def pack(self) -> Tensor:
        return torch.cat([self.scale.view(torch.uint8), self.bits])

    @classmethod
    def unpack(cls, buffer: Tensor, numel: int) -> Self:
        return cls(buffer[:4].clone().view(torch.float32), buffer[4:], numel)

    def add_to(self, out: Tensor, alpha: float = 1.0) -> None:
        places = torch.arange(8, dtype=torch.uint8, device=self.bits.device)
        positive = ((self.bits.unsqueeze(1) >> places) & 1).view(-1)[: self.length]
        out.add_((positive.to(out.dtype) * 2 - 1) * self.scale.to(out.dtype), alpha=alpha)

    def clear(self, out: Tensor) -> None:
        out.zero_()


def index_dtype(numel: int) -> torch.dtype:
    """int32 while it can name every coordinate."""
    return torch.int32 if numel <= INT32_MAX else torch.int64


def mean_of(payloads: Sequence[Payload], out: Tensor) -> Tensor:
    """THE aggregation: the mean of what all ranks sent, written to `out` (n,) in rank order, so bits are the same
    on every rank. Counts may differ per rank.
    """
    out.zero_()
    for payload in payloads:
        payload.add_to(out, 1.0 / len(payloads))
    return out
