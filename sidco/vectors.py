"""Vectors to hold compressors against: distributions gradients resemble, and the edges that have broken others."""

from functools import lru_cache

import torch
from torch import Tensor


def samples(n: int, seed: int) -> dict[str, Tensor]:
    """(n,) float32 vectors of the distributions gradients are compared with, scaled to about 1e-3."""
    return {name: x.clone() for name, x in _drawn(n, seed).items()}


@lru_cache(maxsize=256)  # a battery asks for the same ones for every compressor
def _drawn(n: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(n, generator=generator, dtype=torch.float64) - 0.5
    normal = torch.randn(5, n, generator=generator, dtype=torch.float64)
    signs = torch.where(torch.rand(n, generator=generator) < 0.5, -1.0, 1.0)
    vectors = {
        "laplace": -uniform.sign() * torch.log1p(-2 * uniform.abs()),
        "double_gamma": signs * normal[0] ** 2,  # the square of a normal is gamma of shape 1/2
        "student_t": normal[1] / (normal[2:5] ** 2).mean(0).sqrt(),  # 3 degrees of freedom
        "normal": normal[0],
    }
    return {name: (1e-3 * x).float() for name, x in vectors.items()}


def edge_vectors() -> dict[str, Tensor]:
    """Vectors that have broken compressors, all of them legal."""
    spike = torch.zeros(1000)
    spike[617] = -3.0
    mostly_zero = torch.zeros(10_000)
    mostly_zero[::1000] = torch.linspace(-1, 1, 10)
    two = torch.ones(1000)
    two[::7] = -2.0
    return {
        "empty": torch.empty(0),
        "one element": torch.tensor([0.5]),
        "ten elements": torch.linspace(-1, 1, 10),
        "zeros": torch.zeros(1000),
        "one spike": spike,
        "ones": torch.ones(1000),
        "constant 0.1": torch.full((1000,), -0.1),
        "two values": two,
        "99.9 % zeros": mostly_zero,
        "denormals": torch.linspace(-1, 1, 1001) * 1e-40,
        "a constant denormal": torch.full((1000,), 1e-40),
        "huge": torch.linspace(-1, 1, 1001) * 1e30,
        "a huge constant": torch.full((1000,), -1e30),
        "bfloat16": torch.randn(5000, generator=torch.Generator().manual_seed(3)).bfloat16(),
        "float16": torch.randn(5000, generator=torch.Generator().manual_seed(4)).half(),
    }
