"""The state of the API server, and its undelivered events: one queue per kind."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from msgspec import structs

from protocol.guest.sleep import SLEEPING
from protocol.messages import ObjectName
from protocol.units import ZERO, Resources
from scheduler_plugin.ledger.facts import MigrationFacts, PodFacts, VmFacts
from tests.scheduler_plugin.ledger.fleet import amount

NAMES = ("a", "b", "c")
NODES = ("n1", "n2")
names = st.sampled_from(NAMES)
sizes = st.integers(1, 6).map(amount)
kinds = st.sampled_from(("vm", "pod", "migration"))
UNREADABLE = "spec: garbage"


def size_of(vm: VmFacts) -> Resources:
    """The size in the VM's spec."""
    return vm.use if vm.wakes_with is None else vm.wakes_with


def as_it_sleeps(vm: VmFacts) -> VmFacts:
    """The facts as decoded: in a sleep phase, a VM with an agent uses nothing."""
    size = size_of(vm)
    if vm.phase not in SLEEPING:
        return structs.replace(vm, use=size, wakes_with=None)
    if not vm.has_agent or vm.unreadable:
        return structs.replace(vm, use=size, actual=None, wakes_with=None)
    return structs.replace(vm, use=ZERO, actual=None, wakes_with=size)


@dataclass
class Api:
    """The API's objects, and the events that have not been delivered yet."""

    version: int = 0
    vms: dict[ObjectName, VmFacts] = field(default_factory=dict)
    pods: dict[str, PodFacts] = field(default_factory=dict)
    migrations: dict[ObjectName, MigrationFacts] = field(default_factory=dict)
    news: dict[str, list[object]] = field(default_factory=lambda: {"vm": [], "pod": [], "migration": []})

    def put_vm(self, vm: VmFacts) -> VmFacts:
        self.version += 1
        self.vms[vm.name] = structs.replace(as_it_sleeps(vm), version=self.version)
        self.news["vm"].append(self.vms[vm.name])
        return self.vms[vm.name]

    def drop_vm(self, vm: ObjectName) -> None:
        del self.vms[vm]
        self.news["vm"].append(vm)

    def put_pod(self, pod: PodFacts) -> None:
        self.pods[pod.uid] = pod
        self.news["pod"].append(pod)

    def drop_pod(self, uid: str) -> None:
        del self.pods[uid]
        self.news["pod"].append(uid)

    def put_migration(self, migration: MigrationFacts) -> None:
        self.version += 1
        self.migrations[migration.name] = replace(migration, version=self.version)
        self.news["migration"].append(self.migrations[migration.name])

    def drop_migration(self, migration: ObjectName) -> None:
        del self.migrations[migration]
        self.news["migration"].append(migration)

    def number(self) -> int:
        self.version += 1
        return self.version
