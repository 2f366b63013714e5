"""The third act: a group takes the place of the VMs, and follows the load at its read endpoint (S1.12)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.conditions import condition_of, holds
from protocol.kubernetes.objects import Json, child, is_terminating, items, labels_of, name_of, text, whole
from protocol.kubernetes.resources import VIRTUAL_MACHINES, VM_GROUPS
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_CONFIG, LABEL_GROUP
from protocol.runtime.clock import Clock
from protocol.units import Instant, MilliCpu, Resources, Seconds
from scripts.autoscale.demonstration.fleet import bar
from scripts.autoscale.demonstration.loads import PressReplicas
from scripts.autoscale.demonstration.report import GroupObservations
from scripts.autoscale.demonstration.vm_database import make_password, postgres_vm
from scripts.autoscale.demonstration.waiting import comes, together
from scripts.autoscale.demonstration.watcher import Watcher
from scripts.autoscale.site import Site, SiteError

_BAR = 24


class GroupWatch:
    """Run ``run`` in a task. ``on_change`` hears the number of replicas that serve and the vCPUs of every VM."""

    def __init__(
        self, client: ApiClient, group: ObjectName, clock: Clock, on_change: Callable[[int, Mapping[str, float]], None]
    ) -> None:
        self._group = group
        self._on_change = on_change
        self._groups = Informer(client, VM_GROUPS, clock)
        self._vms = Informer(client, VIRTUAL_MACHINES, clock)
        for informer in (self._groups, self._vms):
            # The callback needs the group and all of its VMs, whichever of them has changed.
            informer.listen(lambda _: self._changed())

    async def run(self) -> None:
        """Watches until cancelled."""
        await together(self._groups.run(), self._vms.run())

    @property
    def group(self) -> Json:
        """The group's object; empty before it is seen."""
        return self._groups.get(self._group) or {}

    @property
    def vms(self) -> list[Json]:
        """The VMs of the group, by name."""
        members = [vm for vm in self._vms.objects.values() if labels_of(vm).get(LABEL_GROUP) == self._group.name]
        return sorted(members, key=lambda vm: name_of(vm).name)

    @property
    def others(self) -> list[ObjectName]:
        """The VMs that are not the group's."""
        return [name for name, vm in self._vms.objects.items() if LABEL_GROUP not in labels_of(vm)]

    @property
    def serving(self) -> int:
        """The number of replicas that the read endpoint lists."""
        return whole(self.group, "status", "readyReplicas")

    @property
    def is_ready(self) -> bool:
        """True if all that is wanted serves."""
        return holds(self.group, "Ready")

    @property
    def why(self) -> str:
        """The reason for its number of replicas, or why not all serve."""
        scaling = text(self.group, "status", "scaling", "message")
        return "; ".join(filter(None, (text(condition_of(self.group, "Ready"), "message"), scaling)))

    def rows(self) -> list[tuple[str, str, str]]:
        """A row for each VM: its name, a bar of its vCPUs, and what it does on which node."""
        states = {text(member, "name"): text(member, "state") for member in items(self.group, "status", "members")}
        return [_row(vm, states.get(name_of(vm).name, "")) for vm in self.vms]

    def _changed(self) -> None:
        # A VM that has not booted has no vCPUs yet, and would be drawn as shrunk to nothing.
        self._on_change(self.serving, {name_of(vm).name: cores(vm) for vm in self.vms if cores(vm)})


def cores(vm: Json) -> float:
    """The vCPUs that the guest has now; 0 if it does not run (pure)."""
    # A VM that does not run has no CPUs in its status.
    return MilliCpu.parse(text(vm, "status", "cpus") or 0).as_cores


def _row(vm: Json, state: str) -> tuple[str, str, str]:
    most = child(vm, "spec", "guest", "cpus").get("max")
    # As in any object of the API, the quantity may be an integer or a string.
    largest = MilliCpu.parse(most).as_cores if isinstance(most, (int, str)) else 0.0
    # The group's own state of a member says more than the phase of its VM.
    does = "Leaving" if is_terminating(vm) else state or text(vm, "status", "phase") or "Pending"
    picture = f"{bar(cores(vm), cores(vm), largest, _BAR)} {cores(vm):g}/{largest:g} vCPU"
    return name_of(vm).name, picture, f"{does} on {text(vm, 'status', 'node') or '-'}"


GROUP: Final = ObjectName("default", "shop")
PRIMARY: Final = ObjectName("default", "shop-primary")
FIRST: Final = ObjectName("default", "shop-replica-0")
"""The replica that the group begins with."""

MOST_REPLICAS: Final = 2
LEAST_CPUS: Final = 1
MOST_CPUS: Final = 2
_SLOTS: Final = 4
_UTILIZATION: Final = 40
"""Low: an emulated guest, the clients and the way between them share the CPUs of one machine. Not lower: two idle
guests that wait for these CPUs were seen to be busy with half a CPU together.
"""
_DOWN_DELAY: Final = "90s"
"""Longer than a replica takes to start: on a busy machine the load of the other one falls meanwhile."""


def demo_group(policy: str) -> Json:
    """A primary and one replica that may become two, each of 1 to 2 CPUs; ``policy`` is that of their agents."""
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
"""A primary and then a replica that copies it, emulated."""
_LONGEST_LOAD: Final = Seconds(300.0)
"""A second replica copies the primary while the first one is loaded."""
_REST: Final = Seconds(90.0)
"""A guest that has just started or was written to comes to rest, unless the machine is busy."""
_TOGETHER: Final = Seconds(10.0)
_ROOM: Final = Seconds(240.0)
_BACK: Final = Seconds(300.0)
"""The window, the delay, a drain and a shrink, with as much again for a busy machine."""


@dataclass(slots=True)
class GroupScenario:
    """Run ``watch`` in a task from the beginning. ``elapsed`` is the time on the demonstration's clock."""

    site: Site
    clock: Clock
    tell: Callable[[str], None]
    elapsed: Callable[[], Seconds]
    read_load: Callable[[], Awaitable[PressReplicas]]
    policy: str
    seen: GroupObservations = field(default_factory=lambda: GroupObservations(FIRST.name))
    tps: float | None = None
    watcher: GroupWatch = field(init=False)
    replica: Watcher = field(init=False)
    """The replica that the group begins with, as the other acts watch their VM."""

    def __post_init__(self) -> None:
        self.replica = Watcher(self.site, FIRST, self.clock, lambda _: None, self._reasoned)
        self.watcher = GroupWatch(self.site.client, GROUP, self.clock, self._changed)

    async def watch(self) -> None:
        """Watches until cancelled."""
        await together(self.watcher.run(), self.replica.run())

    async def settle(self) -> None:
        """Ends the VMs of the other acts, and waits until the group serves. Raises ``SiteError``."""
        for name in self.watcher.others:
            with suppress(ApiRefusedError):  # it has gone meanwhile
                await self.site.client.delete(VIRTUAL_MACHINES, name)
        await self._until(lambda: not self.watcher.others, _LEAVE, "VMs of the other acts did not end")
        await make_password(self.site.client, demo_group(self.policy))
        await self.site.client.create(VM_GROUPS, GROUP.namespace, demo_group(self.policy))
        await self._until(lambda: self.watcher.is_ready, _BOOT, "the group did not come up")
        self.tell("the group serves: a primary, and a replica that streams from it")

    async def play(self) -> None:
        """Loads the replicas until another one serves, and waits until that has gone again. Raises ``SiteError``."""
        press, observations = await self.read_load(), self.seen
        # A failure to come to rest is no reason to stop: `_has_room` is what the act needs.
        await comes(lambda: 0.0 < self._size() <= LEAST_CPUS, self.clock, _REST)
        await self._until(
            self._has_room, _ROOM, "the replica stays large without load, so it could not be seen to grow"
        )
        observations.started_at = self._size()
        observations.load_began = self.elapsed()
        self.tell(f"reads at {GROUP.name}-read, as many as it answers")
        outcome = await press(self._goes_on(), self._heard)
        # The table shows no rate once the load is over.
        self.tps, observations.load_ended = None, self.elapsed()
        observations.transactions, observations.failed = outcome.transactions, outcome.failed
        observations.problem = outcome.problem
        observations.said_under_load = self._said(Seconds(observations.load_ended - observations.load_began))
        self.tell("the reads have ended")
        if not await comes(self._is_back, self.clock, _BACK):
            observations.said_at_last = self._said(_BACK)

    def _said(self, waited: Seconds) -> str:
        """The group's own message after a wait."""
        return f"within {waited:.0f} s: {self.watcher.why or 'the group says nothing'}"

    def _goes_on(self) -> Callable[[], bool]:
        """Return True while the load is needed: until two have served for a while, or for too long."""
        began, together = self.clock.now(), list[Instant]()

        def goes_on() -> bool:
            now = self.clock.now()
            # From the first moment at which all serve; later dips do not restart the wait.
            if self.watcher.serving >= MOST_REPLICAS and not together:
                together.append(now)
            return now < began + _LONGEST_LOAD and (not together or now < together[0] + _TOGETHER)

        return goes_on

    def _size(self) -> float:
        return self.seen.points[-1].cpus.get(FIRST.name, 0.0) if self.seen.points else 0.0

    def _has_room(self) -> bool:
        return 0.0 < self._size() < MOST_CPUS

    def _is_back(self) -> bool:
        return len(self.watcher.vms) == 2 and self.watcher.serving == 1 and self._size() <= self.seen.started_at

    def _heard(self, tps: float) -> None:
        self.tps = tps
        self.seen.load.append((round(self.elapsed(), 1), tps))

    def _reasoned(self, size: Resources, because: str) -> None:
        if because:
            self.tell(f"{FIRST.name}: {size}: {because}")

    def _changed(self, serving: int, cpus: Mapping[str, float]) -> None:
        if self.seen.saw(self.elapsed(), serving, cpus) and cpus:
            sizes = ", ".join(f"{name.removeprefix(f'{GROUP.name}-')} {cores:g} vCPU" for name, cores in cpus.items())
            self.tell(f"{serving} {'replica serves' if serving == 1 else 'replicas serve'}; {sizes}")

    async def _until(self, holds: Callable[[], bool], at_most: Seconds, otherwise: str) -> None:
        if not await comes(holds, self.clock, at_most):
            raise SiteError(f"{otherwise} {self._said(at_most)}; see: kubectl describe vmg")
