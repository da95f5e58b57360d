"""States as plain containers and back: what a checkpoint may hold and `torch.load(weights_only=True)` accepts."""

from typing import Any

from torch import Tensor


def plain(state: Any) -> Any:
    """NamedTuples as tuples, all the way down; tensors are not copied."""
    return tuple(plain(part) for part in state) if isinstance(state, tuple) else state


def restored(saved: Any, like: Any) -> Any:
    """The inverse of `plain`, in the types and on the devices of `like`. Raises ValueError where the shapes differ."""
    if not isinstance(like, tuple):
        return saved.to(like.device) if isinstance(like, Tensor) else saved
    parts = [restored(part, old) for part, old in zip(saved, like, strict=True)]
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
