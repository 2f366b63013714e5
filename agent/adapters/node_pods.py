"""The databases on one node: VMs, by their pods, and opted-in postgres pods (S4.3, per-node form).

A pod that cannot be decoded keeps its last state and is listed in ``unreadable``; other pods are unaffected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from agent.adapters.kubernetes_api import LightKubernetesApi
from agent.assignments import Assignment, PodContainer
from agent.ports import ExpiredError
from protocol.kubernetes.objects import JsonObject, is_over, labels_of, name_of, text
from protocol.kubernetes.pages import Page, Unreadable, WatchEvent
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from protocol.names import LABEL_ENABLED, LABEL_VM_NAME
from protocol.pod_database import is_pod_database, parse_pod_database
from protocol.runtime.url_hosts import url_host
from protocol.virtual_machine import InvalidObjectError

RUNNING: Final = "Running"


class NodePods:
    """The VM pods on ``node``; if ``scheduler`` is given, only its pods.

    With ``serves_pods`` also the opted-in postgres pods, of any scheduler (B.7).
    """

    def __init__(self, api: LightKubernetesApi, node: str, scheduler: str = "", *, serves_pods: bool = False) -> None:
        self.unreadable: dict[ObjectName, str] = {}
        self._api = api
        self._known: dict[ObjectName, Assignment] = {}
        self._scheduler = scheduler
        # The server selects this node's opted-in pods, so that an agent's traffic does not grow with the cluster. VMs
        # of other schedulers are left to their own agents (B.11).
        of_vms, by_scheduler = f",{LABEL_VM_NAME}", f",spec.schedulerName={scheduler}" if scheduler else ""
        self._selected = {
            "fieldSelector": f"spec.nodeName={node}" + ("" if serves_pods else by_scheduler),
            "labelSelector": f"{LABEL_ENABLED}=true" + ("" if serves_pods else of_vms),
        }

    async def sets(self) -> AsyncIterator[frozenset[Assignment]]:
        """All databases on the node, now and after each change. Ends when the watch ends or its version is too old."""
        page = await self._api.list(PODS.path(), self._selected)
        self._listed(page)
        yield frozenset(self._known.values())
        # An expired version is not a failure: the supervisor calls again, which lists the pods.
        with suppress(ExpiredError):
            async for event in self._api.watch(PODS.path(), self._selected, page.version):
                if event.type != "BOOKMARK":
                    self._apply(event)
                    yield frozenset(self._known.values())

    def _listed(self, page: Page) -> None:
        # A pod that cannot be decoded keeps its runner: its database is still there.
        before, self._known = self._known, {}
        self.unreadable = {pod.name: pod.reason for pod in page.unreadable}
        for pod in page.objects:
            self._read(pod)
        self._known |= {name: before[name] for name in self.unreadable if name in before}

    def _apply(self, event: WatchEvent) -> None:
        self.unreadable.pop(event.name, None)
        if event.type == "DELETED":
            self._known.pop(event.name, None)
        elif event.unreadable is not None:
            self._refuse(event.unreadable)
        else:
            self._read(event.object)

    def _read(self, pod: JsonObject) -> None:
        name = name_of(pod)
        try:
            assignment = self._assignment(pod)
        except InvalidObjectError as error:
            self.unreadable[name] = str(error)
            return
        # Removed and added again if it still counts: it may have ended or have a new address.
        self._known.pop(name, None)
        if assignment is not None:
            self._known[name] = assignment

    def _assignment(self, pod: JsonObject) -> Assignment | None:
        if LABEL_VM_NAME not in labels_of(pod):
            return database_in(pod)
        is_ours = not self._scheduler or text(pod, "spec", "schedulerName") == self._scheduler
        return assignment_of(pod) if is_ours else None

    def _refuse(self, pod: Unreadable) -> None:
        self.unreadable[pod.name] = pod.reason


def assignment_of(pod: JsonObject) -> Assignment | None:
    """The VM of ``pod``; None unless it is a running VM pod with an address. Never raises."""
    name, vm, address = name_of(pod), labels_of(pod).get(LABEL_VM_NAME), text(pod, "status", "podIP")
    # Without an address the guest cannot be reached yet. A pod that is terminating still counts: its VM may be
    # migrating away.
    if not (vm and address) or is_over(pod):
        return None
    try:
        url_host(address)
    except ValueError:
        return None
    return Assignment(ObjectName(name.namespace, vm), name, address)


def database_in(pod: JsonObject) -> Assignment | None:
    """The database in ``pod``; None unless it has opted in and its container runs. Raises ``InvalidObjectError``."""
    if not is_pod_database(pod) or is_over(pod):
        return None
    database = parse_pod_database(pod)
    # A container that has ended has no cgroup.
    if database.phase != RUNNING or not database.container_id:
        return None
    container = PodContainer(database.uid, database.container_id)
    return Assignment(database.name, name_of(pod), database.pod_ip, container)
