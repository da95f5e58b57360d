"""The optimizer as recipes want it: the learning rate as a pure function of progress, weight decay where it belongs."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What the learning rate is multiplied by in each step: nothing to checkpoint, and a resumed run goes on exactly.

    Over the first `warmup` epochs it rises linearly, step by step, from one step's share to the whole. From each of
    `milestones` (epochs) on it is multiplied by `gamma`; after each epoch it is divided by `divisor`. With `scaled` the
    run counts as `recipe_epochs` epochs however long it is, so that all of these keep their share of it. With `to_zero`
    it falls linearly from the end of the warm-up to zero at the end of the run, which ends best where epochs are few.

    Source: warm-up as Goyal et al., Accurate, Large Minibatch SGD (arXiv 1706.02677), sec. 2.2, but from zero; the
    linear fall: Li et al., Budgeted Training (ICLR 2020, arXiv 1905.04753).
    """

    warmup: float = 0.0
    milestones: Sequence[float] = ()
    gamma: float = 0.1
    divisor: float = 1.0
    recipe_epochs: float | None = None
    scaled: bool = False
    to_zero: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))  # a list in a yaml file
        rising = all(0 < a < b for a, b in itertools.pairwise([*self.milestones, math.inf]))
        for name, wanted, fits in (
            ("warmup", "at least 0 epochs", self.warmup >= 0),
            ("milestones", "rising numbers of epochs above 0", rising),
            ("gamma", "in (0, 1]", 0 < self.gamma <= 1),
            ("divisor", "at least 1", self.divisor >= 1),
            ("recipe_epochs", "null or above 0", self.recipe_epochs is None or self.recipe_epochs > 0),
            ("scaled", "false where recipe_epochs is null", not self.scaled or self.recipe_epochs is not None),
        ):
            if not fits:
                raise ValueError(f"schedule.{name} must be {wanted}, got {getattr(self, name)}")

    def factor(self, done: int, per_epoch: int, total: int) -> float:
        """Of the step after `done` steps; `per_epoch` of them are an epoch, `total` the run."""
        epochs, steps = (self.recipe_epochs or 1, total) if self.scaled else (1, per_epoch)
        epoch, after = done * epochs / steps, (done + 1) * epochs / steps  # exact at whole epochs: one rounding
        rise = min(1.0, after / self.warmup) if self.warmup else 1.0
        if self.to_zero:
            whole = total * epochs / steps
            rise *= max(0.0, min(1.0, (whole - epoch) / max(whole - self.warmup, 1e-9)))
        return rise * self.gamma ** sum(epoch >= start for start in self.milestones) / self.divisor ** int(epoch)

    def __str__(self) -> str:
        """What a row of a table says of it."""
        parts = [f"{self.warmup:g} warm-up epochs"] if self.warmup else []
        if self.milestones:
            parts.append(f"x{self.gamma:g} at epochs {' '.join(f'{start:g}' for start in self.milestones)}")
        if self.divisor != 1:
            parts.append(f"/{self.divisor:g} an epoch")
        if self.to_zero:
            parts.append("then linearly to 0")
        scaled = f" (of {self.recipe_epochs:g}, scaled to the run)" if self.scaled else ""
        return f"{', '.join(parts)}{scaled}" if parts else "constant"


def groups(module: nn.Module, decay_1d: bool) -> list[dict[str, Any]]:
    """The parameters as an optimizer takes them: without `decay_1d`, those of one dimension (biases, normalisation) are
    a group of their own that weight decay leaves alone.
    """
    parameters = list(module.parameters())
    if decay_1d:
        return [{"params": parameters}]
    return [
        {"params": [p for p in parameters if p.dim() > 1]},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]


def set_rates(optimizer: torch.optim.Optimizer, rates: Sequence[float], factor: float) -> None:
    """The learning rate of each group: what it was at the start, `rates`, times the factor."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor
