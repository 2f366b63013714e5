"""The true state of a scenario: the API server's objects, and the VM runtime's actions.

Rules that hold here:

- Every write gives the object a new version and an event for every watcher; a write that names a base version lands
  only while that is the current one.
- The runtime says what a guest has before it grows it and after it has shrunk it: the status is never below the guest.
- A postgres in an ordinary pod is one object with its pod. Its kubelet resizes it within what other pods of the node
  request, and reports that later; until then the resize is deferred.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from msgspec import structs

from agent.core.vm import NO_REPORT
from protocol.guest.sleep import SLEEPING, SleepReport
from protocol.messages import ObjectName
from protocol.pod_database import database_of
from protocol.units import ZERO, Bytes, Resources
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase, NodeFacts, PodFacts, VmFacts

SLOT = Bytes.parse("256Mi")
NAMESPACE = "fleet"
RUNNING = "Running"
AROUND = Resources.parse("100m", "64Mi")
"""What containers beside a postgres request."""


@dataclass
class VmObject:
    name: ObjectName
    uid: str
    minimum: Resources
    maximum: Resources
    use: Resources
    version: int = 0
    status: Resources | None = None
    permit: Resources | None = None
    pod: PodFacts | None = None
    guest: Resources | None = None
    is_pod: bool = False
    phase: str = RUNNING
    order: str = ""
    report: SleepReport = NO_REPORT

    @property
    def sleeps(self) -> bool:
        return self.phase in SLEEPING

    @property
    def has_booted(self) -> bool:
        """True if it has a guest, or one that sleeps."""
        return self.status is not None or self.sleeps

    def facts(self) -> VmFacts:
        if self.is_pod:
            pod = None if self.pod is None else self.pod.name
            return VmFacts(self.name, self.uid, self.version, self.maximum, self.use, self.status, pod=pod, is_pod=True)
        runs_in = self.pod.name if self.has_booted and self.pod is not None else None
        vm = VmFacts(self.name, self.uid, self.version, self.maximum, self.use, self.status, self.permit, runs_in)
        return structs.replace(vm, use=ZERO, phase=self.phase, wakes_with=self.use) if self.sleeps else vm


@dataclass
class MigrationObject:
    """A migration in the API, and its target pod once that was made; ``has_moved`` once the VM runs there."""

    facts: MigrationFacts
    pod: PodFacts | None = None
    has_moved: bool = False


@dataclass(frozen=True)
class Database:
    """A pod with a postgres that is resized in place."""

    vm: VmFacts
    pod: PodFacts


@dataclass(frozen=True)
class Gone:
    """The object of that name or UID was deleted."""

    kind: str
    key: str | ObjectName


Event = NodeFacts | PodFacts | VmFacts | Database | MigrationFacts | Gone
KINDS = ("node", "pod", "vm", "migration")


@dataclass
class Cluster:
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    pods: dict[str, PodFacts] = field(default_factory=dict)
    vms: dict[ObjectName, VmObject] = field(default_factory=dict)
    migrations: dict[ObjectName, MigrationObject] = field(default_factory=dict)
    version: int = 0
    streams: dict[str, deque[Event]] = field(default_factory=lambda: {kind: deque() for kind in KINDS})
    born: int = 0

    def next_name(self) -> str:
        self.born += 1
        return f"{self.born:04}"

    # Writes, each with its event ---------------------------------------------------------------------------------

    def put_node(self, node: NodeFacts) -> None:
        self.nodes[node.name] = node
        self.streams["node"].append(node)

    def drop_node(self, name: str) -> None:
        del self.nodes[name]
        self.streams["node"].append(Gone("node", name))

    def put_pod(self, pod: PodFacts) -> None:
        self.pods[pod.uid] = pod
        vm = None if pod.vm is None else self.vms.get(pod.vm)
        if vm is not None and vm.is_pod:
            vm.pod = pod
            self.put_vm(vm)
        else:
            self.streams["pod"].append(pod)

    def drop_pod(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        self.streams["pod"].append(Gone("pod", uid))
        vm = None if pod.vm is None else self.vms.get(pod.vm)
        if vm is not None and vm.is_pod:
            del self.vms[vm.name]
            self.streams["pod"].append(Gone("vm", vm.name))
        elif vm is not None:
            self._stop(pod)

    def put_vm(self, vm: VmObject) -> None:
        self.version += 1
        vm.version = self.version
        self.vms[vm.name] = vm
        if vm.is_pod and vm.pod is not None:
            # As kube-scheduler counts it.
            requests = AROUND + vm.use.at_least(vm.status or ZERO)
            rise = ZERO if vm.status is None else vm.use.minus_or_zero(vm.status)
            waits = ZERO if self._admits(vm) else rise
            vm.pod = self.pods[vm.pod.uid] = replace(vm.pod, requests=requests, deferred=waits)
            self.streams["pod"].append(Database(vm.facts(), vm.pod))
        else:
            self.streams["vm"].append(vm.facts())

    def drop_vm(self, name: ObjectName) -> None:
        """The controller deletes the pod first, the object after."""
        vm = self.vms[name]
        if vm.pod is not None:
            self.drop_pod(vm.pod.uid)
        if vm.is_pod:
            return
        del self.vms[name]
        self.streams["vm"].append(Gone("vm", name))

    def put_migration(self, migration: MigrationObject) -> None:
        self.version += 1
        migration.facts = replace(migration.facts, version=self.version)
        self.migrations[migration.facts.name] = migration
        self.streams["migration"].append(migration.facts)

    def drop_migration(self, name: ObjectName) -> None:
        del self.migrations[name]
        self.streams["migration"].append(Gone("migration", name))

    def order_sleep(self, vm: VmObject) -> None:
        """A user orders the VM to sleep, with a new value each time."""
        vm.order = self.next_name()
        self.put_vm(vm)

    def bind(self, uid: str, node: str) -> bool:
        """The binding subresource: lands unless the pod is gone or bound already."""
        pod = self.pods.get(uid)
        if pod is None or pod.node is not None:
            return False
        self.put_pod(replace(pod, node=node))
        return True

    def finish_pod(self, uid: str) -> None:
        pod = self.pods[uid]
        if pod.vm in self.vms and self.vms[pod.vm].is_pod:
            self.drop_pod(uid)
            return
        self.put_pod(replace(pod, finished=True))
        if pod.vm is not None:
            self._stop(pod)

    def _stop(self, pod: PodFacts) -> None:
        for vm in self.vms.values():
            if vm.pod is not None and vm.pod.uid == pod.uid:
                vm.pod = vm.guest = vm.status = None
                vm.phase = RUNNING
                self.put_vm(vm)

    # The runtime -------------------------------------------------------------------------------------------------

    def start_pod(self, vm: VmObject) -> None:
        """The controller makes a pod for a VM that has none."""
        name = ObjectName(NAMESPACE, f"{vm.name.name}-{self.next_name()}")
        # What a VM's pod requests stays reserved while it sleeps, but for one that requests nothing.
        requests = vm.use if self.born % 2 else ZERO
        pod = PodFacts(f"uid-{name.name}", name, requests, vm.name, boots_with=vm.use)
        vm.pod = pod
        self.put_pod(pod)

    def make_database(self, minimum: Resources, maximum: Resources, use: Resources) -> None:
        """A StatefulSet makes a pod with a postgres."""
        name = ObjectName(NAMESPACE, f"pg-{self.next_name()}")
        uid, database = f"uid-{name.name}", database_of(name)
        pod = PodFacts(uid, name, AROUND + use, database, vm_uid=uid, overhead=AROUND, make_room=True)
        self.put_vm(VmObject(database, uid, minimum, maximum, use, pod=pod, is_pod=True))

    def is_copied(self, vm: VmObject) -> bool:
        """True if the guest is on its way, and must keep its size."""
        running = MigrationPhase.RUNNING
        return any(each.facts.vm == vm.name and each.facts.phase is running for each in self.migrations.values())

    def run(self, vm: VmObject, stage: int) -> None:
        """One stage of reconciling: boot or announce growth, resize the guest, report."""
        pod = None if vm.pod is None else self.pods.get(vm.pod.uid)
        if pod is None or pod.node is None or vm.sleeps or self.is_copied(vm):
            return
        if vm.status is None:
            vm.status = vm.guest = vm.use
            vm.pod = pod
            self.put_vm(vm)
        elif stage == 0 and not vm.use.within(vm.status) and self._admits(vm):
            vm.status = vm.status.at_least(vm.use)
            self.put_vm(vm)
        elif stage == 1:
            vm.guest = vm.use.at_most(vm.status)
        elif stage == 2 and vm.guest is not None and vm.status != vm.guest:
            vm.status = vm.guest
            self.put_vm(vm)

    def _admits(self, vm: VmObject) -> bool:
        """Return True if the pod's requests fit on its node with those of the other pods."""
        node = None if vm.pod is None or vm.pod.node is None else self.nodes.get(vm.pod.node)
        if vm.pod is None or node is None or not vm.is_pod:
            return True
        others = [pod.requests for pod in self.pods.values() if pod.node == node.name and pod.uid != vm.pod.uid]
        return (Resources.sum(others) + AROUND + vm.use).within(node.allocatable)
