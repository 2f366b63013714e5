"""The autoscaler on a cluster of a test, from the manifests and with the images of people."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.images.building.image_build import build, native_platform
from deploy.images.building.layers import LayerMaker
from deploy.images.catalogue import IMAGES
from deploy.images.inputs.checkout import Checkout
from deploy.kube.client import client_from_kubeconfig
from deploy.local.kubernetes.machine.installation import apply_manifests, build_images, load_image, wait_rolled_out
from deploy.local.kubernetes.plan.installation_plan import FOR_VMS, NAMESPACE, REFERENCE
from protocol.runtime.clock import SystemClock
from tests.deploy.manifests import ROOT
from tests.kubernetes.real_kubernetes import VERSION, RealKubernetes
from vm_image.recipe import Origin

GROUPS: Final = "deploy/kubernetes/groups.yaml"


@contextmanager
def installed(cluster: RealKubernetes, folder: Path) -> Iterator[RealKubernetes]:
    """The cluster with our programs: builds images into ``folder``, loads them onto the nodes, and applies the
    manifests. Raises ``InstallationError`` with the reason as soon as that is impossible.

    Raises ``InstallationError`` with the reason as soon as that cannot be.
    """
    files = [f"--filename={ROOT / each}" for each in (GROUPS, *reversed(FOR_VMS.manifests))]
    try:
        bring_image(cluster, "autoscale-groups", folder)
        cluster.kubectl("apply", files[0])
        asyncio.run(_install(cluster, folder))
        cluster.wait("condition=Available", "deployment/autoscaling-groups", namespace=NAMESPACE)
        yield cluster
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "--wait=false", *files)


def bring_image(cluster: RealKubernetes, name: str, folder: Path) -> None:
    """Builds one of our images and puts it on every node."""
    platform = native_platform()
    maker = LayerMaker(Checkout(), platform, platform, Origin(), print)
    image = build(IMAGES[name], maker, REFERENCE.format(name=name), folder)
    assert cluster.autoscale("load", str(image.path)).returncode == 0


async def _install(cluster: RealKubernetes, folder: Path) -> None:
    parts = await build_images(VERSION, folder, print)
    for archive in parts.archives:
        await load_image(cluster.folder / "kubernetes" / "nodes", Path(archive))
    await apply_manifests(cluster.kubeconfig, parts)
    async with client_from_kubeconfig(cluster.kubeconfig) as client:
        await wait_rolled_out(client, SystemClock(), print)
