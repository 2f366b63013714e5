"""A detached cluster runs on when the command that started it has ended."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.launch import launch, stop
from deploy.local.cluster.spec import ClusterSpec
from protocol.runtime.clock import SystemClock
from tests.local.cluster.living import folder_in, processes_of


async def up(folder: ClusterFolder) -> None:
    cluster = await launch(folder, ClusterSpec(guests="simulated", network="loopback", nodes=1), attached=False)
    await cluster.follow(lambda _: None)


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_detached_cluster_outlives_event_loop(tmp_path: Path) -> None:
    """asyncio kills the processes that it started when it forgets them, or complains about its closed loop."""
    folder = folder_in(tmp_path, "detached")
    asyncio.run(up(folder))
    gc.collect()
    assert folder.is_running()
    assert asyncio.run(stop(folder, SystemClock()))
    assert processes_of(folder) == set()
