"""Migrations of a scenario: their API objects, and a controller that carries them out step by step.

Rules that hold here:

- One step is one write, in the order that every party relies on: the name of the target pod before the pod; at the end
  the VM's pod first, then the pod's owner, then the phase, and the source pod last.
- Whatever goes before the VM has changed its pod, a failure leaves the source as it was.
- A guest is not resized while it is being copied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from protocol.messages import ObjectName
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase, PodFacts
from tests.scenarios.cluster import NAMESPACE, Cluster, MigrationObject, VmObject

PENDING, RUNNING = MigrationPhase.PENDING, MigrationPhase.RUNNING


@dataclass
class Controller:
    """The VM controller, as far as migrations go; it remembers nothing."""

    cluster: Cluster

    def create(self, name: ObjectName, vm: ObjectName, target: str | None, *, is_ours: bool) -> None:
        """The API takes a new migration."""
        born = MigrationFacts(name, f"uid-{name.name}", 0, vm, target=target, is_ours=is_ours)
        self.cluster.put_migration(MigrationObject(born))

    def cancel(self, name: ObjectName) -> None:
        """A person deletes the object; it stays until everything is undone."""
        found = self.cluster.migrations.get(name)
        if found is None:
            return
        if found.facts.phase.is_over:
            self.cluster.drop_migration(name)
        elif not found.facts.is_terminating:
            self._put(found, is_terminating=True)

    def step(self, found: MigrationObject, now: float, *, fails: bool) -> None:
        """The next write, or the first one of giving up."""
        facts = found.facts
        vm = self.cluster.vms.get(facts.vm)
        moved = vm is not None and found.pod is not None and vm.pod is not None and vm.pod.uid == found.pod.uid
        if facts.phase.is_over:
            self._clear(found)
        elif found.has_moved or moved:
            found.has_moved = True
            self._finish(found, now)
        elif fails or facts.is_terminating or not self._can_go_on(found, vm):
            self._give_up(found, now)
        elif vm is not None:
            self._go_on(found, vm)

    def _can_go_on(self, found: MigrationObject, vm: VmObject | None) -> bool:
        facts = found.facts
        if vm is None or vm.pod is None or vm.status is None:
            return False
        if facts.source_pod is None:
            others = [each for each in self.cluster.migrations.values() if each is not found]
            return not any(each.facts.vm == vm.name and each.facts.source_pod == vm.pod.name for each in others)
        target = None if found.pod is None else self.cluster.pods.get(found.pod.uid)
        is_lost = found.pod is not None and (target is None or target.finished)
        return facts.source_pod == vm.pod.name and not is_lost

    def _go_on(self, found: MigrationObject, vm: VmObject) -> None:
        facts, pod = found.facts, vm.pod
        target = None if found.pod is None else self.cluster.pods.get(found.pod.uid)
        if pod is None:
            return
        if facts.source_pod is None:
            to = ObjectName(NAMESPACE, f"{vm.name.name}-{self.cluster.next_name()}")
            self._put(found, source_pod=pod.name, target_pod=to)
        elif found.pod is None and facts.target_pod is not None:
            name = facts.target_pod
            found.pod = PodFacts(f"uid-{name.name}", name, vm.use, vm.name, migration=facts.name)
            self.cluster.put_pod(found.pod)
        elif target is not None and target.node is not None and facts.phase is PENDING:
            self._put(found, phase=RUNNING)
        elif target is not None and facts.phase is RUNNING:
            vm.pod = found.pod = target
            self.cluster.put_vm(vm)

    def _finish(self, found: MigrationObject, now: float) -> None:
        """The VM runs or ran in the target pod, so the migration has succeeded, even if the VM fails now."""
        target = None if found.pod is None else self.cluster.pods.get(found.pod.uid)
        if target is not None and target.migration is not None:
            self.cluster.put_pod(replace(target, migration=None))
        else:
            self._put(found, phase=MigrationPhase.SUCCEEDED, ended_at=now)

    def _give_up(self, found: MigrationObject, now: float) -> None:
        if found.pod is not None and found.pod.uid in self.cluster.pods:
            self.cluster.drop_pod(found.pod.uid)
        else:
            self._put(found, phase=MigrationPhase.FAILED, ended_at=now)

    def _clear(self, found: MigrationObject) -> None:
        source = next((pod for pod in self.cluster.pods.values() if pod.name == found.facts.source_pod), None)
        if found.has_moved and source is not None:
            self.cluster.drop_pod(source.uid)
        elif found.facts.is_terminating:
            self.cluster.drop_migration(found.facts.name)

    def _put(self, found: MigrationObject, **changes: object) -> None:
        found.facts = replace(found.facts, **changes)  # type: ignore[arg-type] # names of fields
        self.cluster.put_migration(found)
