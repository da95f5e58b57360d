"""Bytes counted as sent against the interface's own counter, on an emulated network of three nodes."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

from experiments.network import shaped_nodes, unavailable

WORLD = 3
FRAMES = 1.10  # headers of full frames are 4.6 %; then acknowledgements and gloo's own words


@pytest.mark.netns
@pytest.mark.case(22)
def test_counted_bytes_are_those_of_the_interface():
    reason = unavailable()
    if reason:
        pytest.skip(reason)
    with shaped_nodes(WORLD, rate_mbit=200) as nodes:
        ranks = []
        for rank, node in enumerate(nodes):
            environment = {"RANK": rank, "WORLD_SIZE": WORLD, "MASTER_ADDR": nodes[0].address, "MASTER_PORT": 29533}
            environment |= {"GLOO_SOCKET_IFNAME": node.interface, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": 1}
            ranks.append(
                subprocess.Popen(
                    [*node.enter, sys.executable, str(ROOT / "tests" / "wire_bytes.py")],
                    env={**os.environ, **{key: str(value) for key, value in environment.items()}},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        try:
            said = [json.loads(rank.communicate(timeout=120)[0].splitlines()[-1]) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    for found in said:
        for way in ("all_reduce", "all_gather"):
            counted, really = found[way]["counted"], found[way]["interface"]
            assert counted <= really <= FRAMES * counted, (way, found)
    # a ring passes on what the others have to say: rank 0, whose successor's message is the second longest, knows
    own, total = [4 * 200_000 * (rank + 1) for rank in range(WORLD)], 4 * 200_000 * 6
    for rank, found in enumerate(said):
        assert found["all_gather"]["counted"] == 3 * (total - own[(rank + 1) % WORLD] + 8 * (WORLD - 1))
        assert found["all_reduce"]["counted"] == 3 * round(4 / 3 * 4 * 600_000)
