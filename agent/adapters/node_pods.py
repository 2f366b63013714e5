"""The VMs of one node, by the pods that run there (S4.3, per-node form).

A pod that cannot be decoded keeps its last known state and is listed in ``unreadable``; no other is affected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

from agent.adapters.kubernetes_api import LightKubernetesApi
from agent.assignments import Assignment
from agent.ports import ExpiredError
from protocol.kubernetes.objects import JsonObject, is_over, labels_of, name_of, text
from protocol.kubernetes.pages import Page, Unreadable, WatchEvent
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from protocol.names import LABEL_ENABLED, LABEL_VM_NAME
from protocol.runtime.url_hosts import url_host


class NodePods:
    """The VM pods of the node ``node``; only those of ``scheduler`` if it is named."""

    def __init__(self, api: LightKubernetesApi, node: str, scheduler: str = "") -> None:
        self.unreadable: dict[ObjectName, str] = {}
        self._api = api
        self._known: dict[ObjectName, Assignment] = {}
        # The server selects this node's opted-in pods, so that an agent's traffic does not grow with the cluster. VMs
        # of other schedulers are left to their own agents (B.11).
        self._selected = {
            "fieldSelector": f"spec.nodeName={node}" + (f",spec.schedulerName={scheduler}" if scheduler else ""),
            "labelSelector": f"{LABEL_ENABLED}=true,{LABEL_VM_NAME}",
        }

    async def sets(self) -> AsyncIterator[frozenset[Assignment]]:
        """All VMs of the node, now and after each change. Ends when the server ends the watch, or says: too old."""
        page = await self._api.list(PODS.path(), self._selected)
        self._listed(page)
        yield frozenset(self._known.values())
        # A version too old to watch from is no failure: the supervisor calls again, which lists the pods.
        with suppress(ExpiredError):
            async for event in self._api.watch(PODS.path(), self._selected, page.version):
                if event.type != "BOOKMARK":
                    self._apply(event)
                    yield frozenset(self._known.values())

    def _listed(self, page: Page) -> None:
        # A pod that cannot be decoded keeps its runner: its VM is still there.
        last_known = {pod.name: self._known[pod.name] for pod in page.unreadable if pod.name in self._known}
        self.unreadable = {pod.name: pod.reason for pod in page.unreadable}
        self._known = dict(filter(None, map(assignment_of, page.objects))) | last_known

    def _apply(self, event: WatchEvent) -> None:
        self.unreadable.pop(event.name, None)
        if event.type == "DELETED":
            self._known.pop(event.name, None)
        elif event.unreadable is not None:
            self._refuse(event.unreadable)
        else:
            # Removed first, and added again if it still counts: it may have ended, or have a new address.
            self._known.pop(event.name, None)
            self._known.update(filter(None, [assignment_of(event.object)]))

    def _refuse(self, pod: Unreadable) -> None:
        self.unreadable[pod.name] = pod.reason


def assignment_of(pod: JsonObject) -> tuple[ObjectName, Assignment] | None:
    """The pod's name and its VM; None unless it is a running VM pod with an address. Never raises."""
    name, vm, address = name_of(pod), labels_of(pod).get(LABEL_VM_NAME), text(pod, "status", "podIP")
    # Without an address the guest cannot be reached yet. A pod that is terminating still counts: its VM may be
    # migrating away.
    if not (vm and address) or is_over(pod):
        return None
    try:
        url_host(address)
    except ValueError:
        return None
    return name, Assignment(ObjectName(name.namespace, vm), name, address)
