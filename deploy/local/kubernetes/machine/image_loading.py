"""Puts images on the nodes of a running cluster, because there is no registry."""

from __future__ import annotations

import asyncio
from pathlib import Path

from deploy.local.kubernetes.plan.cluster_plan import CONTAINERD_SOCKET, PROGRAMS


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
    """The pid of the first process of each node that runs."""
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
