"""What an exchange costs: bytes on the network, and seconds."""

from dataclasses import dataclass


@dataclass
class Traffic:
    """What one rank put on the network, counted from the buffers really handed over."""

    payload_bytes: int = 0  # its own messages
    sent_bytes: int = 0  # what leaves its interface for them: padding, sizes, and every hop of a ring
    coordinates: int = 0  # coordinates its messages carry
    collectives: int = 0

    def minus(self, other: "Traffic") -> "Traffic":
        """What came on top of `other`, an earlier reading."""
        return Traffic(*(getattr(self, name) - getattr(other, name) for name in Traffic.__dataclass_fields__))

    def copy(self) -> "Traffic":
        return self.minus(Traffic())

    def count_all_reduce(self, nbytes: int, coordinates: int, world_size: int) -> None:
        """A ring: each rank sends every chunk but its own twice around, 2 (W-1)/W n bytes."""
        self._add(nbytes, round(2 * (world_size - 1) / world_size * nbytes), coordinates)

    def count_all_gather(self, nbytes: int, sent: int, coordinates: int) -> None:
        """`sent`: what this rank really sent, its own blocks and those it passed on, sizes included."""
        self._add(nbytes, sent, coordinates)

    def _add(self, payload: int, sent: int, coordinates: int) -> None:
        self.payload_bytes += payload
        self.sent_bytes += sent
        self.coordinates += coordinates
        self.collectives += 1


@dataclass
class Cost:
    """Seconds that one dialogue, or several, spent with whom."""

    compress: float = 0.0  # before the last collective
    exchange: float = 0.0  # in collectives, waiting for the slowest rank included
    mean: float = 0.0  # after the last collective

    def add(self, other: "Cost") -> None:
        self.compress += other.compress
        self.exchange += other.exchange
        self.mean += other.mean
