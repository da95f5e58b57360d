"""Small jobs of one node at the same time: `slots` of them, one for each rank (one for all virtual workers of a job).

Where there are GPUs a slot is a GPU, and a job's ranks see those of its slots only. On CPUs the cores are shared out by
slots instead, and jobs still disturb each other's times through caches, memory and the kernel: use slots there for
accuracy, never for a table of times. A job that had a part of the node says so in its env.json (`shared_node`).
"""

import os
from collections.abc import Callable, Hashable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from threading import Event, Lock
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from experiments.build import ConfigError

T = TypeVar("T")


class Seat(NamedTuple):
    """What of the node a job has."""

    slots: tuple[int, ...] | None = None  # None: all of it
    of: int = 0  # slots of the node
    devices: tuple[str, ...] = ()  # as CUDA_VISIBLE_DEVICES names them, one a slot
    stop: Event | None = None  # set: the job shall end
    alone: AbstractContextManager[Any] = nullcontext()  # held while fetching data, which no two jobs may do at once

    def facts(self) -> dict[str, Any]:
        """For env.json. Whether another job did run beside it is not known yet: `shared_node` says that one could."""
        return {
            "slots": None if self.slots is None else list(self.slots),
            "shared_node": self.slots is not None and len(self.slots) < self.of,
        }

    def variables(self, first: int, count: int) -> dict[str, str]:
        """Of `count` ranks from the job's `first` on: their own devices, so that LOCAL_RANK counts within those, and
        their part of the cores, whoever sits beside them.
        """
        if self.slots is None:
            return {}
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(filter(None, self.devices[first : first + count])),
            "SIDCO_RANKS_HERE": str(self.of),
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self.of)),
        }

    def port(self, port: int | None) -> int | None:
        """A rendezvous of the job's own, where a port was asked for."""
        return port if port is None or self.slots is None else port + self.slots[0]


class Ticket(NamedTuple, Generic[T]):
    """A job that waits for slots."""

    number: int  # its place in the sweep
    needs: int
    key: Hashable  # no two of the same run at once: the second then finds what the first has made
    run: Callable[[Seat], T]  # in a thread: what else it touches must be safe there


class Pool(Generic[T]):
    """Runs tickets as slots become free, in order, but for those whose twin is running.

    One thread a job waits for its ranks; all else happens in the thread that calls `add` and `wait`, so neither
    `began` nor `ended` needs a lock.
    """

    def __init__(self, slots: int, began: Callable[[int], None], ended: Callable[[int, T], None]) -> None:
        """Raises ConfigError where the node has fewer GPUs than `slots`."""
        self.slots, self._devices = slots, _devices(slots)
        self._began, self._ended = began, ended
        self._free = list(range(slots))
        self._waiting: list[Ticket[T]] = []
        self._running: dict[Future[T], tuple[Ticket[T], tuple[int, ...]]] = {}
        self._threads = ThreadPoolExecutor(slots)
        self._stop, self._alone = Event(), Lock()

    def add(self, ticket: Ticket[T]) -> None:
        """Never waits. Raises ConfigError for a job that could never start."""
        if ticket.needs > self.slots:
            raise ConfigError(
                f"the job needs {ticket.needs} slots, one for each of workers.world_size={ticket.needs}, but there are "
                f"slots={self.slots}: set workers.world_size to {self.slots} or less, or leave slots out"
            )
        self._waiting.append(ticket)
        self._advance(timeout=0)

    def wait(self) -> None:
        """Until all have run."""
        while self._running or self._waiting:
            self._advance(timeout=None)

    def stop(self) -> None:
        """End what runs, forget what waits; returns when no rank is left."""
        self._waiting.clear()
        self._stop.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for future, (ticket, _) in self._running.items():
            if not future.cancelled() and future.exception() is None:  # it was done before it heard
                self._ended(ticket.number, future.result())
        self._running.clear()

    def _advance(self, timeout: float | None) -> None:
        done, _ = wait(self._running, timeout, FIRST_COMPLETED)
        for future in done:
            ticket, slots = self._running.pop(future)
            self._free = sorted([*self._free, *slots])
            self._ended(ticket.number, future.result())
        for ticket in tuple(self._waiting):
            if any(ticket.key == other.key for other, _ in self._running.values()):
                continue
            if ticket.needs > len(self._free):
                break  # nobody overtakes for want of slots: a large job would wait for ever
            self._waiting.remove(ticket)
            self._start(ticket)

    def _start(self, ticket: Ticket[T]) -> None:
        slots, self._free = tuple(self._free[: ticket.needs]), self._free[ticket.needs :]
        seat = Seat(slots, self.slots, tuple(self._devices[slot] for slot in slots), self._stop, self._alone)
        self._running[self._threads.submit(ticket.run, seat)] = (ticket, slots)
        self._began(ticket.number)


def _devices(slots: int) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES calls each slot's GPU. Where there is none, slots are numbered all the same."""
    if slots < 1:
        raise ConfigError(f"slots must be null or at least 1, got {slots}")
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named == "":
        return ("",) * slots  # GPUs are hidden on purpose, and stay so
    known = named.split(",") if named else [str(i) for i in range(torch.cuda.device_count() or slots)]
    if len(known) < slots:
        whose = f"CUDA_VISIBLE_DEVICES={named} names" if named else "this node has"
        raise ConfigError(f"slots={slots} wants a GPU for each slot, but {whose} {len(known)}: set slots={len(known)}")
    return tuple(known[:slots])
