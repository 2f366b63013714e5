"""A temporary local cluster: empty at the start, removed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console

from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.launch import LaunchedCluster, launch
from deploy.local.cluster.spec import ClusterSpec
from scripts.autoscale.clusters import ClusterFlags, find_cluster
from scripts.autoscale.site import Site, SiteError, open_site
from scripts.autoscale.steps import StepView


@asynccontextmanager
async def fresh_cluster(name: str, spec: ClusterSpec, console: Console) -> AsyncIterator[Site]:
    """An empty cluster; its logs stay until the next one of that name starts.

    Raises ``AlreadyRunsError`` and ``StepFailedError``. A cluster that ends before its purpose cancels the block, which
    then raises a group with a ``SiteError``.
    """
    async with launched(name, spec) as cluster:
        with StepView(console) as view:
            await cluster.follow(view.show)
        async with watched(name, cluster) as site:
            yield site


@asynccontextmanager
async def launched(name: str, spec: ClusterSpec) -> AsyncIterator[LaunchedCluster]:
    """A cluster that begins to come up, in place of an earlier one of that name. Raises ``AlreadyRunsError``."""
    # `fresh` removes what an earlier cluster of that name left: a demonstration has to begin empty.
    cluster = await launch(ClusterFolder.of(name), spec, attached=True, fresh=True)
    try:
        yield cluster
    finally:
        await cluster.end()


@asynccontextmanager
async def watched(name: str, cluster: LaunchedCluster) -> AsyncIterator[Site]:
    """The way to a cluster that is up. Its end cancels the block, which then raises a group with a ``SiteError``."""
    async with open_site(find_cluster(ClusterFlags(name))) as site, asyncio.TaskGroup() as tasks:
        # The task fails when the cluster's process ends, which cancels the block.
        watching = tasks.create_task(_fails_with(cluster, ClusterFolder.of(name)))
        yield site
        # The cluster has served its purpose; its end is no failure any more.
        watching.cancel()


async def _fails_with(cluster: LaunchedCluster, folder: ClusterFolder) -> None:
    code = await cluster.wait()
    raise SiteError(f"the cluster's process has ended with exit code {code}; its log: {folder.log('cluster')}")
