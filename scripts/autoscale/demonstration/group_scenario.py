"""The scenario of a group, which replaces the VMs and scales with the load at its read endpoint (S1.12)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.conditions import condition_of, is_condition_true
from protocol.kubernetes.objects import Json, child, integer, is_terminating, items, labels_of, name_of, text
from protocol.kubernetes.resources import VIRTUAL_MACHINES, VM_GROUPS
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_CONFIG, LABEL_GROUP
from protocol.runtime.clock import Clock, wait_until
from protocol.units import Instant, MilliCpu, Resources, Seconds
from scripts.autoscale.demonstration.fleet import bar
from scripts.autoscale.demonstration.loads import ReplicaLoad
from scripts.autoscale.demonstration.report import GroupObservations
from scripts.autoscale.demonstration.vm_database import make_password, postgres_vm
from scripts.autoscale.demonstration.waiting import run_all
from scripts.autoscale.demonstration.watcher import Watcher
from scripts.autoscale.site import Site, SiteError

_BAR = 24


class GroupWatch:
    """Watches a group; run ``run`` in a task.

    Calls ``on_change`` with the number of serving replicas and the vCPUs of each VM.
    """

    def __init__(
        self, client: ApiClient, group: ObjectName, clock: Clock, on_change: Callable[[int, Mapping[str, float]], None]
    ) -> None:
        self._group = group
        self._on_change = on_change
        self._groups = Informer(client, VM_GROUPS, clock)
        self._vms = Informer(client, VIRTUAL_MACHINES, clock)
        for informer in (self._groups, self._vms):
            # The callback needs the group and all its VMs, whichever has changed.
            informer.listen(lambda _: self._changed())

    async def run(self) -> None:
        """Watches until cancelled."""
        await run_all(self._groups.run(), self._vms.run())

    @property
    def group(self) -> Json:
        """The group's object; empty until it is known."""
        return self._groups.get(self._group) or {}

    @property
    def vms(self) -> list[Json]:
        """The VMs of the group, by name."""
        members = [vm for vm in self._vms.objects.values() if labels_of(vm).get(LABEL_GROUP) == self._group.name]
        return sorted(members, key=lambda vm: name_of(vm).name)

    @property
    def others(self) -> list[ObjectName]:
        """The names of VMs outside the group."""
        return [name for name, vm in self._vms.objects.items() if LABEL_GROUP not in labels_of(vm)]

    @property
    def serving(self) -> int:
        """The number of replicas that the read endpoint lists."""
        return integer(self.group, "status", "readyReplicas")

    @property
    def is_ready(self) -> bool:
        """True if all desired replicas serve."""
        return is_condition_true(self.group, "Ready")

    @property
    def why(self) -> str:
        """The reason for the number of replicas, or why not all serve."""
        scaling = text(self.group, "status", "scaling", "message")
        return "; ".join(filter(None, (text(condition_of(self.group, "Ready"), "message"), scaling)))

    def rows(self) -> list[tuple[str, str, str]]:
        """A row for each VM: its name, a bar of its vCPUs, its state and node."""
        states = {text(member, "name"): text(member, "state") for member in items(self.group, "status", "members")}
        return [_row(vm, states.get(name_of(vm).name, "")) for vm in self.vms]

    def _changed(self) -> None:
        # Without VMs that have not booted, which would be drawn as shrunk to zero.
        self._on_change(self.serving, {name_of(vm).name: cores(vm) for vm in self.vms if cores(vm)})


def cores(vm: Json) -> float:
    """The guest's current vCPUs; 0 if it is not running (pure)."""
    return MilliCpu.parse(text(vm, "status", "cpus") or 0).as_cores


def _row(vm: Json, state: str) -> tuple[str, str, str]:
    max_cpus = child(vm, "spec", "guest", "cpus").get("max")
    # The API accepts a quantity as an integer or a string.
    largest = MilliCpu.parse(max_cpus).as_cores if isinstance(max_cpus, (int, str)) else 0.0
    # The group's state of a member is more precise than the phase of its VM.
    activity = "Leaving" if is_terminating(vm) else state or text(vm, "status", "phase") or "Pending"
    picture = f"{bar(cores(vm), cores(vm), largest, _BAR)} {cores(vm):g}/{largest:g} vCPU"
    return name_of(vm).name, picture, f"{activity} on {text(vm, 'status', 'node') or '-'}"


GROUP: Final = ObjectName("default", "shop")
PRIMARY: Final = ObjectName("default", "shop-primary")
FIRST: Final = ObjectName("default", "shop-replica-0")
"""The group's first replica."""
MOST_REPLICAS: Final = 2
LEAST_CPUS: Final = 1
MOST_CPUS: Final = 2
_SLOTS: Final = 4
_UTILIZATION: Final = 40
"""Percent. Low, because emulated guests and their clients share the CPUs of one machine; not lower, because two idle
guests were seen to use half a CPU together.
"""
_DOWN_DELAY: Final = "90s"
"""Longer than a replica takes to start, which takes load from the other one on a busy machine."""


def demo_group(policy: str) -> Json:
    """A group of a primary and one or two replicas, each with 1 to 2 CPUs; ``policy`` is the agents' policy."""
    vm = postgres_vm(GROUP, cpus=MOST_CPUS, slots=_SLOTS)
    metadata = {"labels": child(vm, "metadata", "labels"), "annotations": {ANNOTATION_CONFIG: policy}}
    return {
        "apiVersion": VM_GROUPS.api_version,
        "kind": VM_GROUPS.kind,
        "metadata": {"name": GROUP.name, "namespace": GROUP.namespace},
        "spec": {
            "replicas": 1,
            "template": {"metadata": metadata, "spec": child(vm, "spec")},
            "scaling": {
                "minReplicas": 1,
                "maxReplicas": MOST_REPLICAS,
                "targetCPUUtilizationPercentage": _UTILIZATION,
                "scaleUpDelay": "5s",
                "scaleDownDelay": _DOWN_DELAY,
            },
            "drain": {"gracePeriod": "20s"},
        },
    }


_LEAVE: Final = Seconds(60.0)
_BOOT: Final = Seconds(360.0)
"""Seconds for an emulated primary, and then a replica that copies it."""
_LONGEST_LOAD: Final = Seconds(300.0)
"""A second replica copies the primary while the first one is loaded."""
_REST: Final = Seconds(90.0)
"""Until a guest that has just started or was written to is idle, unless the machine is busy."""
_ALL_SERVE: Final = Seconds(10.0)
_ROOM: Final = Seconds(240.0)
_BACK: Final = Seconds(300.0)
"""The window, the delay, a drain and a shrink, doubled for a busy machine."""


@dataclass(slots=True)
class GroupScenario:
    """Loads a group's replicas; run ``watch`` in a task from the start.

    ``elapsed`` returns the time since the demonstration began.
    """

    site: Site
    clock: Clock
    announce: Callable[[str], None]
    elapsed: Callable[[], Seconds]
    read_load: Callable[[], Awaitable[ReplicaLoad]]
    policy: str
    observed: GroupObservations = field(default_factory=lambda: GroupObservations(FIRST.name))
    tps: float | None = None
    watcher: GroupWatch = field(init=False)
    replica: Watcher = field(init=False)
    """Watches the group's first replica."""

    def __post_init__(self) -> None:
        self.replica = Watcher(self.site, FIRST, self.clock, lambda _: None, self._reasoned)
        self.watcher = GroupWatch(self.site.client, GROUP, self.clock, self._changed)

    async def watch(self) -> None:
        """Watches until cancelled."""
        await run_all(self.watcher.run(), self.replica.run())

    async def settle(self) -> None:
        """Deletes the VMs of the other scenarios, and waits until the group serves. Raises ``SiteError``."""
        for name in self.watcher.others:
            with suppress(ApiRefusedError):  # already gone
                await self.site.client.delete(VIRTUAL_MACHINES, name)
        await self._until(lambda: not self.watcher.others, _LEAVE, "VMs of the other scenarios did not end")
        await make_password(self.site.client, demo_group(self.policy))
        await self.site.client.create(VM_GROUPS, GROUP.namespace, demo_group(self.policy))
        await self._until(lambda: self.watcher.is_ready, _BOOT, "the group did not come up")
        self.announce("the group serves: a primary, and a replica with streaming replication")

    async def play(self) -> None:
        """Loads the replicas until another one serves, and waits until it is removed. Raises ``SiteError``."""
        load, observations = await self.read_load(), self.observed
        # The guest need not become idle: the scenario needs only `_has_room`.
        await wait_until(lambda: 0.0 < self._size() <= LEAST_CPUS, self.clock, _REST)
        await self._until(
            self._has_room, _ROOM, "the replica stays large without load, which leaves it no room to grow"
        )
        observations.started_at = self._size()
        observations.load_began = self.elapsed()
        self.announce(f"reading from {GROUP.name}-read at full speed")
        outcome = await load(self._is_load_needed(), self._on_tps)
        self.tps, observations.load_ended = None, self.elapsed()
        observations.transactions, observations.failed = outcome.transactions, outcome.failed
        observations.problem = outcome.problem
        observations.message_under_load = self._group_message(
            Seconds(observations.load_ended - observations.load_began)
        )
        self.announce("the reads have ended")
        if not await wait_until(self._is_back, self.clock, _BACK):
            observations.last_message = self._group_message(_BACK)

    def _group_message(self, waited: Seconds) -> str:
        """The group's message after a wait."""
        return f"within {waited:.0f} s: {self.watcher.why or 'the group gives no reason'}"

    def _is_load_needed(self) -> Callable[[], bool]:
        """A condition that holds until both replicas have served for a while, or for too long."""
        began, all_serve = self.clock.now(), list[Instant]()

        def is_needed() -> bool:
            now = self.clock.now()
            # From the first time at which both serve; later dips do not restart the wait.
            if self.watcher.serving >= MOST_REPLICAS and not all_serve:
                all_serve.append(now)
            return now < began + _LONGEST_LOAD and (not all_serve or now < all_serve[0] + _ALL_SERVE)

        return is_needed

    def _size(self) -> float:
        return self.observed.points[-1].cpus.get(FIRST.name, 0.0) if self.observed.points else 0.0

    def _has_room(self) -> bool:
        return 0.0 < self._size() < MOST_CPUS

    def _is_back(self) -> bool:
        return len(self.watcher.vms) == 2 and self.watcher.serving == 1 and self._size() <= self.observed.started_at

    def _on_tps(self, tps: float) -> None:
        self.tps = tps
        self.observed.load.append((round(self.elapsed(), 1), tps))

    def _reasoned(self, size: Resources, because: str) -> None:
        if because:
            self.announce(f"{FIRST.name}: {size}: {because}")

    def _changed(self, serving: int, cpus: Mapping[str, float]) -> None:
        if self.observed.record(self.elapsed(), serving, cpus) and cpus:
            sizes = ", ".join(f"{name.removeprefix(f'{GROUP.name}-')} {cores:g} vCPU" for name, cores in cpus.items())
            self.announce(f"{serving} {'replica serves' if serving == 1 else 'replicas serve'}; {sizes}")

    async def _until(self, condition: Callable[[], bool], at_most: Seconds, otherwise: str) -> None:
        if not await wait_until(condition, self.clock, at_most):
            raise SiteError(f"{otherwise} {self._group_message(at_most)}; see: kubectl describe vmg")
