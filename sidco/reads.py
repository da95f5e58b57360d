"""How often the host reads what a device computes: on a GPU each time its queue runs empty, on a CPU it is free."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


def _to_the_host(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return str(kwargs.get("device")) == "cpu"


def _by_a_mask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) for part in args[1])


def _always(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


# operations whose result, or the size of it, is decided by values
BY_VALUE = (
    "_local_scalar_dense",  # item(), and int(), float(), bool() of a tensor
    "nonzero", "masked_select", "unique_consecutive", "_unique2", "unique_dim", "repeat_interleave", "bincount",
    "equal",
)  # fmt: skip
READS: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], bool]] = {
    **{getattr(aten, name): _always for name in BY_VALUE},
    aten._to_copy: _to_the_host,
    aten.index: _by_a_mask,
    aten.index_put: _by_a_mask,
    aten.index_put_: _by_a_mask,
}


class HostReads(TorchDispatchMode):
    """Inside it, on this thread, `count` goes up with each operation of torch that makes the host wait for a device.

    Seen whatever the device is, so what a GPU will do can be tested on a CPU. Not seen: compiled kernels (Triton's
    launch and return), and `tolist` of a tensor on a CPU: who means to read a vector writes `.to("cpu", copy=True)`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        reads = READS.get(func.overloadpacket)
        self.count += reads is not None and reads(args, kwargs)
        return func(*args, **kwargs)
