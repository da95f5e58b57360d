"""A rank of tests/test_bytes.py: exchanges messages and prints what it counted and what its interface says it sent."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

from sidco.comm import Ranks
from sidco.method import AllGather, AllReduce


def interface_bytes(name: str) -> int:
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith(f"{name}:"))
    return int(line.split(":")[1].split()[8])


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    comm = Ranks(dist.new_group())
    found = {}
    for name, request in {
        "all_reduce": AllReduce(torch.ones(600_000), 600_000, "mean"),
        "all_gather": AllGather(torch.arange(200_000 * (rank + 1), dtype=torch.int32), 0),
    }.items():
        comm.answer(AllGather(torch.ones(4), 0))  # connections are made
        dist.barrier()
        sent, counted = interface_bytes("eth0"), comm.traffic.sent_bytes
        for _ in range(3):
            comm.answer(request)
        counted = comm.traffic.sent_bytes - counted
        dist.barrier()  # what a sender is done with may still lie in a queue before the interface
        found[name] = {"counted": counted, "interface": interface_bytes("eth0") - sent}
        dist.barrier()
    print(json.dumps({"rank": rank, "world": world, **found}))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
