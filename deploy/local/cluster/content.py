"""Initial objects of an embedded cluster: CRDs, nodes and VMs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from deploy.kube.client import ApiClient
from deploy.local.kubelet.node_object import NodeSpec, node_labels, node_object
from protocol.kubernetes.api import ApiUnknownError
from protocol.kubernetes.conditions import is_condition_true
from protocol.kubernetes.objects import Json, name_of, node_of
from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, NODES, PODS, VIRTUAL_MACHINES
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.names import LABEL_ENABLED, VM_GROUP, VM_VERSION
from protocol.runtime.clock import Clock
from protocol.units import Seconds
from protocol.yaml_text import read_documents

_DEPLOY: Final = Path(__file__).resolve().parents[2]
# Resolved: kubectl does not follow a symbolic link to a folder.
CRD_FOLDERS: Final = ((_DEPLOY / "kubernetes" / "crds").resolve(), _DEPLOY / "local" / "crds")
"""Our own CRDs, and third-party CRDs for local clusters."""

_PAUSE: Final = Seconds(0.05)
_REPORT_EVERY: Final = 250  # VMs
_RETRY: Final = Seconds(1.0)
_TIMEOUT: Final = Seconds(60.0)


@cache
def local_crds() -> tuple[Json, ...]:
    """The CRDs of a local cluster. The result is cached: do not modify it."""
    documents = (
        document
        for folder in CRD_FOLDERS
        for file in sorted(folder.glob("*.yaml"))
        for document in read_documents(file.read_text())
    )
    # Files may contain other kinds too, and a trailing `---` makes an empty document.
    return tuple(
        dict(document)
        for document in documents
        if isinstance(document, dict) and document.get("kind") == "CustomResourceDefinition"
    )


async def apply_crds(client: ApiClient, clock: Clock) -> int:
    """Create the CRDs of a local cluster, wait until they are served, and return their number."""
    crds = local_crds()
    for crd in crds:
        await client.ensure(CUSTOM_RESOURCE_DEFINITIONS, "", crd)
    # A second loop: the server establishes them in parallel.
    for crd in crds:
        while not is_condition_true(await client.get(CUSTOM_RESOURCE_DEFINITIONS, name_of(crd)), "Established"):
            await clock.sleep(_PAUSE)
    return len(crds)


async def register_node(client: ApiClient, node: NodeSpec, clock: Clock) -> None:
    """Create the Node, or update the labels and status of an existing one; without changing its taints."""
    body = node_object(node, timestamp(clock.wall()))
    await client.ensure(NODES, "", body)
    name = ObjectName("", node.name)
    # `ensure` does not change an existing node.
    await client.merge_patch(NODES, name, {"metadata": {"labels": node_labels(node)}})
    await client.merge_patch(NODES, name, {"status": body["status"]}, "status")


async def delete_other_nodes(client: ApiClient, names: frozenset[str]) -> None:
    """Delete nodes of an earlier run that are not in ``names``, and their pods."""
    for node in (await client.list(NODES)).objects:
        if name_of(node).name not in names:
            await client.delete(NODES, name_of(node))
    for pod in (await client.list(PODS)).objects:
        if node_of(pod) and node_of(pod) not in names:
            # No kubelet is left to confirm a graceful deletion.
            await client.delete(PODS, name_of(pod), grace=0)


def simulated_vm(number: int) -> Json:
    """A small VM named ``vm-<number>`` (pure)."""
    return {
        "apiVersion": f"{VM_GROUP}/{VM_VERSION}",
        "kind": "VirtualMachine",
        "metadata": {"name": f"vm-{number}", "namespace": "default", "labels": {LABEL_ENABLED: "true"}},
        "spec": {
            "schedulerName": "autoscale-scheduler",
            "extraNetwork": {"enable": True},
            "guest": {
                "cpus": {"min": "500m", "max": 4, "use": "500m"},
                "memorySlotSize": "128Mi",
                "memorySlots": {"min": 1, "max": 8, "use": 1},
                "rootDisk": {"image": "postgres:15"},
            },
        },
    }


async def create_vms(client: ApiClient, count: int, clock: Clock, report: Callable[[str], None]) -> None:
    """Create ``vm-1`` to ``vm-<count>`` unless they exist; calls ``report`` with the progress."""
    for number in range(1, count + 1):
        await _ensure_vm(client, simulated_vm(number), clock)
        if number % _REPORT_EVERY == 0:
            report(f"{number} of {count}")


async def _ensure_vm(client: ApiClient, vm: Json, clock: Clock) -> None:
    """Create the VM; retry while the API server does not respond."""
    deadline = clock.now() + _TIMEOUT
    while True:
        try:
            return await client.ensure(VIRTUAL_MACHINES, "default", vm)
        except ApiUnknownError:
            if clock.now() >= deadline:
                raise
        await clock.sleep(_RETRY)
