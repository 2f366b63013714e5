"""A detached cluster records its history like one in a terminal."""

from __future__ import annotations

import asyncio
from pathlib import Path

from deploy.local.cluster.control import ask_cluster
from deploy.local.cluster.launch import launch
from deploy.local.cluster.spec import ClusterSpec
from scripts.autoscale.history.finding import FILE
from scripts.autoscale.local import recorder_command
from tests.local.cluster.living import PATIENCE, folder_in, processes_of


async def test_detached_cluster_records_until_it_ends(tmp_path: Path) -> None:
    """``cost``, ``explain --since`` and the page's charts were empty."""
    folder = folder_in(tmp_path, "kept")
    spec = ClusterSpec(guests="simulated", nodes=1, vms=1, network="loopback")
    cluster = await launch(folder, spec, attached=True, recorder=recorder_command(folder, ["team"]))
    try:
        await cluster.follow(lambda _: None)
        assert "history" in {part.name for part in (await ask_cluster(folder, "status")).parts}
        async with asyncio.timeout(PATIENCE):
            while not (folder.root / FILE).exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.05)
    finally:
        await cluster.end()
    assert processes_of(folder) == set()
