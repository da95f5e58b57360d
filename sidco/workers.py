"""Who computes gradients and brings them together: the ranks of a DDP model, or W virtual workers in one process."""

import hashlib
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from sidco.comm import lockstep
from sidco.hook import Attachment, attach
from sidco.method import Method, NonFiniteGradient
from sidco.plan import Group, Plan
from sidco.state import plain, restored
from sidco.traffic import Cost, Traffic


class Spent(NamedTuple):
    """Where the seconds of one backward went."""

    cost: Cost | None  # None: plain DDP, whose exchange cannot be told from its backward, and virtual workers
    last_gradient: float | None  # `time.perf_counter` when the last gradient was there


class Workers(Protocol):
    """What a training loop asks of them."""

    model: nn.Module  # what a loss is computed with
    scale: float  # of the gradients while they are compressed: the learning rate keeps error feedback in step space

    @property
    def module(self) -> nn.Module:
        """The model itself, without what makes it distributed."""
        ...

    def backward(self, losses: Iterable[Tensor]) -> Tensor:
        """Leaves the mean gradient of all workers in the parameters; returns the losses of those played here, (w,)."""
        ...

    def traffic(self) -> Traffic:
        """Counted since the start, for one worker."""
        ...

    def spent(self) -> Spent:
        """Of the backwards since the last call."""
        ...

    def report(self) -> dict[str, float]:
        """The method's own columns."""
        ...

    def host_reads(self) -> int | None:
        """Of this rank in a step's exchange: on a GPU the host waits each time. None: it was not counted."""
        ...

    def no_exchange(self) -> AbstractContextManager[Any]:
        """Inside it, gradients stay where they are."""
        ...

    def replicas_agree(self) -> bool:
        """Do all replicas hold the same parameters, bit for bit?"""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What the next backward depends on beside the model, loadable with `weights_only=True`."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DDPWorkers(Workers):
    """This rank's share of a DDP model, with gradients reduced by `method`, or by plain DDP where it is None."""

    def __init__(self, model: nn.Module, method: Method[Any] | None, plan: Plan, *, seed: int) -> None:
        self.model = self._ddp = DDP(model, gradient_as_bucket_view=True)  # spares two copies of each gradient
        self.scale = 1.0
        self._attachment: Attachment | None = None
        self._dense = Traffic()
        if method is not None:
            self._attachment = attach(self._ddp, method, plan=plan, seed=seed)

    @property
    def module(self) -> nn.Module:
        return self._ddp.module

    def backward(self, losses: Iterable[Tensor]) -> Tensor:
        (loss,) = losses  # one rank, one loss
        if self._attachment is not None:
            self._attachment.scale = self.scale
        try:
            loss.backward()
        except RuntimeError as error:
            if self._attachment is not None and self._attachment.failure is not None:
                raise self._attachment.failure from error
            raise
        if self._attachment is None:
            self._count_dense()
        return loss.detach().view(1)

    def traffic(self) -> Traffic:
        return self._dense.copy() if self._attachment is None else self._attachment.traffic()

    def spent(self) -> Spent:
        return Spent(None, None) if self._attachment is None else Spent(*self._attachment.take_cost())

    def report(self) -> dict[str, float]:
        return {} if self._attachment is None else self._attachment.report()

    def host_reads(self) -> int | None:
        return None if self._attachment is None else self._attachment.host_reads()

    def no_exchange(self) -> AbstractContextManager[Any]:
        return self._ddp.no_sync()

    def replicas_agree(self) -> bool:
        digests: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(digests, weights_sha256(self.module))
        return len(set(digests)) == 1

    def state_dict(self) -> dict[str, Any]:
        return {} if self._attachment is None else self._attachment.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._attachment is not None:
            self._attachment.load_state_dict(state)

    def _count_dense(self) -> None:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        nbytes, numel = sum(g.nbytes for g in grads), sum(g.numel() for g in grads)
        self._dense.count_all_reduce(nbytes, numel, dist.get_world_size())


class VirtualWorkers(Workers):
    """W workers in one process, in lockstep: what W ranks would do, for studies of accuracy. Never for timing.

    Parameters are shared, as replicas are equal; each worker has its own compressor state. Batch-norm statistics are
    updated by each worker's forward in turn, where DDP sends rank 0's to all.
    """

    def __init__(self, model: nn.Module, method: Method[Any], plan: Plan, *, world_size: int, seed: int) -> None:
        self.model = model
        self.scale = 1.0
        self._world_size = world_size
        self._method = method
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._groups = plan.groups(tuple((name, p.shape) for name, p in self._parameters.items()))
        self._traffic = [Traffic() for _ in range(world_size)]
        device = next(iter(self._parameters.values())).device
        self._states = {
            group.name: [
                method.init(torch.zeros(group.numel, device=device), layout=group.layout, seed=group.seed(seed))
                for _ in range(world_size)
            ]
            for group in self._groups
        }

    @property
    def module(self) -> nn.Module:
        return self.model

    def backward(self, losses: Iterable[Tensor]) -> Tensor:
        """Takes one loss a worker; each is asked for when the graph of the one before is gone."""
        names, parameters = list(self._parameters), list(self._parameters.values())
        every: list[dict[str, Tensor]] = []
        values: list[Tensor] = []
        used: set[str] = set()
        for loss in losses:
            grads = torch.autograd.grad(loss, parameters, allow_unused=True)
            pairs = list(zip(names, parameters, grads, strict=True))
            used.update(name for name, _, grad in pairs if grad is not None)
            every.append({name: torch.zeros_like(p) if g is None else g for name, p, g in pairs})
            values.append(loss.detach())
        if len(every) != self._world_size:
            raise ValueError(f"{self._world_size} workers need a loss each, got {len(every)}")
        for group in self._groups:
            self._reduce(group, every)
        for name in self._parameters.keys() - used:
            self._parameters[name].grad = None  # as DDP: what no worker used is left alone, whatever a message says
        return torch.stack(values)

    def traffic(self) -> Traffic:
        """What worker 0 would have sent."""
        return self._traffic[0].copy()

    def spent(self) -> Spent:
        return Spent(None, None)

    def report(self) -> dict[str, float]:
        """Of worker 0, averaged over groups."""
        reports = [self._method.report(states[0]) for states in self._states.values()]
        return {key: sum(r[key] for r in reports) / len(reports) for key in reports[0]}

    def host_reads(self) -> int | None:
        return None

    def no_exchange(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def replicas_agree(self) -> bool:
        return True

    def state_dict(self) -> dict[str, Any]:
        return {name: plain(tuple(states)) for name, states in self._states.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.keys() != self._states.keys():
            raise ValueError(f"these workers have the groups {sorted(self._states)}, the state has {sorted(state)}")
        self._states = {name: list(restored(state[name], tuple(like))) for name, like in self._states.items()}

    def _reduce(self, group: Group, every: list[dict[str, Tensor]]) -> None:
        members = [name for name, _ in group.layout]
        dialogues = [
            self._method.aggregate([grads[name] for name in members], state, scale=self.scale)
            for grads, state in zip(every, self._states[group.name], strict=True)
        ]
        try:
            results = lockstep(dialogues, self._traffic)
        except NonFiniteGradient as error:
            raise error.named(members) from None
        self._states[group.name] = [state for _, state in results]
        parts = results[0][0].split([shape.numel() for _, shape in group.layout])
        for (name, shape), part in zip(group.layout, parts, strict=True):
            grad = part.view(shape).to(self._parameters[name].dtype)
            self._parameters[name].grad = grad if self.scale == 1.0 else grad.div_(self.scale)


def weights_sha256(model: nn.Module) -> str:
    """Of all parameters, bit for bit, in the order of their names."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
