"""On which links a compressor pays, worked out from bytes and milliseconds.

A step takes what computing takes, what compressing takes, and its bits over the rate of the link. Compression saves
bits and costs time of its own, so it pays while

    rate < (baseline's bits - sent bits) / (compress + mean - the baseline's own compress + mean).

Nothing overlaps, and a message costs nothing but its bits: see the limits that `break_even_text` prints.
"""

from math import inf, isnan, nan
from typing import NamedTuple

from experiments.text import NOTHING


class BreakEven(NamedTuple):
    """On which links a compressor pays against a baseline."""

    side: str  # below | above the rate; any: on every link; never: on none
    rate: float  # Mb/s

    @property
    def text(self) -> str:
        if self.side in ("below", "above"):
            return f"{self.side} {said(self.rate)}"
        return {"any": "on any link", "never": "never", "": NOTHING}[self.side]

    def pays(self, rate: float) -> bool:
        """On a link of that many Mb/s."""
        return {"any": True, "below": rate < self.rate, "above": rate > self.rate}.get(self.side, False)


def break_even(saved_bytes: float, overhead_ms: float) -> BreakEven:
    """Of a step that sends so many bytes less than the baseline's, and takes so many milliseconds more beside it."""
    if isnan(saved_bytes) or isnan(overhead_ms):
        return BreakEven("", nan)
    if saved_bytes >= 0 and overhead_ms <= 0:
        return BreakEven("any", inf)
    if saved_bytes <= 0 and overhead_ms >= 0:
        return BreakEven("never", 0.0)
    rate = 8e-3 * saved_bytes / overhead_ms  # bytes over milliseconds -> Mb/s
    return BreakEven("below" if saved_bytes > 0 else "above", rate)


def modelled_speedup(
    compute_ms: float, baseline_bytes: float, sent_bytes: float, overhead_ms: float, rate: float
) -> float:
    """The baseline's step over the compressor's, on a link of `rate` Mb/s."""
    on_wire = 8e-3 / rate  # ms a byte
    return (compute_ms + baseline_bytes * on_wire) / (compute_ms + overhead_ms + sent_bytes * on_wire)


def said(rate: float) -> str:
    """A rate for people."""
    return f"{rate / 1000:.3g} Gb/s" if rate >= 1000 else f"{rate:.3g} Mb/s"
