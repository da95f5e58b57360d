"""Which of the real nodes this process runs on, and how the other nodes follow the first.

The same command runs once on every node, over a shared folder. Node 0 owns each job: it prepares data, writes the
configuration and the status. The others wait until its status says that the job is running, start their torchrun, and
go on to the next job when the status has changed.
"""

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from experiments.build import ConfigError
from experiments.network import Node
from experiments.ranks import torchrun
from experiments.record import read_json

POLL_S = 0.1


class Place(NamedTuple):
    """This node among those of a sweep."""

    node_rank: int
    hosts: tuple[str, ...]
    sweep: str  # the same on all nodes, another for every start of the command: nobody follows an old status


def here(environment: Mapping[str, str] = os.environ) -> Place:
    """From SLURM's variables, or from SIDCO_NODES (host1,host2,…), SIDCO_NODE_RANK and SIDCO_SWEEP."""
    if "SLURM_JOB_NODELIST" in environment:
        hosts = expand(environment["SLURM_JOB_NODELIST"])
        if environment.get("SLURM_LOCALID", "0") != "0":
            raise ConfigError(
                f"network=cluster wants one task on each node, got task {environment['SLURM_LOCALID']} beside another: "
                "say --ntasks-per-node=1 (hydra.launcher.tasks_per_node=1); it starts this node's ranks itself"
            )
        step = f"{environment.get('SLURM_JOB_ID', '0')}.{environment.get('SLURM_STEP_ID', '0')}"
        if restart := environment.get("SLURM_RESTART_COUNT"):
            step += f".{restart}"  # a job that was put into the queue again keeps its number
        return _checked(Place(int(environment.get("SLURM_NODEID", "0")), hosts, f"slurm-{step}"))
    if "SIDCO_NODES" in environment:
        missing = [name for name in ("SIDCO_NODE_RANK", "SIDCO_SWEEP") if name not in environment]
        if missing:
            raise ConfigError(f"network=cluster: SIDCO_NODES is set, but not {' and '.join(missing)}")
        hosts = tuple(environment["SIDCO_NODES"].split(","))
        return _checked(Place(int(environment["SIDCO_NODE_RANK"]), hosts, environment["SIDCO_SWEEP"]))
    raise ConfigError(
        "network=cluster wants to know its nodes: start it by srun (SLURM_JOB_NODELIST, SLURM_NODEID), or set "
        "SIDCO_NODES=host1,host2 SIDCO_NODE_RANK=0 SIDCO_SWEEP=name on each, as scripts/on_hosts.sh does"
    )


def expand(nodelist: str) -> tuple[str, ...]:
    """'gpu[1-3,7],login' -> gpu1, gpu2, gpu3, gpu7, login: what `scontrol show hostnames` prints."""
    hosts: list[str] = []
    for head, ranges, tail in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)(?:,|$)", nodelist):
        if not ranges:
            hosts.append(head + tail)
            continue
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                hosts.append(f"{head}{number:0{len(first)}d}{tail}")
    return tuple(hosts)


def nodes_of(place: Place) -> list[Node]:
    """Every node, as torchrun needs it: the first is where all meet."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    return [
        Node(name=f"node{rank}", address=host, interface=interface, enter=()) for rank, host in enumerate(place.hosts)
    ]


def ranks_per_node(place: Place, world_size: int) -> int:
    """Evenly shared out, or a ConfigError."""
    each, rest = divmod(world_size, len(place.hosts))
    if rest or not each:
        raise ConfigError(f"workers.world_size={world_size} cannot be shared out evenly over {len(place.hosts)} nodes")
    return each


def follow(
    folder: Path, place: Place, number: int, config: dict[str, Any], finished: Callable[[Path], bool]
) -> tuple[str, str]:
    """On the other nodes: take part in job `number` of the sweep. Returns its state and reason."""
    until = time.time() + config["workers"]["job_timeout_s"]
    while time.time() < until:
        status = read_json(folder / "status.json") or {}
        ours = (status.get("sweep"), status.get("number")) == (place.sweep, number)
        if ours and status["state"] == "running":
            _take_part(folder, place, config, until)
        elif ours:
            return status["state"], status.get("reason", "")
        elif finished(folder):
            return "reused", ""
        time.sleep(POLL_S)
    return "failed", f"node 0 ({place.hosts[0]}) did not end the job within workers.job_timeout_s"


def _take_part(folder: Path, place: Place, config: dict[str, Any], until: float) -> None:
    """Run this node's ranks until they end or node 0 says that the job has."""
    nodes, each = nodes_of(place), ranks_per_node(place, config["workers"]["world_size"])
    with ExitStack() as stack:
        agent = stack.enter_context(
            torchrun(folder, nodes[place.node_rank], place.node_rank, nodes, each, config["network"]["port"])
        )
        while agent.poll() is None and time.time() < until:
            if (read_json(folder / "status.json") or {}).get("state") != "running":
                break
            time.sleep(POLL_S)
    while (read_json(folder / "status.json") or {}).get("state") == "running" and time.time() < until:
        time.sleep(POLL_S)


def _checked(place: Place) -> Place:
    if not 0 <= place.node_rank < len(place.hosts):
        raise ConfigError(f"node rank {place.node_rank} is not among the {len(place.hosts)} nodes {place.hosts}")
    return place
