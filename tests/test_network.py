"""Emulated nodes: the limit is real, the nodes reach each other, and nothing is left behind however the owner ends."""

import functools
import inspect
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import network
from experiments.network import (
    Node,
    ShapingUnavailable,
    default_burst_kib,
    loopback_nodes,
    sent_bytes,
    shaped_nodes,
    unavailable,
)

AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/tmp", "PATH=/usr/bin:/bin")
OWNER = """
import signal, time
from experiments.network import shaped_nodes
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell starts its jobs with SIGINT ignored
with shaped_nodes(2, rate_mbit=100):
    print("up", flush=True)
    time.sleep(60)
"""


@functools.cache
def reason_to_skip() -> str | None:
    return unavailable()


@pytest.fixture(autouse=True)
def _skip_without_namespaces(request):
    if request.node.get_closest_marker("netns") and (reason := reason_to_skip()):
        pytest.skip(reason)


def transfer_rate(python: str, receiver, senders, size: int) -> float:
    """Mb/s of payload while every sender pushes `size` bytes to the receiver at once, on the receiver's clock."""
    receive = """
import socket, sys, threading, time
address, size, senders = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
server = socket.create_server((address, 0))
print(server.getsockname()[1], flush=True)
peers = [server.accept()[0] for _ in range(senders)]
def drain(peer):
    left = size
    while left:
        chunk = len(peer.recv(1 << 20))
        assert chunk, "the sender hung up early"
        left -= chunk
threads = [threading.Thread(target=drain, args=(peer,)) for peer in peers]
start = time.perf_counter()
for peer, thread in zip(peers, threads):
    peer.sendall(b"g")
    thread.start()
for thread in threads:
    thread.join()
print(8e-6 * size * senders / (time.perf_counter() - start))
"""
    send = """
import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[3])), timeout=30)
peer.recv(1)
peer.sendall(bytes(int(sys.argv[2])))
peer.recv(1)  # the receiver hangs up when it has everything
"""
    arguments = [receiver.address, str(size)]
    sink = subprocess.Popen(
        [*receiver.enter, python, "-c", receive, *arguments, str(len(senders))], stdout=subprocess.PIPE, text=True
    )
    assert sink.stdout is not None
    port = sink.stdout.readline().strip()
    sources = [subprocess.Popen([*node.enter, python, "-c", send, *arguments, port]) for node in senders]
    rate = float(sink.communicate(timeout=60)[0])
    for source in sources:
        assert source.wait(timeout=60) == 0
    return rate


def children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def still_running(pids: set[int], patience: float = 10.0) -> set[int]:
    """Those of `pids` that have not ended after `patience` seconds; an orphan nobody reaps (state Z) has ended."""

    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    deadline = time.monotonic() + patience
    while (left := {pid for pid in pids if runs(pid)}) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@pytest.mark.netns
@pytest.mark.case(71)
@pytest.mark.parametrize("senders", [1, 2])
def test_nothing_crosses_faster_than_the_rate(senders):
    """A law of the shaper, not a speed: also two senders together cannot exceed their receiver's rate (incast)."""
    nominal = 20  # Mb/s
    with shaped_nodes(3, rate_mbit=nominal) as nodes:
        reached = transfer_rate(sys.executable, nodes[0], nodes[1 : 1 + senders], size=2_000_000 // senders)
    assert reached <= 1.15 * nominal


@pytest.mark.netns
def test_nodes_reach_each_other_and_themselves():
    with shaped_nodes(3, rate_mbit=1000) as nodes:
        assert [node.address for node in nodes] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
        for receiver in nodes:
            assert transfer_rate(sys.executable, receiver, nodes, size=1000) > 0
        itself = Node(name="self", address="127.0.0.1", interface="lo", enter=nodes[0].enter)
        assert transfer_rate(sys.executable, itself, [itself], size=1000) > 0


@pytest.mark.netns
def test_counter_grows_by_what_was_sent():
    size = 1_000_000
    with shaped_nodes(2, rate_mbit=1000) as (receiver, sender):
        before = sent_bytes(sender), sent_bytes(receiver)
        transfer_rate(sys.executable, receiver, [sender], size)
        assert size <= sent_bytes(sender) - before[0] <= 1.1 * size  # payload + headers
        assert sent_bytes(receiver) - before[1] < 0.1 * size  # acknowledgements only


@pytest.mark.netns
def test_jobs_at_the_same_time_do_not_meet():
    with shaped_nodes(2, rate_mbit=1000) as first, shaped_nodes(2, rate_mbit=1000) as second:
        before = sent_bytes(second[1])
        transfer_rate(sys.executable, first[0], [first[1]], size=1_000_000)
        assert sent_bytes(second[1]) - before < 10_000
        assert transfer_rate(sys.executable, second[0], [second[1]], size=1000) > 0


@pytest.mark.netns
def test_an_exception_takes_everything_down():
    before, held = children(os.getpid()), set()

    def fail_inside():
        with shaped_nodes(2, rate_mbit=100):
            held.update(children(os.getpid()) - before)
            raise RuntimeError("a rank failed")

    with pytest.raises(RuntimeError, match="a rank failed"):
        fail_inside()
    assert len(held) == 3  # the switch and two nodes
    assert not still_running(held, patience=0)


@pytest.mark.netns
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_death_of_the_owner_leaves_holders(how):
    """The signal goes to the whole process group, as a terminal's Ctrl-C does."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             start_new_session=True, cwd=Path(network.__file__).parents[1])  # fmt: skip
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    held = children(owner.pid)
    assert len(held) == 3
    os.killpg(owner.pid, how)
    _, error = owner.communicate(timeout=30)
    assert ("KeyboardInterrupt" in error) == (how == signal.SIGINT)
    assert not still_running(held)


@pytest.mark.netns
def test_a_plain_user_can_shape():
    """The programs travel by stdin and -c: that user can perhaps read neither this checkout nor this interpreter."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root with setpriv can become nobody; as a plain user all other tests show the same")
    check = "import sys; assert sys.version_info >= (3, 11)"
    pythons = [sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"]
    usable = [p for p in pythons if not subprocess.run([*AS_NOBODY, p, "-c", check], capture_output=True).returncode]
    if not usable:
        pytest.skip(f"nobody can run none of {pythons} as Python 3.11 or later")
    probe = subprocess.run([*AS_NOBODY, "unshare", "--user", "--map-root-user", "--net", "true"], capture_output=True)
    if probe.returncode:
        pytest.skip(f"nobody may make no namespace: {probe.stderr.decode().strip()}")
    program = f"""{inspect.getsource(network)}
import sys
{inspect.getsource(transfer_rate)}
if reason := unavailable():
    sys.exit(reason)
with shaped_nodes(2, rate_mbit=20) as nodes:
    assert os.geteuid() == 65534
    print(transfer_rate(sys.executable, nodes[0], nodes[1:], size=500_000))
"""
    done = subprocess.run([*AS_NOBODY, usable[0], "-"], input=program, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) <= 1.15 * 20


@pytest.mark.parametrize(("tool", "package"), [("tc", "iproute2"), ("nsenter", "util-linux")])
def test_a_missing_tool_is_named_with_its_remedy(monkeypatch, tool, package):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == tool else f"/usr/bin/{name}")
    reason = unavailable()
    assert reason is not None
    assert f"got no {tool}:" in reason
    assert f"apt-get install {package}" in reason
    with pytest.raises(ShapingUnavailable, match=tool), shaped_nodes(2, rate_mbit=100):
        pass


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare (util-linux)")
def test_a_missing_right_is_named_with_its_remedy(monkeypatch):
    """`false` stands for an unshare that the kernel refuses."""
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, path=None: real("false" if name == "unshare" else "true"))
    reason = unavailable()
    assert reason is not None
    assert "run as root" in reason
    assert "user.max_user_namespaces" in reason


@pytest.mark.parametrize("rate", [0, -5, float("nan"), float("inf")])
def test_a_rate_without_meaning_is_refused(rate):
    with pytest.raises(ValueError, match=f"rate_mbit: expected .* got {rate}"), shaped_nodes(2, rate_mbit=rate):
        pass


@pytest.mark.parametrize("count", [-1, 0, 1, 255])
def test_a_count_without_meaning_is_refused(count):
    with pytest.raises(ValueError, match=f"count: expected 2 to 254 nodes, got {count}"), shaped_nodes(count, 100):
        pass


def test_a_burst_below_one_frame_is_refused():
    with pytest.raises(ValueError, match=r"burst_kib: expected at least 2 KiB .* got 1"), shaped_nodes(2, 100, 1):
        pass


def test_the_default_burst_stays_small():
    assert default_burst_kib(100) == 32
    assert default_burst_kib(1000) == 64
    assert all(8 <= default_burst_kib(rate) <= 128 for rate in (0.1, 1, 20, 200, 5000, 10_000))


def test_loopback_needs_nothing():
    with loopback_nodes(2) as nodes:
        assert {(node.address, node.interface, node.enter) for node in nodes} == {("127.0.0.1", "lo", ())}
    with pytest.raises(ValueError, match="count: expected at least 1 node, got 0"), loopback_nodes(0):
        pass


@pytest.mark.skipif(not Path("/proc/net/dev").exists(), reason="the counters lie in Linux's /proc")
def test_loopback_counts_too():
    with loopback_nodes() as (node,):
        before = sent_bytes(node)
        transfer_rate(sys.executable, node, [node], size=100_000)
        assert sent_bytes(node) - before >= 100_000
    with pytest.raises(ValueError, match=r"interface: expected one of .* got 'eth77'"):
        sent_bytes(Node(name="none", address="", interface="eth77", enter=()))
