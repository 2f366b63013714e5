"""The autoscaler on a cluster of a test, from the manifests and with the images of people."""

from __future__ import annotations

import asyncio
from pathlib import Path

from deploy.kube.client import client_from_kubeconfig
from deploy.local.kubernetes.machine.image_loading import load_image
from deploy.local.kubernetes.machine.installation import apply_manifests, built_parts, rolled_out
from protocol.runtime.clock import SystemClock
from tests.kubernetes.real_kubernetes import VERSION, RealKubernetes


def install(cluster: RealKubernetes, folder: Path) -> None:
    """Builds the images into ``folder``, puts them on the nodes, applies the manifests, and waits until all runs.

    Raises ``InstallationError`` with the reason as soon as that cannot be.
    """
    asyncio.run(_install(cluster, folder))


async def _install(cluster: RealKubernetes, folder: Path) -> None:
    parts = await built_parts(VERSION, folder, print)
    for archive in parts.archives:
        await load_image(cluster.folder / "kubernetes" / "nodes", Path(archive))
    await apply_manifests(cluster.kubeconfig, parts)
    async with client_from_kubeconfig(cluster.kubeconfig) as client:
        await rolled_out(client, SystemClock(), print)
