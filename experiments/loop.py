"""Training as it is timed: the same steps for every compressor, and one line of record for each."""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from experiments.data import Batch, Dataset
from experiments.tasks import Task
from sidco.compressor import target_count
from sidco.workers import DDPWorkers

Log = Callable[..., None]


class Diverged(RuntimeError):
    """The loss or the gradient is no longer a number: training has failed, the harness has not."""


@dataclass
class Trainer:
    """One rank's training, step by step."""

    workers: DDPWorkers
    task: Task
    dataset: Dataset
    optimizer: torch.optim.Optimizer
    training: dict[str, Any]  # the configuration's group of that name
    rank: int
    world_size: int
    seed: int

    def run(self, log: Log, ratio: float | None) -> dict[str, Any]:
        """Excluded steps, timed steps, then steps without exchange; returns what the summary says of them."""
        excluded, timed = self.training["excluded_steps"], self.training["steps"]
        stream, carry, losses = self.batches(), None, []
        for step in range(excluded + timed):
            row, carry = self.step(stream, carry, ratio)
            losses.append(row["loss"])
            if step >= excluded:
                log(step, **row)
        quality = self.quality()
        agree = self.workers.replicas_agree()  # before the last steps, which part them
        compute = [self.compute_only(stream) for _ in range(self.training["compute_only_steps"])]
        return {
            "units_per_step_per_rank": self.task.count(next(stream)),
            "unit": self.task.unit,
            "loss_first": losses[0],
            "loss_last": sum(losses[-5:]) / len(losses[-5:]),
            "metric": self.task.metric,
            "metric_value": quality,
            "replicas_agree": agree,
            "compute_only_ms": 1e3 * sorted(compute)[len(compute) // 2] if compute else None,
        }

    def batches(self) -> Iterator[Batch]:
        """Epoch after epoch without end. A new epoch of text starts with the hidden state of the last: one window."""
        for epoch in itertools.count():
            yield from self.dataset.train_batches(
                self.rank, self.world_size, self.training["batch_per_rank"], epoch, self.seed
            )

    def step(self, stream: Iterator[Batch], carry: Any, ratio: float | None) -> tuple[dict[str, Any], Any]:
        """One step, its batch included, and its record: times in milliseconds, bytes and density of this rank."""
        before, start = self.workers.traffic(), time.perf_counter()
        loss, carry = self.forward(next(stream), carry)
        value = self.workers.backward([loss]).item()
        reduced = time.perf_counter()
        cost, last_gradient = self.workers.spent()
        self.update(value)
        end = time.perf_counter()
        sent = self.workers.traffic().minus(before)
        numel = sum(p.numel() for p in self.workers.model.parameters() if p.requires_grad)
        return {
            "loss": value,
            "ratio": ratio,
            "density": sent.coordinates / numel,
            "khat_over_k": None if ratio is None else sent.coordinates / target_count(numel, ratio),
            **self.workers.report(),
            "payload_bytes": sent.payload_bytes,
            "sent_bytes": sent.sent_bytes,
            "collectives": sent.collectives,
            "step_ms": 1e3 * (end - start),
            "forward_backward_ms": 1e3 * ((last_gradient or reduced) - start),
            "compress_ms": None if cost is None else 1e3 * cost.compress,
            "exchange_ms": None if cost is None else 1e3 * cost.exchange,
            "mean_ms": None if cost is None else 1e3 * cost.mean,
            "exposed_ms": None if last_gradient is None else 1e3 * (reduced - last_gradient),
            "optimizer_ms": 1e3 * (end - reduced),
        }, carry

    def forward(self, batch: Batch, carry: Any) -> tuple[Tensor, Any]:
        """Loss and carried state, with the options that pay on some CPUs."""
        if self.training["channels_last"] and batch[0].dim() == 4:
            batch = (batch[0].to(memory_format=torch.channels_last), batch[1])
        with torch.autocast("cpu", torch.bfloat16) if self.training["autocast"] else nullcontext():
            return self.task.loss(self.workers.model, batch, carry)

    def update(self, loss: float) -> None:
        """Clip the averaged gradient, step, forget it. A value that is no number stops the job before the update."""
        parameters, limit = list(self.workers.model.parameters()), self.training["clip_norm"]
        norm = nn.utils.clip_grad_norm_(parameters, limit or math.inf)
        if not math.isfinite(loss) or not math.isfinite(norm.item()):
            raise Diverged(f"loss {loss}, norm of the averaged gradient {norm.item()}")
        self.optimizer.step()
        self.optimizer.zero_grad()

    def compute_only(self, stream: Iterator[Batch]) -> float:
        """Seconds of a step whose gradients stay at home: replicas part here, so it comes last."""
        start = time.perf_counter()
        with self.workers.model.no_sync():
            loss, _ = self.forward(next(stream), None)
            loss.backward()
        self.update(loss.item())
        return time.perf_counter() - start

    def quality(self) -> float | None:
        """The task's metric on the first validation batches: beside a speed, not a result of training."""
        count = self.training["valid_batches"]
        if not count:
            return None
        batches = self.dataset.valid_batches(self.training["batch_per_rank"])
        return self.task.evaluate(self.workers.model.module, itertools.islice(batches, count))
