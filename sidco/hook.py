"""The public two lines: `attach` makes a DistributedDataParallel model reduce its gradients by a method.

    model = DDP(model)
    attach(model, Gathered(ErrorFeedback(Sidco(0.001, Exponential(), Exponential()))))

No `from __future__ import annotations` here: DDP inspects the hook's annotations and wants classes, not strings.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel as DDP

from sidco.attachment import Attachment
from sidco.method import Method
from sidco.plan import Plan, WholeModel

_FORWARDER = "_sidco_forwarder"


class _Forwarder:
    """What DDP holds for life, as a hook can be registered only once. Without an attachment: the plain mean."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.attachment: Attachment | None = None


def _hook(state: _Forwarder, bucket: GradBucket) -> Future[Tensor]:
    if state.attachment is not None:
        return state.attachment.deliver(bucket)
    buffer = bucket.buffer().mul_(1.0 / dist.get_world_size(state.group))
    done = cast(Any, dist.all_reduce(buffer, group=state.group, async_op=True)).get_future()
    return done.then(lambda _: buffer)  # the buffer from the closure: a future's own value differs between backends


def attach(
    model: DDP,
    method: Method[Any],
    *,
    plan: Plan | None = None,
    seed: int = 0,
    group: dist.ProcessGroup | None = None,
    timeout: timedelta = timedelta(minutes=10),
) -> Attachment:
    """From now on `model` reduces its gradients by `method`, group by group of `plan` (default: the model as a whole).

    Call it on all ranks, before the first backward. `seed` is for randomness that ranks share. Exchanges run on
    `group`, which nothing else may use meanwhile; default: a new one of the model's ranks with that `timeout`.
    Raises ValueError if ranks disagree on method, plan, seed or parameters; RuntimeError if already attached.
    """
    if not isinstance(model, DDP):
        raise TypeError(
            f"attach wants a DistributedDataParallel model, got {type(model).__name__}: wrap it in DDP first"
        )
    sparse = [name for name, m in model.module.named_modules() if getattr(m, "sparse", False)]
    if sparse:
        raise ValueError(
            f"{', '.join(sparse)} gives sparse gradients, which would be compressed twice: set sparse=False"
        )
    forwarder = getattr(model, _FORWARDER, None)
    if forwarder is None:
        forwarder = _Forwarder(cast(Any, model.process_group))
        try:
            model.register_comm_hook(forwarder, cast(Callable[[object, GradBucket], Future[Tensor]], _hook))
        except RuntimeError as error:
            raise RuntimeError(
                "the model has another comm hook, and DDP takes one for life: wrap it in DDP anew"
            ) from error
        setattr(model, _FORWARDER, forwarder)
    if forwarder.attachment is not None:
        raise RuntimeError("the model has an attachment: call its detach() first")
    if group is None:
        group = _new_group(model, timeout)
    leave = partial(setattr, forwarder, "attachment", None)
    forwarder.attachment = Attachment(model.module, method, plan or WholeModel(), seed, cast(Any, group), leave)
    return forwarder.attachment


def _new_group(model: DDP, timeout: timedelta) -> dist.ProcessGroup:
    """DDP's own is no good: it uses it during backward, for unused parameters and buffers."""
    ranks = dist.get_process_group_ranks(model.process_group)
    local = len(ranks) < dist.get_world_size()  # then the other ranks are not here to take part
    return cast(dist.ProcessGroup, dist.new_group(ranks, timeout=timeout, use_local_synchronization=local))
