"""Installs the autoscaler on a running real cluster, from the project's manifests and images."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from deploy.kube.client import ApiClient
from deploy.local.kubernetes.plan.cluster_plan import CONTAINERD_SOCKET, PROGRAMS
from deploy.local.kubernetes.plan.installation_plan import (
    FOR_VMS,
    NAMESPACE,
    Installation,
    not_rolled_out,
    startup_failure,
    with_kube_scheduler,
    with_short_delays,
)
from deploy.local.kubernetes.programs.ensure import run_build
from deploy.local.kubernetes.programs.images import InstallationParts
from deploy.owned_process import run_command
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.resources import DAEMON_SETS, DEPLOYMENTS, PODS
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds


class ImageLoadError(Exception):
    """An image could not be imported into a node; the message says why."""


async def load_image(nodes: Path, archive: Path) -> list[str]:
    """Import an image archive (as from ``docker save``) into every running node in the folder ``nodes``.

    Returns the nodes' names. Raises ``ImageLoadError``.
    """
    pids = _first_processes(nodes)
    if not pids:
        raise ImageLoadError("no node of a real Kubernetes is running: autoscale local up --kubernetes")
    await asyncio.gather(*(_import(node, pid, archive) for node, pid in pids.items()))
    return list(pids)


def _first_processes(nodes: Path) -> dict[str, str]:
    # The file exists only while the node runs.
    return {file.parent.name: file.read_text().strip() for file in sorted(nodes.glob("*/pid"))}


async def _import(node: str, pid: str, archive: Path) -> None:
    # The kubelet uses the containerd namespace `k8s.io`.
    ctr = (f"{PROGRAMS}/containerd/ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io")
    with archive.open("rb") as content:
        process = await asyncio.create_subprocess_exec(
            # On standard input: the archive's path may not exist in the node's mount namespace.
            *("nsenter", f"--target={pid}", "--mount", "--net", "--", *ctr, "images", "import", "-"),
            stdin=content,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, error = await process.communicate()
    if process.returncode:
        raise ImageLoadError(f"cannot import {archive} into {node}: {error.decode(errors='replace').strip()}")


_PROJECT: Final = Path(__file__).parents[4]
_TIMEOUT: Final = Seconds(180.0)
_PAUSE: Final = Seconds(0.3)


class InstallationError(Exception):
    """The autoscaler could not be installed; the message says why."""


async def build_images(
    minor: str, folder: Path, report: Callable[[str], None], installation: Installation = FOR_VMS
) -> InstallationParts:
    """Build the images and write their archives into ``folder``. Raises ``NoProgramsError``."""
    output = await run_build(
        "deploy.local.kubernetes.programs.images", [minor, str(folder), *installation.images], report
    )
    return msgspec.json.decode(output, type=InstallationParts)


async def apply_manifests(kubeconfig: Path, parts: InstallationParts, installation: Installation = FOR_VMS) -> None:
    """Apply the manifests. Raises ``InstallationError`` with kubectl's error."""
    manifests = ((_PROJECT / manifest).read_text() for manifest in installation.manifests)
    texts = [with_short_delays(with_kube_scheduler(manifest, parts.version)) for manifest in manifests]
    # --force-conflicts: take over fields that were applied by hand without --server-side.
    arguments = ("apply", "--server-side", "--force-conflicts", "--filename=-")
    await kubectl(kubeconfig, parts, *arguments, stdin="\n---\n".join(texts))


async def wait_rolled_out(
    client: ApiClient, clock: Clock, report: Callable[[str], None], installation: Installation = FOR_VMS
) -> None:
    """Wait until all workloads are rolled out. Raises ``InstallationError`` if one fails, or after a timeout."""
    deadline = Instant(clock.now() + _TIMEOUT)
    reported = list[str]()
    while pending := await _not_rolled_out(client, installation):
        if clock.now() >= deadline:
            raise InstallationError(f"not rolled out after {_TIMEOUT:g} s: {', '.join(pending)}")
        if pending != reported:
            reported = pending
            report(f"waiting for {', '.join(pending)}")
        await clock.sleep(_PAUSE)


async def _not_rolled_out(client: ApiClient, installation: Installation) -> list[str]:
    try:
        if reason := startup_failure((await client.list(PODS, NAMESPACE)).objects):
            raise InstallationError(reason)
        lists = [await client.list(kind, NAMESPACE) for kind in (DEPLOYMENTS, DAEMON_SETS)]
    except ApiError as error:
        return [f"the API server ({error})"]
    return not_rolled_out((workload for workloads in lists for workload in workloads.objects), installation)


async def kubectl(kubeconfig: Path, parts: InstallationParts, *arguments: str, stdin: str = "") -> str:
    """Run kubectl and return its output. Raises ``InstallationError`` with its error."""
    # The kernel kills kubectl with this process.
    command = ("setpriv", "--pdeathsig", "KILL", "--", parts.kubectl, f"--kubeconfig={kubeconfig}")
    code, output, errors = await run_command(*command, *arguments, stdin=stdin)
    if code:
        raise InstallationError(f"kubectl {arguments[0]}: {errors}")
    return output
