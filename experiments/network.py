"""W nodes on one machine: network namespaces, veth pairs to one bridge, `tc tbf` on both ends of each pair.

Bandwidth is emulated; latency and loss are not: `netem` is missing from many kernels, so a message pays the veth's
own tens of microseconds. A record of a shaped run must say so. The rate is that of Ethernet frames: TCP payload gets
at most 1448 / 1514 = 95.6 % of it.

Nothing has a name outside. Each namespace is held by a `cat` on a pipe from this process, which ends when the
pipe closes, however this process dies; so jobs cannot collide and leave nothing behind. Two limits: a namespace
outlives its holder while commands started in it still run (the caller ends those), and a child made by a bare
`fork` (no exec) inherits the pipes and keeps the holders alive.

Root makes network namespaces directly; a plain user makes them inside one user namespace of their own.
"""

import math
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

MOST_NODES = 254  # host addresses of 10.77.0.0/24
LEAST_BURST_KIB = 2  # a bucket must hold one 1514-byte frame, or tbf drops everything
QUEUE_S = 0.1
LEAST_QUEUE_BYTES = 1 << 20
PACKAGES = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
RIGHTS = (
    "run as root (in a container: --cap-add SYS_ADMIN --cap-add NET_ADMIN), or let plain users make user namespaces "
    "(sysctl user.max_user_namespaces=10000, and where they exist kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0)"
)
MODULES = "load the kernel modules: modprobe -a veth bridge sch_tbf"


class ShapingUnavailable(RuntimeError):
    """This machine cannot shape: says which tool, right or kernel module is missing and how to get it."""


@dataclass(frozen=True)
class Node:
    """One emulated machine: where its ranks listen and how a command gets inside."""

    name: str
    address: str  # IPv4
    interface: str  # as named inside the node, for GLOO_SOCKET_IFNAME
    enter: tuple[str, ...]  # prefix of a command that shall run inside; () on loopback


def unavailable() -> str | None:
    """None where shaping works, else the reason with its remedy. Builds two nodes for real (about 0.1 s)."""
    try:
        with shaped_nodes(2, rate_mbit=100):
            return None
    except ShapingUnavailable as reason:
        return str(reason)


@contextmanager
def loopback_nodes(count: int = 1) -> Iterator[list[Node]]:
    """The unshaped stand-in: every rank on 127.0.0.1. All nodes are the same place, so their counters are too."""
    if count < 1:
        raise ValueError(f"count: expected at least 1 node, got {count}; ask for 1 or more")
    yield [Node(name=f"node{i}", address="127.0.0.1", interface="lo", enter=()) for i in range(count)]


@contextmanager
def shaped_nodes(count: int, rate_mbit: float, burst_kib: int | None = None) -> Iterator[list[Node]]:
    """`count` nodes on one switch, each limited to `rate_mbit` (1e6 bit/s) out and in, as by a full-duplex NIC.

    `burst_kib` is what crosses free of the limit after a pause (see `default_burst_kib`). No route leads out: what a
    rank downloads must be there before.
    """
    if not 2 <= count <= MOST_NODES:
        raise ValueError(f"count: expected 2 to {MOST_NODES} nodes, got {count}; for one node use loopback_nodes()")
    if not (rate_mbit > 0 and math.isfinite(rate_mbit)):
        raise ValueError(
            f"rate_mbit: expected a finite rate > 0 Mb/s, got {rate_mbit}; for no limit use loopback_nodes()"
        )
    burst = default_burst_kib(rate_mbit) if burst_kib is None else burst_kib
    if burst < LEAST_BURST_KIB:
        raise ValueError(
            f"burst_kib: expected at least {LEAST_BURST_KIB} KiB (one frame), got {burst}; leave it out for a default"
        )
    tools = _tools()
    shaper = _shaper(rate_mbit, burst)
    with ExitStack() as holders:
        own_user = os.geteuid() != 0
        users = ("--user", "--map-root-user") if own_user else ()
        switch_pid = holders.enter_context(_held_namespace((tools["unshare"], *users, "--net")))
        switch = _prefix(tools, switch_pid, own_user)
        # Every node's namespace belongs to the switch's user namespace: only so may a veth end move between them.
        inside = (tools["nsenter"], "-t", str(switch_pid), "-U", "--preserve-credentials", "--") if own_user else ()
        pids = [holders.enter_context(_held_namespace((*inside, tools["unshare"], "--net"))) for _ in range(count)]
        nodes = [
            Node(name=f"node{i}", address=f"10.77.0.{i + 1}", interface="eth0", enter=_prefix(tools, pid, own_user))
            for i, pid in enumerate(pids)
        ]
        _wire_switch(tools, switch, pids, shaper)
        for node in nodes:
            _wire_node(tools, node, shaper)
        yield nodes


def default_burst_kib(rate_mbit: float) -> int:
    """32 KiB at 100 Mb/s, doubled per tenfold rate (64 KiB at 1 Gb/s), at least 8 KiB.

    The burst crosses for nothing, so it must stay a few percent of a 1 MB message at any rate: that forbids growth in
    proportion to the rate (2 MB let 1 MB cross "100 Mb/s" at 4.3 Gb/s). It must grow a little, because a bucket that
    refills within one late wake-up of tbf's timer loses rate: 64 KiB last 0.5 ms at 1 Gb/s.
    """
    return max(8, round(32 * 2 ** math.log10(rate_mbit / 100)))


def sent_bytes(node: Node) -> int:
    """Bytes the node's interface has sent: frames, but the headers of a segmentation-offload packet only once.

    /proc/net/dev follows the reader's namespace; /sys would show the one it was mounted in.
    """
    table = subprocess.run([*node.enter, "cat", "/proc/net/dev"], check=True, capture_output=True, text=True).stdout
    counters = dict(line.strip().split(":", 1) for line in table.splitlines() if ":" in line)
    if node.interface not in counters:
        raise ValueError(f"interface: expected one of {sorted(counters)}, got {node.interface!r}; is the node down?")
    return int(counters[node.interface].split()[8])  # 8 receive columns stand before tx_bytes


def _tools() -> dict[str, str]:
    """Paths of the commands. A plain user's PATH often lacks the sbin folders where `tc` lies."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    found = {name: shutil.which(name, path=path) for name in PACKAGES}
    missing = [name for name, where in found.items() if where is None]
    if missing:
        packages = " ".join(sorted({PACKAGES[name] for name in missing}))
        raise ShapingUnavailable(
            f"shaping expects the Linux commands {', '.join(PACKAGES)}, got no {', '.join(missing)}: "
            f"install {packages} (apt-get install {packages})"
        )
    return {name: where for name, where in found.items() if where is not None}


def _prefix(tools: dict[str, str], pid: int, own_user: bool) -> tuple[str, ...]:
    # Credentials are kept: the user already is that namespace's root, and setgroups is forbidden there.
    users = ("-U", "--preserve-credentials") if own_user else ()
    return (tools["nsenter"], "-t", str(pid), *users, "-n", "--")


@contextmanager
def _held_namespace(command: Sequence[str]) -> Iterator[int]:
    """Pid of a process that does nothing but live in the namespace made by `command`, until the block ends.

    In a session of its own: Ctrl-C reaches the terminal's whole process group, and must not take the network away
    from ranks that still shut down.
    """
    holder = subprocess.Popen(
        [*command, "sh", "-c", "echo ready; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert holder.stdout is not None
        if not holder.stdout.readline():
            _, error = holder.communicate()
            raise ShapingUnavailable(f"no network namespace ({_one_line(error)}): {RIGHTS}")
        yield holder.pid
    finally:
        # Closes stdin: cat ends by itself; killed only if it does not.
        try:
            holder.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            holder.kill()
            holder.communicate()


def _shaper(rate_mbit: float, burst_kib: int) -> str:
    """The tbf qdisc, in tc's words.

    The queue holds 0.1 s (at least 1 MiB): a node's own TCP keeps little in its egress queue, so only the switch's
    side fills, when several nodes send to one. With 3 ms there, three senders of 300 KB at 100 Mb/s fell to 29 Mb/s by
    retransmission timeouts (200 ms each), which measure the buffer and not the compressor; with 0.1 s nothing is lost.
    Offloaded packets above the burst need no care: tbf splits them.
    """
    queue = max(LEAST_QUEUE_BYTES, int(QUEUE_S * rate_mbit * 1e6 / 8)) + burst_kib * 1024
    return f"tbf rate {round(rate_mbit * 1e6)}bit burst {burst_kib * 1024}b limit {queue}b"


def _wire_switch(tools: dict[str, str], switch: tuple[str, ...], pids: Sequence[int], shaper: str) -> None:
    """The bridge with one shaped port per node: shaping the port limits what the node receives (incast)."""
    links = ["link add switch type bridge", "link set switch up"]
    for i, pid in enumerate(pids):
        links.append(f"link add port{i} type veth peer name eth0 netns {pid}")
        links.append(f"link set port{i} master switch up")
    _batch([*switch, tools["ip"]], links)
    _batch([*switch, tools["tc"]], [f"qdisc add dev port{i} root {shaper}" for i in range(len(pids))])


def _wire_node(tools: dict[str, str], node: Node, shaper: str) -> None:
    _batch(
        [*node.enter, tools["ip"]],
        ["link set lo up", f"addr add {node.address}/24 dev {node.interface}", f"link set {node.interface} up"],
    )
    _batch([*node.enter, tools["tc"]], [f"qdisc add dev {node.interface} root {shaper}"])


def _batch(command: Sequence[str], lines: Sequence[str]) -> None:
    """Runs `ip` or `tc` once for all lines."""
    done = subprocess.run([*command, "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True)
    if done.returncode:
        error = _one_line(done.stderr.encode())
        remedy = RIGHTS if "not permitted" in error else MODULES
        raise ShapingUnavailable(f"{Path(command[-1]).name} could not wire the namespaces ({error}): {remedy}")


def _one_line(error: bytes) -> str:
    return "; ".join(error.decode(errors="replace").strip().splitlines()) or "no message"
