"""Round after round, every compressor once: what disturbs the machine disturbs all alike."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from experiments.bench.clock import Clock, Scratch, calm, read
from experiments.bench.plan import Plan
from experiments.bench.subjects import ADD, TOPK, Subject
from experiments.build import build
from sidco.compressor import target_count
from sidco.payload import Payload, mean_of

LEAST, LEAST_ROUNDS = 5, 10  # of warm-up calls and of rounds, whatever they take: SIDCo adapts every five calls
RANKS = 2  # messages that a mean is taken of, where messages cannot be summed on the wire
COLD, HOT = "cold", "hot"


class Timed(NamedTuple):
    """One call, in seconds."""

    compress: float
    pack: float
    mean: float
    sent: int  # coordinates
    nbytes: int  # of the message


class Runner:
    """A compressor on one vector: its state goes from call to call, as in a training."""

    def __init__(self, subject: Subject, out: Tensor, clock: Clock) -> None:
        """`out` (numel,) is scratch, shared by all."""
        self.subject = subject
        self.warmed = 0  # calls before the first timed one
        self.counts: list[int] = []  # coordinates sent, of every call
        self.numel = out.numel()
        self._out, self._clock, self._compressor = out, clock, build(subject.node)
        self._state = self._compressor.init(out)

    def compress(self, x: Tensor) -> tuple[Payload, float]:
        """The message and the seconds it took."""
        (payload, self._state), seconds = self._clock.time(lambda: self._compressor.compress(x, self._state))
        self.counts.append(payload.count)
        return payload, seconds

    def call(self, x: Tensor) -> Timed:
        """Compress, pack, and the mean as a rank takes it of what all have sent."""
        payload, compress = self.compress(x)
        buffer, pack = self._clock.time(payload.pack)
        received = [payload.received(buffer) for _ in range(1 if payload.summable else RANKS)]
        _, mean = self._clock.time(lambda: mean_of(received, self._out))
        return Timed(compress, pack, mean, payload.count, buffer.nbytes)

    def report(self) -> dict[str, float]:
        return self._compressor.report(self._state)

    def warm_up(self, gradients: Sequence[Tensor], plan: Plan) -> None:
        """What reports on its state (SIDCo: its stages) has one that must settle: it is given all the calls."""
        settles, end = bool(self.report()), time.monotonic() + plan.warmup_seconds
        while self.warmed < plan.warmup and (settles or self.warmed < LEAST or time.monotonic() < end):
            self.compress(gradients[self.warmed % len(gradients)])
            self.warmed += 1
        self.call(gradients[self.warmed % len(gradients)])  # pack and mean have a first time too
        self.warmed += 1


def measure(
    subjects: Sequence[Subject], gradients: Sequence[Tensor], caches: Sequence[str], plan: Plan, clock: Clock,
    scratch: Scratch,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row for each compressor and each of `caches`, at one vector and one ratio."""
    out = gradients[0].new_zeros(gradients[0].numel())
    runners = [Runner(subject, out, clock) for subject in subjects]
    for runner in runners:
        runner.warm_up(gradients, plan)
    ways = {COLD: lambda runner, place: _cold(runner, gradients, place, scratch),
            HOT: lambda runner, place: _hot(runner, gradients, place)}  # fmt: skip
    return [row for cache in caches for row in _rows(runners, _rounds(runners, ways[cache], plan), cache)]


def _cold(runner: Runner, gradients: Sequence[Tensor], place: int, scratch: Scratch) -> Timed:
    """Nothing is in cache: neither the gradient, nor the residual, nor what is left of the compressor before."""
    scratch.evict()
    calm()
    return runner.call(gradients[place % len(gradients)])


def _hot(runner: Runner, gradients: Sequence[Tensor], place: int) -> Timed:
    """Whatever the cache can hold is in there: the residual by a call before, the gradient by having been read."""
    runner.compress(gradients[2 * place % len(gradients)])
    x = gradients[(2 * place + 1) % len(gradients)]
    read(x)
    calm()
    return runner.call(x)


def _rounds(runners: Sequence[Runner], way: Callable[[Runner, int], Timed], plan: Plan) -> dict[int, list[Timed]]:
    """By the runner's place, one entry a round."""
    samples, end, done = defaultdict(list), time.monotonic() + plan.round_seconds, 0
    while done < plan.rounds and (done < LEAST_ROUNDS or time.monotonic() < end):
        for number, runner in enumerate(runners):
            samples[number].append(way(runner, done))
        done += 1
    return samples


def _rows(runners: Sequence[Runner], samples: dict[int, list[Timed]], cache: str) -> list[dict[str, Any]]:
    names = [(runner.subject.compressor, runner.subject.as_jobs) for runner in runners]
    add, topk = (_seconds(samples[names.index((name, True))]) for name in (ADD, TOPK))
    return [{"cache": cache, **_row(runner, samples[i], add, topk)} for i, runner in enumerate(runners)]


def _row(runner: Runner, timed: Sequence[Timed], add: np.ndarray, topk: np.ndarray) -> dict[str, Any]:
    """Ratios are those of each round, and only then their median is taken. k_hat / k is that of all calls after the
    first half of the warm-up: a controller that goes to and fro shows only over several of its periods.
    """
    subject, numel, seconds = runner.subject, runner.numel, _seconds(timed)
    target = None if subject.ratio is None else target_count(numel, subject.ratio)
    counts, settled = np.array([one.sent for one in timed]), runner.counts[runner.warmed // 2 :]
    return {
        "compressor": subject.compressor, "memory": subject.memory, "as_jobs": subject.as_jobs,
        "warmup_calls": runner.warmed, "rounds": len(timed),
        **_spread("compress_ms", 1e3 * seconds),
        **_spread("pack_ms", [1e3 * one.pack for one in timed]),
        **_spread("mean_ms", [1e3 * one.mean for one in timed]),
        **_spread("times_add", seconds / add),
        **_spread("speedup_topk", topk / seconds),
        "density": counts.mean() / numel,
        "target": target,
        "khat_over_k": target and float(np.mean(settled)) / target,
        "khat_calls": len(settled),
        "khat_over_k_timed": target and counts.mean() / target,
        "khat_over_k_all": target and float(np.mean(runner.counts)) / target,
        "message_bytes": float(np.mean([one.nbytes for one in timed])),
        "stages": runner.report().get("stages"),
    }  # fmt: skip


def _seconds(timed: Sequence[Timed]) -> np.ndarray:
    return np.array([one.compress for one in timed])


def _spread(name: str, values: Any) -> dict[str, float]:
    low, middle, high = np.quantile(values, [0.2, 0.5, 0.8])
    return {f"{name}_median": middle, f"{name}_p20": low, f"{name}_p80": high}
