"""What changes how a compressor is used, as compressors that wrap one."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sidco.compressor import Compressor
from sidco.payload import Payload
from sidco.view import Layout


class FeedbackState(NamedTuple):
    residual: Tensor  # (n,) float32: what was not sent yet
    inner: Any


@dataclass(frozen=True)
class ErrorFeedback(Compressor[FeedbackState]):
    """Sends C(residual + x) and keeps the rest: sum of sent + residual = sum of x, also where the wire rounds.

    In gradient space: x is the gradient, not the step, so a change of learning rate does not rescale old residuals.
    Source: EF-SGD (Karimireddy et al., ICML 2019; Stich et al., NeurIPS 2018). The only error feedback in here.
    Costs: reads 2n, writes n for the sum; the compressor; writes k.
    """

    inner: Compressor[Any]

    @property
    def band(self) -> tuple[float, float] | None:
        return self.inner.band

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> FeedbackState:
        residual = torch.zeros(x.numel(), dtype=torch.float32, device=x.device)
        return FeedbackState(residual, self.inner.init(x, layout=layout, seed=seed))

    def compress(self, x: Tensor, state: FeedbackState) -> tuple[Payload, FeedbackState]:
        residual = state.residual.add_(x)
        payload, inner = self.inner.compress(residual, state.inner)
        payload.add_to(residual, alpha=-1.0)
        return payload, FeedbackState(residual, inner)

    def report(self, state: FeedbackState) -> dict[str, float]:
        return self.inner.report(state.inner)
