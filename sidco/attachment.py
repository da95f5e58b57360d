"""A method at work on a DDP model.

DDP's buckets only deliver gradients. Named groups are fixed once; a group is reduced when its last gradient has
arrived; a bucket's future completes when its groups have. So state belongs to names, and survives the bucket rebuild
after the first backward, where DDP permutes the parameters inside a bucket.
"""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.futures import Future

from sidco.comm import Ranks, agree, drive
from sidco.method import Method, NonFiniteGradient
from sidco.plan import Group, Plan
from sidco.reads import HostReads
from sidco.state import plain, restored
from sidco.traffic import Cost, Traffic
from sidco.view import Layout


def _value(future: Future[Tensor]) -> Tensor:
    return future.value()


def _fail(future: Future[Tensor], error: BaseException) -> None:
    future.set_exception(cast(Any, error))  # typed as if it took a result


class _Reduction:
    """One group in one step: its gradients as they arrive, and the futures that wait for it."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.grads: dict[str, Tensor] = {}
        self.buckets: list[_Bucket] = []


class _Bucket:
    """One bucket in one step: done when all groups that have a gradient in it are."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.future: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        self.waits_for = 0


class Attachment:
    """A method at work on a model: its state, its traffic, its cost. Made by `attach`."""

    def __init__(
        self,
        model: nn.Module,  # the one inside DDP
        method: Method[Any],
        plan: Plan,
        seed: int,
        group: dist.ProcessGroup,
        leave: Callable[[], None],  # from then on DDP does without it
    ) -> None:
        self._method, self._leave = method, leave
        self._names = {p: name for name, p in model.named_parameters() if p.requires_grad}
        self._device = next(iter(self._names)).device
        layout: Layout = tuple((name, p.shape) for p, name in self._names.items())
        self._groups = plan.groups(layout)
        self._home = {name: group for group in self._groups for name, _ in group.layout}
        agree(f"{method!r} {plan!r} seed {seed}", layout, group)
        self._comm = Ranks(group)
        self._states = {group.name: self._init(group, seed) for group in self._groups}
        self.scale = 1.0  # of what is compressed: with the learning rate, memories hold steps and not gradients
        self._buffers: dict[str, Tensor] = {}  # one a group, kept: pages fresh from the system are dear
        self._open: dict[str, _Reduction] = {}
        self._cost = Cost()
        self._reads = HostReads()
        self._last_delivery = 0.0
        self._queue: queue.SimpleQueue[_Reduction | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="sidco-comm", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> BaseException | None:
        """What ended the exchanges. DDP's backward then raises a RuntimeError with its words, not the thing itself."""
        return self._failure

    def traffic(self) -> Traffic:
        """Counted since `attach`, for this rank."""
        return self._comm.traffic.copy()

    def take_cost(self) -> tuple[Cost, float]:
        """Seconds spent since the last call, and the moment (`time.perf_counter`) the last gradient arrived."""
        cost, self._cost = self._cost, Cost()
        return cost, self._last_delivery

    def host_reads(self) -> int:
        """In the first exchange of each group since `attach`: how often the host had to wait for what it reads."""
        return self._reads.count

    def report(self) -> dict[str, float]:
        """The method's own columns, averaged over groups."""
        reports = [self._method.report(state) for state in self._states.values()]
        return {key: sum(r[key] for r in reports) / len(reports) for key in reports[0]}

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step depends on, by group name: plain containers, loadable with `weights_only=True`."""
        return {name: plain(state) for name, state in self._states.items()}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """The inverse of `state_dict`, for the same method, plan and parameters."""
        if states.keys() != self._states.keys():
            raise ValueError(
                f"this attachment has the groups {sorted(self._states)}, the state has {sorted(states)}: "
                "use the plan and the model it was saved with"
            )
        self._states = {name: restored(states[name], like) for name, like in self._states.items()}

    def detach(self) -> None:
        """Back to DDP's plain mean. The model can be attached again."""
        self._leave()
        self._queue.put(None)
        self._thread.join()

    def _init(self, group: Group, seed: int) -> Any:
        like = torch.zeros(group.numel, device=self._device)
        return self._method.init(like, layout=group.layout, seed=group.seed(seed))

    def deliver(self, bucket: GradBucket) -> Future[Tensor]:
        """On DDP's thread, in the order of buckets, which is the same on all ranks: hand gradients to their groups."""
        if bucket.index() == 0:
            self._open.clear()  # a backward that was broken off leaves half-filled groups
        entry = _Bucket(bucket.buffer())
        complete: list[_Reduction] = []
        for parameter, grad in zip(bucket.parameters(), bucket.gradients(), strict=True):
            name = self._names[cast(nn.Parameter, parameter)]
            group = self._home[name]
            reduction = self._open.setdefault(group.name, _Reduction(group))
            reduction.grads[name] = grad
            if entry not in reduction.buckets:
                reduction.buckets.append(entry)
                entry.waits_for += 1
            if len(reduction.grads) == len(group.layout):
                complete.append(self._open.pop(group.name))
        self._last_delivery = time.perf_counter()
        if self._failure is not None:
            _fail(entry.future, self._failure)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # gradients are there before the thread reads them
        for reduction in complete:
            self._queue.put(reduction)
        # DDP does not look for an exception in a future, but stops at an error of `then`
        return entry.future.then(_value)

    def _serve(self) -> None:
        """The one thread that speaks: collectives of a rank in one order, on a group of their own."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        while (reduction := self._queue.get()) is not None:
            if self._failure is None:  # after a failure ranks may be at different places: speak no more
                try:
                    self._reduce(reduction)
                except BaseException as error:  # it belongs to whoever waits for these gradients
                    self._failure = error
            for bucket in reduction.buckets:
                bucket.waits_for -= 1
                if bucket.future.done():
                    continue
                if self._failure is not None:
                    _fail(bucket.future, self._failure)
                elif not bucket.waits_for:
                    bucket.future.set_result(bucket.buffer)

    def _reduce(self, reduction: _Reduction) -> None:
        group, layout = reduction.group, reduction.group.layout
        grads = [reduction.grads[name] for name, _ in layout]
        scale = self.scale
        first_time = nullcontext()  # counting slows a step down a little, and once tells it
        if group.name not in self._buffers:
            self._buffers[group.name] = torch.empty(group.numel, device=self._device)
            first_time = self._reads
        out = self._buffers[group.name]
        dialogue = self._method.aggregate(grads, self._states[group.name], scale=scale, out=out)
        try:
            with first_time:
                mean, self._states[group.name], cost = drive(dialogue, self._comm, self._settle)
        except NonFiniteGradient as error:
            raise error.named([name for name, _ in layout]) from None
        start = time.perf_counter()
        for grad, part in zip(grads, mean.split([g.numel() for g in grads]), strict=True):
            grad.copy_(part.view_as(grad))
            if scale != 1.0:
                grad.div_(scale)
        self._settle()
        cost.mean += time.perf_counter() - start
        self._cost.add(cost)

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
