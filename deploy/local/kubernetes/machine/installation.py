"""Puts the autoscaler on a running real cluster, from the project's own manifests and images, as people would."""

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
    for_version,
    hopeless,
    moving_soon,
    not_rolled_out,
)
from deploy.local.kubernetes.programs.ensure import built_apart
from deploy.local.kubernetes.programs.images import InstallationParts
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.resources import DAEMON_SETS, DEPLOYMENTS, PODS
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds


class ImageLoadError(Exception):
    """An image could not be put on a node; the message says why."""


async def load_image(nodes: Path, archive: Path) -> list[str]:
    """Imports an archive, as ``docker save`` or an image builder writes it, into every node below the folder ``nodes``.

    Returns the nodes' names. Raises ``ImageLoadError``.
    """
    pids = _first_processes(nodes)
    if not pids:
        raise ImageLoadError("no node of a real Kubernetes runs: autoscale local up --kubernetes")
    await asyncio.gather(*(_import(node, pid, archive) for node, pid in pids.items()))
    return list(pids)


def _first_processes(nodes: Path) -> dict[str, str]:
    # A node writes the file when it has booted and removes it when it ends.
    return {file.parent.name: file.read_text().strip() for file in sorted(nodes.glob("*/pid"))}


async def _import(node: str, pid: str, archive: Path) -> None:
    # `k8s.io` is the containerd namespace in which the kubelet looks for images.
    ctr = (f"{PROGRAMS}/containerd/ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io")
    with archive.open("rb") as content:
        process = await asyncio.create_subprocess_exec(
            # The socket is on the node's own file system. The archive comes as standard input, since the node may not
            # see its path.
            *("nsenter", f"--target={pid}", "--mount", "--net", "--", *ctr, "images", "import", "-"),
            stdin=content,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, complaint = await process.communicate()
    if process.returncode:
        raise ImageLoadError(f"{archive} cannot be put on {node}: {complaint.decode(errors='replace').strip()}")


_PROJECT: Final = Path(__file__).parents[4]
_PATIENCE: Final = Seconds(180.0)
_PAUSE: Final = Seconds(0.3)


class InstallationError(Exception):
    """The autoscaler could not be installed; the message says why."""


async def built_parts(
    minor: str, folder: Path, report: Callable[[str], None], of: Installation = FOR_VMS
) -> InstallationParts:
    """Builds the images and writes their archives into ``folder``. Raises ``NoProgramsError``."""
    output = await built_apart("deploy.local.kubernetes.programs.images", [minor, str(folder), *of.images], report)
    return msgspec.json.decode(output, type=InstallationParts)


async def apply_manifests(kubeconfig: Path, parts: InstallationParts, of: Installation = FOR_VMS) -> None:
    """Applies the manifests. Raises ``InstallationError`` with what kubectl says."""
    texts = [moving_soon(for_version((_PROJECT / manifest).read_text(), parts.version)) for manifest in of.manifests]
    # Takes over fields that somebody applied by hand without --server-side, instead of failing with a conflict.
    how = ("apply", "--server-side", "--force-conflicts", "--filename=-")
    await kubectl(kubeconfig, parts, *how, typed="\n---\n".join(texts))


async def rolled_out(
    client: ApiClient, clock: Clock, report: Callable[[str], None], of: Installation = FOR_VMS
) -> None:
    """Returns once all that was applied runs. Raises ``InstallationError`` when it cannot, or not in time."""
    deadline = Instant(clock.now() + _PATIENCE)
    reported = list[str]()
    while left := await _left(client, of):
        if clock.now() >= deadline:
            raise InstallationError(f"after {_PATIENCE:g} s there is still no {', '.join(left)}")
        # Polled several times a second, but only changes are printed.
        if left != reported:
            reported = left
            report(f"waiting for {', '.join(left)}")
        await clock.sleep(_PAUSE)


async def _left(client: ApiClient, of: Installation) -> list[str]:
    try:
        # Checked in every round, so that a wait that can no longer succeed ends at once, with the reason.
        if reason := hopeless((await client.list(PODS, NAMESPACE)).objects):
            raise InstallationError(reason)
        lists = [await client.list(kind, NAMESPACE) for kind in (DEPLOYMENTS, DAEMON_SETS)]
    except ApiError as error:
        return [f"answer of the API server ({error})"]
    return not_rolled_out((workload for workloads in lists for workload in workloads.objects), of)


async def kubectl(kubeconfig: Path, parts: InstallationParts, *arguments: str, typed: str = "") -> str:
    """Output of kubectl. Raises ``InstallationError`` with its error output."""
    process = await asyncio.create_subprocess_exec(
        # The kernel kills kubectl with this process.
        *("setpriv", "--pdeathsig", "KILL", "--", parts.kubectl, f"--kubeconfig={kubeconfig}", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, complaint = await process.communicate(typed.encode())
    finally:
        # Without an exit code only if this task was cancelled.
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise InstallationError(f"kubectl {arguments[0]}: {complaint.decode(errors='replace').strip()}")
    return output.decode(errors="replace")
