"""A real local cluster in a test: real processes on loopback, observed through its API and ``/proc``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from deploy.kube.client import client_from_kubeconfig
from deploy.kube.informer import Informer
from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.launch import LaunchedCluster, launch
from deploy.local.cluster.spec import ClusterSpec
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import VIRTUAL_MACHINES, Resource
from protocol.messages import ObjectName
from protocol.runtime.clock import SystemClock

PATIENCE = 90.0


def folder_in(tmp_path: Path, name: str) -> ClusterFolder:
    """A cluster's folder that no other test run uses."""
    return ClusterFolder(f"{name}-{os.getpid()}", tmp_path / f"{name}-{os.getpid()}")


def processes_of(folder: ClusterFolder) -> set[int]:
    """Every live process that was started for this cluster: they all inherit where clusters are kept."""
    mark = f"AUTOSCALE_HOME={folder.root.parent}".encode()
    found = set()
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdigit() and mark in (each / "environ").read_bytes().split(b"\0"):
                found.add(int(each.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


@asynccontextmanager
async def cluster(folder: ClusterFolder, spec: ClusterSpec) -> AsyncIterator[LaunchedCluster]:
    """A cluster that is up, and ended afterwards."""
    launched = await launch(folder, spec, attached=True)
    try:
        await launched.follow(lambda _: None)
        yield launched
    finally:
        await launched.end()


async def seen(
    folder: ClusterFolder, vm: ObjectName, holds: Callable[[Json], bool], kind: Resource = VIRTUAL_MACHINES
) -> Json:
    """The VM, or another object, as soon as ``holds`` is true of it; learnt by watching."""
    found: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
    async with client_from_kubeconfig(folder.kubeconfig) as client:
        informer = Informer(client, kind, SystemClock())

        def look(name: ObjectName, now: Json | None) -> None:
            if name == vm and now is not None and not found.done() and holds(now):
                found.set_result(now)

        informer.listen(lambda change: look(change.name, change.after))
        watching = asyncio.ensure_future(informer.run())
        try:
            async with asyncio.timeout(PATIENCE):
                return await found
        finally:
            watching.cancel()
            await asyncio.wait((watching,))
