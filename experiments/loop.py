"""Training as it is timed: the same steps for every compressor, and one line of record for each."""

import itertools
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from experiments.capture import captured
from experiments.data import Batch, Dataset
from experiments.tasks import Task
from sidco.compressor import target_count
from sidco.workers import Workers, weights_sha256

LOSSES = 5  # steps the last loss is a mean over


class Book(Protocol):
    """Where a training is written down."""

    @property
    def folder(self) -> Path:
        """Of the job."""
        ...

    @property
    def rank(self) -> int: ...

    def log(self, step: int, **scalars: float | None) -> None:
        """A timed step."""
        ...

    def quality(self, points: list[dict[str, float]]) -> None:
        """All qualities measured so far."""
        ...

    def save(self, step: int, state: dict[str, Any]) -> None:
        """A checkpoint."""
        ...


class Diverged(RuntimeError):
    """The loss or the gradient is no longer a number: training has failed, the harness has not."""


@dataclass
class Trainer:
    """The training of the workers that this process plays, step by step."""

    workers: Workers
    task: Task
    dataset: Dataset
    optimizer: torch.optim.Optimizer
    training: dict[str, Any]  # the configuration's group of that name
    shares: tuple[int, ...]  # which of the W workers: a rank plays its own, a process of virtual workers all
    world_size: int
    seed: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    done: int = 0  # steps
    seconds: float = 0.0  # that they took, without what lies between them
    carries: list[Any] = field(init=False)
    losses: list[float] = field(default_factory=list)  # of all steps
    points: list[dict[str, float]] = field(default_factory=list)  # step, epoch, seconds, metric_value: on the way

    def __post_init__(self) -> None:
        self.carries = [None] * len(self.shares)

    def run(self, book: Book, ratio: float | None) -> dict[str, Any]:
        """Excluded steps, timed steps, then steps without exchange; returns what the summary says of them."""
        excluded, last = self.training["excluded_steps"], self.training["excluded_steps"] + self.training["steps"]
        streams = [self.batches(share) for share in self.shares]
        per_epoch = self.dataset.steps_per_epoch(self.world_size, self.training["batch_per_rank"])
        while self.done < last:
            with self.capture(book):
                row = self.step(streams, ratio)
            self.seconds += 1e-3 * row["step_ms"]
            row |= {"epoch": self.done / per_epoch, "seconds": self.seconds}
            self.losses.append(row["loss"])
            if self.done >= excluded:
                book.log(self.done, **row)
            self.done += 1
            if self.due("evaluate_every"):
                point = {"step": self.done, "epoch": self.done / per_epoch, "seconds": self.seconds}
                self.points.append(point | self.quality())
                book.quality(self.points)
            if self.due("checkpoint_every") and self.done < last:
                book.save(self.done, self.state_dict())
        quality = self.quality() if self.training["valid_batches"] else {"metric_value": None}
        # before the last steps, which part replicas
        agree, weights = self.workers.replicas_agree(), weights_sha256(self.workers.module)
        compute = [self.compute_only(streams[0]) for _ in range(self.training["compute_only_steps"])]
        return {
            "units_per_step_per_rank": self.task.count(next(streams[0])),
            "unit": self.task.unit,
            "loss_first": self.losses[0],
            "loss_last": sum(self.losses[-LOSSES:]) / len(self.losses[-LOSSES:]),
            "metric": self.task.metric,
            **quality,
            **self.task.summary(self.carries),
            **self.to_target(),
            "replicas_agree": agree,
            "weights_sha256": weights,
            "compute_only_ms": 1e3 * sorted(compute)[len(compute) // 2] if compute else None,
        }

    def capture(self, book: Book) -> AbstractContextManager[None]:
        """What goes around this step: on rank 0, it may be one whose gradient is kept."""
        if self.done not in self.training["capture_steps"] or book.rank:
            return nullcontext()
        return captured(self.workers.module, book.folder / "captures" / f"step{self.done}.npy")

    def due(self, key: str) -> bool:
        """Is it this step's turn for what happens every so many steps?"""
        return bool(self.training[key]) and self.done % self.training[key] == 0

    def to_target(self) -> dict[str, float | None]:
        """When the target was first reached, by the seconds of steps alone; None: never, or no target."""
        target = self.training["target"]
        reached = (
            point for point in self.points
            if target is not None
            and (point["metric_value"] >= target if self.task.higher_is_better else point["metric_value"] <= target)
        )  # fmt: skip
        first = next(reached, None)
        return {
            "target": target,
            "seconds_to_target": first["seconds"] if first else None,
            "steps_to_target": first["step"] if first else None,
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step depends on: plain containers, loadable with `weights_only=True`."""
        return {
            "done": self.done,
            "seconds": self.seconds,
            "losses": self.losses,
            "points": self.points,
            "carries": self.carries,
            "model": self.workers.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "workers": self.workers.state_dict(),
            "random_state": torch.get_rng_state(),
            "gpu_random_state": torch.cuda.get_rng_state() if self.device.type == "cuda" else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse: the steps that follow are those that would have followed, bit for bit."""
        self.done, self.seconds, self.losses = state["done"], state["seconds"], list(state["losses"])
        self.points, self.carries = list(state["points"]), list(state["carries"])
        self.workers.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.workers.load_state_dict(state["workers"])
        torch.set_rng_state(state["random_state"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["gpu_random_state"], self.device)

    def batches(self, share: int) -> Iterator[Batch]:
        """Epoch after epoch without end, from where training stands."""
        size = self.training["batch_per_rank"]
        epoch, skipped = divmod(self.done, self.dataset.steps_per_epoch(self.world_size, size))
        for number in itertools.count(epoch):
            stream = self.dataset.train_batches(share, self.world_size, size, number, self.seed)
            yield from itertools.islice(stream, skipped if number == epoch else 0, None)

    def step(self, streams: list[Iterator[Batch]], ratio: float | None) -> dict[str, Any]:
        """One step, its batches included, and its record: times in milliseconds, bytes and density of one worker."""
        before, start = self.workers.traffic(), time.perf_counter()
        if self.training["step_space"]:
            (self.workers.scale,) = {
                group["lr"] for group in self.optimizer.param_groups
            }  # one rate, or there is no step space
        value = self.workers.backward(self.forward_all(streams)).mean().item()
        reduced = time.perf_counter()
        cost, last_gradient = self.workers.spent()
        self.update(value)
        end = time.perf_counter()
        sent = self.workers.traffic().minus(before)
        numel = sum(p.numel() for p in self.workers.module.parameters() if p.requires_grad)
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
        }

    def forward_all(self, streams: list[Iterator[Batch]]) -> Iterator[Tensor]:
        """The losses of this process's workers, each computed when it is asked for."""
        for place, stream in enumerate(streams):
            loss, self.carries[place] = self.forward(next(stream), self.carries[place])
            yield loss

    def forward(self, batch: Batch, carry: Any) -> tuple[Tensor, Any]:
        """Loss and carried state, with the options that pay on some CPUs."""
        inputs, *others = (part.to(self.device) for part in batch)
        if self.training["channels_last"] and inputs.dim() == 4:
            inputs = inputs.to(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.bfloat16) if self.training["autocast"] else nullcontext():
            return self.task.loss(self.workers.model, (inputs, *others), carry)

    def update(self, loss: float) -> None:
        """Clip the averaged gradient, step, forget it. A value that is no number stops the job before the update."""
        parameters = [p for p in self.workers.module.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if not math.isfinite(loss) or not math.isfinite(norm.item()):
            raise Diverged(f"loss {loss}, norm of the averaged gradient {norm.item()}")
        limit = None if self.training["local_clip"] else self.training["clip_norm"]
        if limit is not None:
            nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def compute_only(self, stream: Iterator[Batch]) -> float:
        """Seconds of a step whose gradients stay at home: replicas part here, so it comes last."""
        start = time.perf_counter()
        with self.workers.no_exchange():
            loss, _ = self.forward(next(stream), None)
            loss.backward()
        self.update(loss.item())
        return time.perf_counter() - start

    def quality(self) -> dict[str, float]:
        """On the first validation batches: the task's metric as `metric_value`, what it measures beside it by name."""
        count = self.training["valid_batches"]
        batches = itertools.islice(self.dataset.valid_batches(self.training["batch_per_rank"]), count)
        here = (tuple(part.to(self.device) for part in batch) for batch in batches)
        found = self.task.evaluate(self.workers.module, here)
        return {"metric_value": found.pop(self.task.metric), **found}
