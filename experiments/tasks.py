"""What a model is trained for: its loss, its quality and the unit its throughput is counted in."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.data import Batch


class Task(Protocol):
    """What training needs to know of a benchmark besides its model and its data."""

    metric: ClassVar[str]
    higher_is_better: ClassVar[bool]
    unit: ClassVar[str]  # of throughput: what `count` counts

    def loss(self, model: nn.Module, batch: Batch, carry: Any) -> tuple[Tensor, Any]:
        """Mean loss (0-d) and the detached state to carry into the next batch; None starts afresh."""
        ...

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """`metric`, and others beside it, over all batches, in evaluation mode; the model's mode is restored."""
        ...

    def summary(self, carries: Sequence[Any]) -> dict[str, float]:
        """What the carried states of a process's workers say of its training, by name."""
        ...

    def count(self, batch: Batch) -> int:
        """Units in a batch."""
        ...


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """No gradients, no dropout, frozen batch statistics; afterwards as before."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def mean(total: Tensor, count: int) -> Tensor:
    if count == 0:
        raise ValueError("evaluate: expected at least one batch, got none; the validation set is too small")
    return total / count


@dataclass(frozen=True)
class LanguageModel:
    """Predict the next word; hidden state is carried from window to window, gradients are not.

    Perplexity = exp of the mean negative log likelihood per word, in nats.
    """

    metric: ClassVar[str] = "perplexity"
    higher_is_better: ClassVar[bool] = False
    unit: ClassVar[str] = "words"

    def loss(self, model: nn.Module, batch: Batch, carry: Any) -> tuple[Tensor, Any]:
        tokens, targets = batch  # (T, B), (T, B)
        logits, (hidden, cell) = model(tokens, carry)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), (hidden.detach(), cell.detach())

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        total, words, carry = torch.zeros((), dtype=torch.float64), 0, None
        with evaluating(model):
            for batch in batches:
                loss, carry = self.loss(model, batch, carry)
                total += loss.double().cpu() * self.count(batch)
                words += self.count(batch)
        # not math.exp, which raises where a diverged model's is infinite
        return {self.metric: mean(total, words).exp().item()}

    def summary(self, carries: Sequence[Any]) -> dict[str, float]:
        return {}

    def count(self, batch: Batch) -> int:
        return batch[1].numel()


@dataclass(frozen=True)
class Classification:
    """One label an image; top-1 accuracy in per cent."""

    metric: ClassVar[str] = "top1"
    higher_is_better: ClassVar[bool] = True
    unit: ClassVar[str] = "samples"

    def loss(self, model: nn.Module, batch: Batch, carry: None) -> tuple[Tensor, None]:
        images, labels = batch  # (B, C, H, W), (B,)
        return F.cross_entropy(model(images), labels), None

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        right, samples = torch.zeros((), dtype=torch.float64), 0
        with evaluating(model):
            for images, labels in batches:
                right += (model(images).argmax(dim=1) == labels).sum().cpu()
                samples += len(labels)
        return {self.metric: 100 * mean(right, samples).item()}

    def summary(self, carries: Sequence[Any]) -> dict[str, float]:
        return {}

    def count(self, batch: Batch) -> int:
        return len(batch[1])
