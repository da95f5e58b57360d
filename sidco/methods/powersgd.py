"""PowerSGD: each matrix of gradients as a product of two thin ones, by one step of the power method."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sidco.kernels import reference
from sidco.method import AllReduce, Dialogue, Method, NonFiniteGradient
from sidco.view import Layout


class PowerState(NamedTuple):
    residuals: tuple[Tensor, ...]  # per compressed tensor, (n, m) float32: what this rank has not seen applied
    factors: tuple[Tensor, ...]  # Q of the last step, (m, r): the warm start, the same on all ranks


@dataclass(frozen=True)
class PowerSGD(Method[PowerState]):
    """M = gradient + residual; P = mean(M Q), made orthonormal; Q = mean(M^T P); applied is P Q^T, and what differs
    from it stays as this rank's residual.

    Two all-reduces a step, of 4 r (n + m) bytes a matrix. A tensor of more than two dimensions is the matrix of its
    first against the rest. One-dimensional tensors, and those where the factors are not `min_rate` times smaller,
    travel whole with the first. Orthonormal by QR, safe where a gradient is zero (Gram-Schmidt divides 0 by 0).
    Law: mean of applied + mean of residuals = mean of gradients, summed over steps.
    Source: PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019), algorithm 1 and 2; equal to
    torch.distributed's powerSGD_hook for the same first Q, to rounding.
    """

    rank: int = 1
    min_rate: float = 2.0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank!r}")

    def init(self, x: Tensor, *, layout: Layout, seed: int) -> PowerState:
        generator = torch.Generator().manual_seed(seed % 2**63)
        shapes = [_matrix(shape) for _, shape in layout if self._pays(shape)]
        return PowerState(
            tuple(torch.zeros(n, m, device=x.device) for n, m in shapes),
            tuple(torch.randn(m, self._rank(n, m), generator=generator).to(x.device) for n, m in shapes),
        )

    def aggregate(
        self, grads: Sequence[Tensor], state: PowerState, *, scale: float = 1.0, out: Tensor | None = None
    ) -> Dialogue[PowerState]:
        pays = [self._pays(grad.shape) for grad in grads]
        whole = [grad.float().reshape(-1) * scale for grad, yes in zip(grads, pays, strict=True) if not yes]
        compressed = [grad for grad, yes in zip(grads, pays, strict=True) if yes]
        matrices = [
            torch.add(residual, grad.reshape(residual.shape), alpha=scale)
            for grad, residual in zip(compressed, state.residuals, strict=True)
        ]
        lefts = [matrix @ orthonormal(q) for matrix, q in zip(matrices, state.factors, strict=True)]
        first = yield from _mean([*whole, *lefts])
        whole, lefts = first[: len(whole)], [orthonormal(p) for p in first[len(whole) :]]
        rights: list[Tensor] = []
        if lefts:
            rights = yield from _mean([m.T @ p for m, p in zip(matrices, lefts, strict=True)])
        applied = [p @ q.T for p, q in zip(lefts, rights, strict=True)]
        residuals = tuple(matrix.sub_(done) for matrix, done in zip(matrices, applied, strict=True))
        sources = (iter(whole), iter(applied))
        mean = [next(sources[yes]).reshape(-1) for yes in pays]
        return torch.cat(mean, out=out), PowerState(residuals, tuple(rights))

    def _pays(self, shape: torch.Size) -> bool:
        if len(shape) < 2:
            return False
        n, m = _matrix(shape)
        return (n + m) * self._rank(n, m) * self.min_rate < n * m

    def _rank(self, n: int, m: int) -> int:
        return min(self.rank, n, m)


def orthonormal(matrix: Tensor) -> Tensor:
    """(n, r) whose columns are orthonormal and span those of `matrix`; of zeros, the first unit vectors."""
    return torch.linalg.qr(matrix).Q


def _matrix(shape: torch.Size) -> tuple[int, int]:
    return shape[0], shape[1:].numel()


def _mean(parts: Sequence[Tensor]) -> Generator[AllReduce, Any, list[Tensor]]:
    """The mean over ranks of all parts, in one all-reduce. Raises on all ranks where one sent no number."""
    buffer = torch.cat([part.reshape(-1) for part in parts])
    reduced = yield AllReduce(buffer, buffer.numel(), "mean")
    if not reference.finite(reduced):
        bad = tuple(i for i, part in enumerate(parts) if not reference.finite(part))
        raise NonFiniteGradient("a rank's gradient is not finite" + (", this one's" if bad else ""))
    pieces = reduced.split([part.numel() for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]
