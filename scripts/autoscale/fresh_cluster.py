"""A local cluster for one purpose: empty at first, and gone again afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console

from deploy.local.cluster.folder import AlreadyRunsError, ClusterFolder
from deploy.local.cluster.launch import launch, remove_remains
from deploy.local.cluster.spec import ClusterSpec
from scripts.autoscale.site import Site, open_site
from scripts.autoscale.steps import StepView


@asynccontextmanager
async def fresh_cluster(name: str, spec: ClusterSpec, console: Console) -> AsyncIterator[Site]:
    """A cluster with nothing in it; its logs stay until the next one of that name.

    Raises ``AlreadyRunsError`` and ``StepFailedError``.
    """
    folder = ClusterFolder.of(name)
    if folder.runs():
        raise AlreadyRunsError(name)
    await remove_remains(folder)
    folder.remove()
    cluster = await launch(folder, spec, attached=True)
    try:
        with StepView(console) as view:
            await cluster.follow(view.show)
        async with open_site(name, "") as site:
            yield site
    finally:
        await cluster.end()
