"""Autoscaled pods on a node of a local cluster, with real but empty cgroups (B.7)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json, items, name_of, pod_phase, text, uid_of
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_BOUNDS, LABEL_ENABLED
from protocol.pod_database import DEFAULT_CONTAINER

CGROUPS: Final = Path("/sys/fs/cgroup")
_PARENT: Final = "bench-agents"
_CONTROLLERS_V1: Final = ("memory", "cpu", "cpuacct")
_POLL: Final = 0.2
_TIMEOUT: Final = 60.0


@contextmanager
def kubepods() -> Iterator[list[Path]]:
    """Create the kubelet's burstable cgroup (v1: one per controller), remove it on exit. Raises ``OSError``."""
    roots = [CGROUPS] if (CGROUPS / "cgroup.controllers").exists() else [CGROUPS / name for name in _CONTROLLERS_V1]
    folders = [root / _PARENT / "kubepods" / "burstable" for root in roots]
    try:
        for root, folder in zip(roots, folders, strict=True):
            _create_cgroup(root, folder)
        yield folders
    finally:
        for root in roots:
            # A cgroup can only be removed after its children.
            for path, _, _ in os.walk(root / _PARENT, topdown=False):
                Path(path).rmdir()


async def run_pods(client: ApiClient, node: str, count: int, folders: list[Path]) -> None:
    """Create ``count`` pods on ``node`` and wait until they run. Raises ``ApiError``, ``OSError``, ``TimeoutError``."""
    for number in range(count):
        await client.create(PODS, "default", _pod(f"pg-{number}", node))
    async with asyncio.timeout(_TIMEOUT):
        for number in range(count):
            await _mark_started(client, ObjectName("default", f"pg-{number}"), folders)


async def _mark_started(client: ApiClient, name: ObjectName, folders: list[Path]) -> None:
    # The local kubelet runs no containers, so it sets no container IDs.
    while pod_phase(pod := await client.get(PODS, name)) != "Running":  # noqa: ASYNC110 - another process changes it
        await asyncio.sleep(_POLL)
    container = uid_of(pod).replace("-", "")
    for folder in folders:
        _create_cgroup(folder, folder / f"pod{uid_of(pod)}" / container)
    resources = items(pod, "spec", "containers")[0]["resources"]
    states = [
        {**state, "containerID": f"containerd://{container}", "resources": resources}
        for state in items(pod, "status", "containerStatuses")
        if text(state, "name") == DEFAULT_CONTAINER
    ]
    await client.merge_patch(PODS, name_of(pod), {"status": {"containerStatuses": states}}, "status")


def _create_cgroup(root: Path, folder: Path) -> None:
    """Create ``folder`` and its parents path ``root``; on cgroup v2, enable the controllers of containers."""
    for path in (*reversed(folder.relative_to(root).parents), folder.relative_to(root)):
        (root / path).mkdir(exist_ok=True)
        if (root / path / "cgroup.subtree_control").exists() and root / path != folder:
            (root / path / "cgroup.subtree_control").write_text("+cpu +memory +io")


def _pod(name: str, node: str) -> Json:
    resources = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {LABEL_ENABLED: "true"},
            "annotations": {ANNOTATION_BOUNDS: '{"max": {"cpu": 4, "mem": "8Gi"}}'},
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": DEFAULT_CONTAINER, "image": "postgres", "resources": resources}],
        },
    }
