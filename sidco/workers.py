"""Who computes gradients and brings them together: the ranks of a DDP model, or W virtual workers in one process."""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from sidco.comm import Cost, Traffic, lockstep
from sidco.hook import Attachment, attach
from sidco.method import Method, NonFiniteGradient
from sidco.plan import Group, Plan


class Spent(NamedTuple):
    """Where the seconds of one backward went."""

    cost: Cost | None  # None: plain DDP, whose exchange cannot be told from its backward
    last_gradient: float | None  # `time.perf_counter` when the last gradient was there


class DDPWorkers:
    """This rank's share of a DDP model, with gradients reduced by `method`, or by plain DDP where it is None."""

    def __init__(self, model: nn.Module, method: Method[Any] | None, plan: Plan, *, seed: int) -> None:
        self.model = DDP(model)
        self._attachment: Attachment | None = None
        self._dense = Traffic()
        if method is not None:
            self._attachment = attach(self.model, method, plan=plan, seed=seed)

    def backward(self, losses: Sequence[Tensor]) -> Tensor:
        """Leaves the mean gradient of all ranks in the parameters; returns this rank's loss, detached."""
        (loss,) = losses  # one rank, one loss
        try:
            loss.backward()
        except RuntimeError as error:
            if self._attachment is not None and self._attachment.failure is not None:
                raise self._attachment.failure from error
            raise
        if self._attachment is None:
            self._count_dense()
        return loss.detach()

    def traffic(self) -> Traffic:
        """Counted since the start, for this rank."""
        return self._dense.copy() if self._attachment is None else self._attachment.traffic()

    def spent(self) -> Spent:
        """Of the backwards since the last call."""
        return Spent(None, None) if self._attachment is None else Spent(*self._attachment.take_cost())

    def report(self) -> dict[str, float]:
        """The method's own columns."""
        return {} if self._attachment is None else self._attachment.report()

    def replicas_agree(self) -> bool:
        """Do all ranks hold the same parameters, bit for bit?"""
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().data)
        digests: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(digests, digest.hexdigest())
        return len(set(digests)) == 1

    def _count_dense(self) -> None:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        nbytes, numel = sum(g.nbytes for g in grads), sum(g.numel() for g in grads)
        self._dense.count_all_reduce(nbytes, numel, dist.get_world_size())


class VirtualWorkers:
    """W workers in one process, in lockstep: what W ranks would do, for studies of accuracy. Never for timing.

    Parameters are shared, as replicas are equal; each worker has its own compressor state. Batch-norm statistics are
    updated by each worker's forward in turn, where DDP sends rank 0's to all.
    """

    def __init__(self, model: nn.Module, method: Method[Any], plan: Plan, *, world_size: int, seed: int) -> None:
        self.model = model
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

    def backward(self, losses: Sequence[Tensor]) -> Tensor:
        """Takes one loss a worker; leaves the mean gradient in the parameters; returns the losses, (W,), detached."""
        if len(losses) != len(self._traffic):
            raise ValueError(f"{len(self._traffic)} workers need a loss each, got {len(losses)}")
        names, parameters = list(self._parameters), list(self._parameters.values())
        every: list[dict[str, Tensor]] = []
        for loss in losses:
            grads = torch.autograd.grad(loss, parameters, allow_unused=True)
            pairs = zip(names, parameters, grads, strict=True)
            every.append({name: torch.zeros_like(p) if g is None else g for name, p, g in pairs})
        for group in self._groups:
            self._reduce(group, every)
        return torch.stack([loss.detach() for loss in losses])

    def traffic(self) -> Traffic:
        """What worker 0 would have sent since the start."""
        return self._traffic[0].copy()

    def _reduce(self, group: Group, every: list[dict[str, Tensor]]) -> None:
        members = [name for name, _ in group.layout]
        dialogues = [
            self._method.aggregate([grads[name] for name in members], state)
            for grads, state in zip(every, self._states[group.name], strict=True)
        ]
        try:
            results = lockstep(dialogues, self._traffic)
        except NonFiniteGradient as error:
            raise error.named(members) from None
        self._states[group.name] = [state for _, state in results]
        parts = results[0][0].split([shape.numel() for _, shape in group.layout])
        for (name, shape), part in zip(group.layout, parts, strict=True):
            self._parameters[name].grad = part.view(shape).to(self._parameters[name].dtype)
