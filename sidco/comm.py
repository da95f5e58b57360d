"""Who answers the dialogues: real ranks over torch.distributed, or W virtual workers in memory."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from sidco.method import AllGather, AllReduce, Collective, Dialogue
from sidco.traffic import Cost, Traffic
from sidco.view import Layout

S = TypeVar("S")

NOTHING = 255  # bytes of a message of fixed length from a rank that has none: its head, an int32, is then -1
HEAD = [NOTHING] * 4
SIZE_BYTES = 8  # one int64 a rank: the sizes exchanged before messages of unequal length
OPS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class Communicator(ABC):
    """Answers collectives for one rank and counts what that sends."""

    world_size: int

    def __init__(self) -> None:
        self.traffic = Traffic()

    @abstractmethod
    def answer(self, request: Collective) -> Any: ...


class Ranks(Communicator):
    """The ranks of a torch.distributed group. Call from one thread only: ranks must ask in the same order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self._group = group
        self.world_size = dist.get_world_size(group)
        nccl = dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def answer(self, request: Collective) -> Any:
        return self._reduce(request) if isinstance(request, AllReduce) else self._gather(request)

    def _reduce(self, request: AllReduce) -> Tensor:
        buffer = request.buffer
        if request.op == "mean":
            buffer.mul_(1.0 / self.world_size)  # before the sum, as DDP does: half precision does not overflow
        dist.all_reduce(buffer, OPS[request.op], group=self._group)
        self.traffic.count_all_reduce(buffer.nbytes, request.count, self.world_size)
        return buffer

    def _gather(self, request: AllGather) -> list[Tensor | None]:
        """Every message as long as it is: gloo's own all-gather aborts on unequal ones."""
        own, rank = request.buffer, dist.get_rank(self._group)
        lengths = self._lengths(own) if request.nbytes is None else [request.nbytes] * self.world_size
        blocks = [torch.empty(max(0, length), dtype=torch.uint8, device=self._device) for length in lengths]
        if own is not None:
            blocks[rank] = own.view(torch.uint8)
        elif request.nbytes is not None:
            blocks[rank].fill_(NOTHING)
        sent = self._pad(blocks) if self._device.type == "cuda" else self._ring(blocks, rank)
        sizes = (self.world_size - 1) * SIZE_BYTES if request.nbytes is None else 0
        self.traffic.count_all_gather(0 if own is None else own.nbytes, sent + sizes, request.count)
        if own is None:
            return [None] * self.world_size
        if request.nbytes is not None:
            # the host waits here
            heads = torch.stack([block[: len(HEAD)] for block in blocks]).to("cpu", copy=True).tolist()
            lengths = [-1 if head == HEAD else length for head, length in zip(heads, lengths, strict=True)]
        return [block.view(own.dtype) if n >= 0 else None for block, n in zip(blocks, lengths, strict=True)]

    def _lengths(self, own: Tensor | None) -> list[int]:
        """Of every rank's message, in bytes; -1: it has none."""
        mine = torch.tensor([-1 if own is None else own.nbytes], dtype=torch.int64, device=self._device)
        sizes = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(sizes, mine, group=self._group)
        # the host must wait: a receiver has to know how much comes
        return torch.cat(sizes).to("cpu", copy=True).tolist()

    def _ring(self, blocks: list[Tensor], rank: int) -> int:
        """Each rank passes on to the next what it had from the one before. Returns the bytes this rank sent.

        All receives are posted before the first send. gloo tells a sender that its peer is ready over the stream the
        peer sends on; posted later, that word waits behind bulk data and the link works in one direction at a time
        (gloo's own all-gather at 2 ranks has about 70 % of the rate this reaches: docs/LOG.md).
        """
        world, sent = self.world_size, 0
        before, after = (rank - 1) % world, (rank + 1) % world
        arriving = {
            origin: dist.irecv(blocks[origin], group=self._group, group_src=before, tag=hop)
            for hop in range(1, world)
            if blocks[origin := (rank - hop) % world].numel()
        }
        leaving = []
        for hop in range(1, world):
            origin = (rank - hop + 1) % world
            if origin in arriving:
                cast(dist.Work, arriving.pop(origin)).wait()
            if blocks[origin].numel():
                leaving.append(dist.isend(blocks[origin], group=self._group, group_dst=after, tag=hop))
                sent += blocks[origin].nbytes
        for work in (*arriving.values(), *leaving):
            cast(dist.Work, work).wait()
        return sent

    def _pad(self, blocks: list[Tensor]) -> int:
        """One collective over messages padded to the longest: what NCCL is best at."""
        rank, longest = dist.get_rank(self._group), max(block.numel() for block in blocks)
        if not longest:
            return 0
        padded = torch.zeros(longest, dtype=torch.uint8, device=self._device)
        padded[: blocks[rank].numel()] = blocks[rank]
        received = [torch.empty_like(padded) for _ in blocks]
        dist.all_gather(received, padded, group=self._group)
        for place, block in enumerate(blocks):
            blocks[place] = received[place][: block.numel()]
        return (self.world_size - 1) * longest


def agree(method: str, layout: Layout, group: dist.ProcessGroup) -> None:
    """Raise on every rank, within the first exchange, if ranks were given different things to do."""
    mine = (method, tuple((name, tuple(shape)) for name, shape in layout))
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    for rank, theirs in enumerate(everyone):
        if theirs[0] != everyone[0][0]:
            raise ValueError(f"rank {rank} was given {theirs[0]}, rank 0 {everyone[0][0]}: all ranks need the same")
        if theirs[1] != everyone[0][1]:
            odd = sorted(set(theirs[1]) ^ set(everyone[0][1]))[:4]
            raise ValueError(f"rank {rank} has other parameters than rank 0: {odd}")


def drive(
    dialogue: Dialogue[S], comm: Communicator, settle: Callable[[], Any] = lambda: None
) -> tuple[Tensor, S, Cost]:
    """Hold one rank's dialogue to its end: (mean, state, seconds).

    `settle` waits for the device before a clock is read.
    """
    cost, start = Cost(), time.perf_counter()
    thinking, answer = 0.0, None
    while True:
        try:
            request = dialogue.send(answer)
        except StopIteration as stop:
            settle()
            cost.mean = time.perf_counter() - start
            mean, state = stop.value
            return mean, state, cost
        settle()
        asked = time.perf_counter()
        thinking += asked - start
        answer = comm.answer(request)
        settle()
        start = time.perf_counter()
        cost.exchange += start - asked
        cost.compress = thinking


def lockstep(dialogues: Sequence[Dialogue[S]], traffic: Sequence[Traffic] = ()) -> list[tuple[Tensor, S]]:
    """Hold W dialogues side by side in one process, as W ranks would. Sums are taken in rank order.

    A reduced buffer is shared by all in place of each one's own. `traffic`, one a worker, counts what would be sent.
    """
    world_size = len(dialogues)
    answers: list[Any] = [None] * world_size
    results: list[tuple[Tensor, S] | None] = [None] * world_size
    while True:
        requests: list[Collective] = []
        for rank, dialogue in enumerate(dialogues):
            try:
                requests.append(dialogue.send(answers[rank]))
            except StopIteration as stop:
                results[rank] = stop.value
        if not requests:
            return [result for result in results if result is not None]
        if len({type(request) for request in requests}) != 1 or len(requests) != world_size:
            raise RuntimeError(f"ranks asked for different collectives: {[type(r).__name__ for r in requests]}")
        answers = _answer_together(requests, traffic)


def _answer_together(requests: list[Collective], traffic: Sequence[Traffic]) -> list[Any]:
    world_size = len(requests)
    gathers = [request for request in requests if isinstance(request, AllGather)]
    if gathers:
        buffers = [request.buffer for request in gathers]
        sizes = [0 if buffer is None else buffer.nbytes for buffer in buffers]
        for rank, (meter, request) in enumerate(zip(traffic, gathers, strict=bool(traffic))):
            passed_on = sum(sizes) - sizes[(rank + 1) % world_size]  # on a ring, all but what the next one has itself
            heads = (world_size - 1) * SIZE_BYTES if request.nbytes is None else 0
            meter.count_all_gather(sizes[rank], passed_on + heads, request.count)
        return [list(buffers) for _ in requests]
    reduces = [request for request in requests if isinstance(request, AllReduce)]
    op, total = reduces[0].op, reduces[0].buffer.clone()
    if op == "mean":
        total.mul_(1.0 / world_size)
    for request in reduces[1:]:
        if op == "max":
            torch.maximum(total, request.buffer, out=total)
        else:
            total.add_(request.buffer * (1.0 / world_size) if op == "mean" else request.buffer)
    for meter, request in zip(traffic, reduces, strict=bool(traffic)):
        meter.count_all_reduce(request.buffer.nbytes, request.count, world_size)
    return [total.clone() for _ in requests]
