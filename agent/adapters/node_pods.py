"""The databases on one node: VMs, by their pods, and opted-in postgres pods (S4.3, per-node form).

A pod that cannot be decoded keeps its last state and is listed in ``unreadable``; other pods are unaffected.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Set
from contextlib import suppress
from typing import Final

from agent import texts
from agent.adapters.database_object import trimmed
from agent.adapters.kubernetes_api import LightKubernetesApi
from agent.assignments import Assignment, PodContainer
from agent.core.events import Fault
from agent.ports import ExpiredError, PortError, RefusedError, UnwatchedError
from protocol.kubernetes.objects import JsonObject, has_finished, labels_of, name_of, number, text
from protocol.kubernetes.pages import Unreadable, WatchEvent
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from protocol.names import LABEL_ENABLED, LABEL_VM_NAME
from protocol.pod_database import PodDatabase, is_pod_database, parse_pod_database
from protocol.runtime.url_hosts import url_host
from protocol.virtual_machine import InvalidObjectError

RUNNING: Final = "Running"

PodContents = Assignment | PodDatabase | str | None
"""What an agent must know of a pod: a VM, a postgres, or why it cannot be decoded; None if it has no agent."""


class PodStates:
    """The latest state of each postgres pod of a node. One watch serves the agents of all these pods."""

    def __init__(self) -> None:
        self._latest: dict[ObjectName, PodDatabase | str] = {}
        self._lost: PortError | None = None
        self._restores = 0
        self._followers: defaultdict[ObjectName, set[asyncio.Event]] = defaultdict(set)

    def put(self, pod: ObjectName, state: PodDatabase | str) -> None:
        """Store the pod, or the reason why it cannot be decoded."""
        # An older pod means that the store was restored from a backup. The store's own revision may still be higher.
        self._restores += _is_older(state, self._latest.get(pod))  # booleans are 0 or 1
        self._latest[pod] = state
        self._wake(pod)

    def remove(self, pod: ObjectName) -> None:
        """Drop a pod that was deleted, whose container has ended, or that is no longer selected."""
        # Do not wake its follower: the supervisor stops that agent, which would first report an error.
        self._latest.pop(pod, None)

    def listed(self, pods: Set[ObjectName]) -> None:
        """Start over with these pods, after a new list."""
        self._lost = None
        for pod in self._latest.keys() - pods:
            self.remove(pod)

    def lost(self, error: PortError) -> None:
        """Record that the watch failed: followers fail as well until the next list."""
        self._lost = error
        for pod in self._latest:
            self._wake(pod)

    async def follow(self, pod: ObjectName) -> AsyncIterator[PodDatabase]:
        """Yield the pod, now and after changes; skips some states. Ends if the store was restored from a backup.

        Raises ``UnwatchedError`` while the watch is down, ``RefusedError`` if there is no such pod, or ``PortError``.
        """
        changed, began = asyncio.Event(), self._restores
        self._followers[pod].add(changed)
        try:
            # After a restore the caller must read the pod, because its last view is newer than the store.
            while self._restores == began:
                yield self._state(pod)
                await changed.wait()
                changed.clear()
        finally:
            self._followers[pod].discard(changed)
            if not self._followers[pod]:
                del self._followers[pod]

    def _state(self, pod: ObjectName) -> PodDatabase:
        # A new error for each follower: an exception raised again accumulates tracebacks.
        if self._lost is not None:
            raise UnwatchedError(self._lost.fault, self._lost.reason)
        state = self._latest.get(pod)
        if state is None:
            raise RefusedError(Fault.VM_API, texts.OBJECT_DELETED.format(kind="Pod", name=pod))
        if isinstance(state, str):
            raise PortError(Fault.VM_API, texts.OBJECT_UNREADABLE.format(kind="Pod", reason=state))
        return state

    def _wake(self, pod: ObjectName) -> None:
        for follower in self._followers.get(pod, ()):
            follower.set()


class NodePods:
    """The VM pods on ``node``; only pods of ``scheduler`` if set.

    With ``serves_pods``, also the opted-in postgres pods of any scheduler (B.7), whose ``states`` agents can follow.
    """

    def __init__(self, api: LightKubernetesApi, node: str, scheduler: str = "", *, serves_pods: bool = False) -> None:
        self.unreadable: dict[ObjectName, str] = {}
        self.states = PodStates()
        self._api = api
        self._assignments: dict[ObjectName, Assignment] = {}
        self._scheduler = scheduler
        # Select on the server, so that an agent's traffic does not grow with the cluster. VMs of other schedulers are
        # left to their own agents (B.11).
        of_vms, by_scheduler = f",{LABEL_VM_NAME}", f",spec.schedulerName={scheduler}" if scheduler else ""
        self._selected = {
            # The number of ended pods of a node is not limited.
            "fieldSelector": f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
            + ("" if serves_pods else by_scheduler),
            "labelSelector": f"{LABEL_ENABLED}=true" + ("" if serves_pods else of_vms),
        }

    async def sets(self) -> AsyncIterator[frozenset[Assignment]]:
        """See ``AssignmentSource``. Ends when the watch ends or its version is too old."""
        try:
            version = await self._list()
            yield frozenset(self._assignments.values())
            # An expired version is not a failure: the supervisor calls again, and the pods are listed.
            with suppress(ExpiredError):
                async for event in self._api.watch(PODS.path(), self._selected, version):
                    if event.type != "BOOKMARK":
                        self._apply(event)
                        yield frozenset(self._assignments.values())
        except PortError as error:
            self.states.lost(error)
            raise

    async def _list(self) -> str:
        """List the pods, and return the version of the list. Raises ``PortError``; then nothing changes."""
        listed, version = dict[ObjectName, PodContents](), ""
        async for page in self._api.pages(PODS.path(), self._selected):
            version = page.version
            # Keep only what is needed of each: the pods of a node may be larger than the agent's memory.
            listed |= map(self._contents_of, page.objects())
        self.states.listed(listed.keys())
        before, self._assignments, self.unreadable = self._assignments, {}, {}
        for name, contents in listed.items():
            self._note(name, contents)
        # A pod that cannot be decoded keeps its runner, because its database still runs.
        self._assignments |= {name: before[name] for name in self.unreadable if name in before}
        return version

    def _apply(self, event: WatchEvent) -> None:
        self.unreadable.pop(event.name, None)
        if event.type == "DELETED":
            self._assignments.pop(event.name, None)
            self.states.remove(event.name)
        elif event.unreadable is not None:
            self._note(event.name, event.unreadable.reason)
        else:
            self._note(*self._contents_of(event.object))

    def _contents_of(self, pod: JsonObject | Unreadable) -> tuple[ObjectName, PodContents]:
        if isinstance(pod, Unreadable):
            return pod.name, pod.reason
        if LABEL_VM_NAME in labels_of(pod):
            is_ours = not self._scheduler or text(pod, "spec", "schedulerName") == self._scheduler
            return name_of(pod), assignment_of(pod) if is_ours else None
        try:
            return name_of(pod), database_in(pod)
        except InvalidObjectError as error:
            return name_of(pod), str(error)

    def _note(self, name: ObjectName, contents: PodContents) -> None:
        if isinstance(contents, str):
            self.unreadable[name] = contents
            self.states.put(name, contents)
            return
        # Remove it first: it may have ended or have a new address.
        self._assignments.pop(name, None)
        if isinstance(contents, PodDatabase):
            self.states.put(name, contents)
            container = PodContainer(contents.uid, contents.container_id)
            self._assignments[name] = Assignment(contents.name, name, contents.pod_ip, container)
            return
        self.states.remove(name)
        if contents is not None:
            self._assignments[name] = contents


def _is_older(state: PodDatabase | str, last: PodDatabase | str | None) -> bool:
    """Return True if ``state`` has an older version than ``last``."""
    if not (isinstance(state, PodDatabase) and isinstance(last, PodDatabase)):
        return False
    return number(state.resource_version) < number(last.resource_version)


def assignment_of(pod: JsonObject) -> Assignment | None:
    """The VM of ``pod``; None unless it is a running VM pod with an address. Never raises."""
    name, vm, address = name_of(pod), labels_of(pod).get(LABEL_VM_NAME), text(pod, "status", "podIP")
    # Without an address the guest cannot be reached yet. A terminating pod still counts: its VM may be migrating away.
    if not (vm and address) or has_finished(pod):
        return None
    try:
        url_host(address)
    except ValueError:
        return None
    return Assignment(ObjectName(name.namespace, vm), name, address)


def database_in(pod: JsonObject) -> PodDatabase | None:
    """The database in ``pod``; None unless it has opted in and its container runs. Raises ``InvalidObjectError``."""
    if not is_pod_database(pod) or has_finished(pod):
        return None
    database = trimmed(parse_pod_database(pod))
    # A container that has ended has no cgroup.
    return database if database.phase == RUNNING and database.container_id else None
