"""The control groups of this machine: a pod full of page cache is metered, and held below its limit."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.cgroups.files import read
from agent.cgroups.formats import byte_limit
from agent.cgroups.locate import ControlGroup, Locator
from agent.cgroups.memory import MemoryFiles
from agent.cgroups.metrics import CgroupMetrics
from protocol.units import Bytes
from tests.agent.cgroups.trees import CONTAINER, MIB, UID
from tests.agent.reclaimer.serving import Serving, wait_until_released

pytestmark = pytest.mark.root

ROOT = Path("/sys/fs/cgroup")
LIMIT, FILE, SIZE = 192 * MIB, 150 * MIB, 100 * MIB
CALLS = 20
"""Each returns after about a second with what was reclaimed; the next one continues."""

FILL = """
import os, sys
for folder in sys.argv[3:]:
    with open(folder + "/cgroup.procs", "w") as group:
        group.write(str(os.getpid()))
with open(sys.argv[1], "wb") as file:
    for _ in range(int(sys.argv[2]) >> 20):
        file.write(bytes(1 << 20))
    os.fsync(file.fileno())
"""


@pytest.fixture
def pod() -> Iterator[ControlGroup]:
    """A pod with a container in groups of this machine, below a prefix of their own."""
    is_v2 = (ROOT / "cgroup.controllers").exists()
    tops = [ROOT] if is_v2 else [ROOT / controller for controller in ("memory", "cpu", "cpuacct")]
    parts = (f"autoscale-test-{os.getpid()}", "kubepods", "burstable", f"pod{UID}", CONTAINER)
    with ExitStack() as made:
        try:
            for top in tops:
                folder = top
                for part in parts:
                    folder /= part
                    folder.mkdir()
                    made.callback(folder.rmdir)
                    if is_v2 and part != CONTAINER:
                        (folder / "cgroup.subtree_control").write_text("+cpu +memory +io")
        except OSError as error:
            pytest.skip(f"no control groups can be made here: {error}")
        group = Locator(ROOT).pod(UID)
        assert group is not None
        container = group.container(CONTAINER)
        assert container is not None
        for limited in (container, group):
            MemoryFiles.of(limited).limit.write_text(str(LIMIT))
        yield group


def test_pod_full_of_page_cache(pod: ControlGroup, tmp_path: Path) -> None:
    """It is counted as available, reclaimed on demand, and the hold goes with its connection."""
    container = pod.container(CONTAINER)
    assert container is not None
    folders = {container.file(controller, "") for controller in ("memory", "cpu", "cpuacct")}
    subprocess.run([sys.executable, "-c", FILL, tmp_path / "file", str(FILE), *folders], check=True)
    sample = asyncio.run(CgroupMetrics(ROOT, UID, CONTAINER).scrape())
    assert sample.mem_total == Bytes(LIMIT)
    assert sample.mem_available is not None
    assert sample.mem_available >= Bytes(FILE)
    assert sample.cpus["all"].busy > 0
    node = Serving(tmp_path, ROOT)
    before = lowered(pod)
    with node.serving():
        with node.connected() as client:
            held = client.hold(SIZE)
            for _ in range(CALLS):
                if held is None or held.used <= SIZE:
                    break
                held = client.hold(SIZE)
            assert held is not None
            assert 0 < held.used <= SIZE, held
            # Version 1 has only the limit that kills, so it is low for a moment only.
            assert lowered(pod) == (SIZE if pod.is_v2 else before)
        wait_until_released(node)
    assert lowered(pod) == before


def lowered(pod: ControlGroup) -> int | None:
    """The limit that a hold lowers."""
    return read(pod.file("memory", "memory.high" if pod.is_v2 else "memory.limit_in_bytes"), byte_limit)
