"""Passes over memory: one contract, one file for each kind of device, chosen by the tensor's.

`reference` (torch) says what is meant and runs anywhere; `cpu` (numba) holds float32 to the speed of memory; `gpu`
(Triton) reads a vector on a GPU once for all sums, where torch would read it for each.
"""

from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from sidco.kernels import cpu, reference


def of(x: Tensor) -> ModuleType:
    """The kernels for a vector like `x` (n,)."""
    if x.is_cuda and x.dtype in (torch.float32, torch.float16, torch.bfloat16) and x.is_contiguous():
        return _of_a_gpu()
    fast = x.is_cpu and x.dtype == torch.float32 and x.is_contiguous() and x.numel() > 0
    return cpu if fast else reference


@cache
def _of_a_gpu() -> ModuleType:
    """Triton is imported where there is a GPU to compile for: not all builds of torch bring it."""
    try:
        from sidco.kernels import gpu
    except ImportError:
        return reference
    return gpu
