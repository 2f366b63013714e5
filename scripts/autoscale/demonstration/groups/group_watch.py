"""Watches a group of VMs: the replicas that serve, and the size of each VM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from protocol.kubernetes.conditions import condition_of, holds
from protocol.kubernetes.objects import Json, is_leaving, items, labels_of, name_of, text, whole
from protocol.kubernetes.resources import VIRTUAL_MACHINES, VM_GROUPS
from protocol.messages import ObjectName
from protocol.names import LABEL_GROUP
from protocol.runtime.clock import Clock
from protocol.units import MilliCpu
from scripts.autoscale.demonstration.fleet import bar

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
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._groups.run())
            tasks.create_task(self._vms.run())

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
    spec = vm.get("spec")
    largest = _most(spec if isinstance(spec, dict) else {})
    # The group's own state of a member says more than the phase of its VM.
    does = "Leaving" if is_leaving(vm) else state or text(vm, "status", "phase") or "Pending"
    picture = f"{bar(cores(vm), cores(vm), largest, _BAR)} {cores(vm):g}/{largest:g} vCPU"
    return name_of(vm).name, picture, f"{does} on {text(vm, 'status', 'node') or '-'}"


def _most(spec: Json) -> float:
    guest = spec.get("guest")
    cpus = guest.get("cpus") if isinstance(guest, dict) else None
    most = cpus.get("max") if isinstance(cpus, dict) else None
    # As in any object of the API, the quantity may be an integer or a string.
    return MilliCpu.parse(most).as_cores if isinstance(most, (int, str)) else 0.0
