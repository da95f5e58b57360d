"""Top-k: exactly the k largest magnitudes, the yardstick of every sparsifier."""

from dataclasses import dataclass

from torch import Tensor

from sidco.compressor import Compressor, check_ratio, target_count
from sidco.kernels import reference
from sidco.payload import Payload, Sparse
from sidco.view import Layout


@dataclass(frozen=True)
class TopK(Compressor[None]):
    """Keeps the max(int(ratio n), 1) largest |x|, by torch.topk. Ties are broken as torch breaks them."""

    ratio: float

    def __post_init__(self) -> None:
        check_ratio(self.ratio)

    @property
    def band(self) -> tuple[float, float]:
        return 1.0, 1.0

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> None:
        return None

    def compress(self, x: Tensor, state: None) -> tuple[Payload, None]:
        return Sparse.of(*reference.largest(x, target_count(x.numel(), self.ratio)), x.numel()), None
