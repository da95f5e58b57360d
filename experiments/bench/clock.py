"""Seconds of a call, also where the call only queues its work; and caches that are known to be cold."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
PAUSE = 0.003  # seconds: OpenMP's threads spin for about one
UNKNOWN_CACHE = 64 << 20  # bytes taken for the last-level cache where the system does not say


def _nothing() -> None:
    """A CPU has done its work when a call returns."""


@dataclass(frozen=True)
class Clock:
    """Times one call at a time. `settle` waits until a device has nothing left to do."""

    settle: Callable[[], None] = _nothing
    now: Callable[[], float] = time.perf_counter

    @classmethod
    def of(cls, device: torch.device) -> "Clock":
        """An asynchronous device is waited for before and after."""
        return cls() if device.type == "cpu" else cls(partial(torch.accelerator.synchronize, device))

    def time(self, call: Callable[[], T]) -> tuple[T, float]:
        """(what the call returned, its seconds): nothing of what was queued before, all of what it queues."""
        self.settle()
        start = self.now()
        result = call()
        self.settle()
        return result, self.now() - start


def cache_bytes(device: torch.device) -> int:
    """Of the last cache before memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    found = [path.read_text().strip() for path in CACHES.glob("index*/size")]
    sizes = [
        int(match[1]) << {"K": 10, "M": 20}[match[2]] for size in found if (match := re.match(r"(\d+)([KM])", size))
    ]
    return max(sizes, default=UNKNOWN_CACHE)


class Scratch:
    """A buffer twice as large as the last-level cache: once it has been read, nothing else is left in there.

    Read, not written: lines that are still to be written back would be charged to the call that follows.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._buffer = torch.ones(2 * nbytes // 4, device=device)  # of zeros, all pages would be one

    def evict(self) -> None:
        read(self._buffer)


def read(x: Tensor) -> None:
    """Bring `x` to the cache, on a CPU by one thread alone: see `calm`."""
    if x.device.type == "cpu":
        x.numpy().sum()
    else:
        x.sum().item()


def calm() -> None:
    """Let idle threads go to sleep. torch and numba have pools of their own, whose workers spin for a while when they
    have nothing to do: on as many cores as threads, what one pool did last would slow down what the other does next.
    """
    time.sleep(PAUSE)
