"""Which gradients are reduced together. Groups are named and fixed once: state survives DDP's bucket rebuilds."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from sidco.view import Layout


class Group(NamedTuple):
    """Tensors compressed as one vector, in this order."""

    name: str
    layout: Layout

    @property
    def numel(self) -> int:
        return sum(shape.numel() for _, shape in self.layout)

    def seed(self, base: int) -> int:
        """A seed of its own, the same on all ranks: not from hash(), which differs between processes."""
        return base * 2**32 + int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4])


class Plan(ABC):
    """Partitions the parameters. Subclasses are frozen dataclasses."""

    @abstractmethod
    def groups(self, layout: Layout) -> tuple[Group, ...]:
        """Every tensor of `layout` (in the order of `named_parameters`) in exactly one group."""


@dataclass(frozen=True)
class WholeModel(Plan):
    """One vector for the whole model, as SIDCo's authors do it: nothing is sent before backward has ended."""

    def groups(self, layout: Layout) -> tuple[Group, ...]:
        return (Group("model", layout),)


@dataclass(frozen=True)
class PerParameter(Plan):
    """A vector for each tensor: the finest overlap, the most messages."""

    def groups(self, layout: Layout) -> tuple[Group, ...]:
        return tuple(Group(name, ((name, shape),)) for name, shape in layout)


@dataclass(frozen=True)
class SizeCapped(Plan):
    """Groups of up to `mib` MiB of float32, last parameters first, as backward goes: exchange overlaps it.

    A tensor larger than the cap is a group of its own.
    """

    mib: float = 25.0

    def __post_init__(self) -> None:
        if not self.mib > 0:
            raise ValueError(f"mib must be a size above 0, got {self.mib!r}")

    def groups(self, layout: Layout) -> tuple[Group, ...]:
        groups: list[list[tuple[str, int]]] = []
        cap, filled = self.mib * 2**20, 0
        found = dict(layout)
        for name, shape in reversed(layout):
            size = 4 * shape.numel()
            if not groups or filled + size > cap:
                groups.append([])
                filled = 0
            groups[-1].append((name, size))
            filled += size
        return tuple(
            Group(f"capped{i}:{members[0][0]}", tuple((name, found[name]) for name, _ in members))
            for i, members in enumerate(groups)
        )
