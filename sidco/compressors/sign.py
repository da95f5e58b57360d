"""EF-SignSGD: one bit a coordinate and one scale."""

from dataclasses import dataclass

from torch import Tensor

from sidco.compressor import Compressor
from sidco.payload import Payload, Signs
from sidco.view import Layout


@dataclass(frozen=True)
class ScaledSign(Compressor[None]):
    """C(x) = mean|x| sign(x), with sign(0) = +1: n/8 bytes and four for the scale.

    A contraction with a = ||x||_1^2 / (n ||x||_2^2), so it wants error feedback.
    Source: EF-SignSGD (Karimireddy et al., ICML 2019). Gathered and averaged, where the paper takes one worker.
    """

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> None:
        return None

    def compress(self, x: Tensor, state: None) -> tuple[Payload, None]:
        return Signs.of(x.float()), None
