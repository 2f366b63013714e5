"""A model of a cluster: one VM, its migrations and pods, guests, and watches that lag.

- Both plans are carried out as their controllers do it: a phase is written only over the version that was judged, and a
  refusal ends the round. A watch that lags keeps the old objects.
- There is no clock and no task: everything that can happen is a method, and a test calls them in any order.
"""

from __future__ import annotations

from deploy.neonvm.controller.plan import plan
from deploy.neonvm.controller.vm_facts import ActiveMigration, VmObservation, VmPlan
from deploy.neonvm.migration.migration_facts import MigrationInputs, MigrationPlan, Sending, TransferState
from deploy.neonvm.migration.migration_plan import plan_migration
from deploy.neonvm.objects.owners import is_owned_by, migration_of, owner_reference
from deploy.neonvm.objects.pods import runner_pod
from deploy.neonvm.objects.target_pod import target_pod
from deploy.neonvm.objects.vm_spec import is_under_way, machine_of, needs_cleanup
from deploy.neonvm.ports import GuestPhase, GuestState, PodRole
from protocol.kubernetes.objects import Json, child, has_finished, is_terminating, items, name_of, node_of, text, uid_of
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.names import FINALIZER
from protocol.units import Bytes, MilliCpu, Resources
from tests.neonvm.migration.fake_api import FakeApi, Objects, RefusedError
from tests.neonvm.sample_objects import GI, virtual_machine

SIZE = GuestState(GuestPhase.RUNNING, MilliCpu(2000), Bytes(2 * GI))


class MigrationModel(FakeApi):
    """``doubled`` records what must never happen: two guests that run at once."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Objects] = {"vms": {}, "migrations": {}, "pods": {}}
        self.guests: dict[str, PodRole] = {}
        self.moved: set[str] = set()
        self.transfers: dict[str, TransferState] = {}
        self._ends: dict[str, tuple[str, str]] = {}
        self.is_held = False
        self.is_overdue = False
        self.doubled = False
        self._put(self.vms, virtual_machine(finalizers=[]))

    @property
    def state(self) -> tuple[object, ...]:
        """Changes with everything that happens."""
        return self._count, dict(self.guests), dict(self.transfers), self.is_held

    # What people and machines do.

    def ask_to_move(self, name: str) -> None:
        if name not in self.migrations:
            body: Json = {"metadata": {"name": name, "namespace": "default", "uid": self._next(name)}}
            self._put(self.migrations, {**body, "spec": {"vmName": "db", "completionTimeout": 60}})

    def delete_migration(self, name: str) -> None:
        self._delete(self.migrations, name)

    def delete_vm(self) -> None:
        self._delete(self.vms, "db")

    def delete_pod(self, which: int) -> None:
        names = sorted(self.pods)
        if names:
            self._delete(self.pods, names[which % len(names)])

    def kill(self, which: int) -> None:
        names = sorted(self.guests)
        if names:
            self._end_guest(names[which % len(names)])

    def restart(self) -> None:
        self.guests.clear()
        self.transfers.clear()
        for pod in list(self.pods.values()):
            if text(pod, "status", "phase") == "Running":
                self._patch(self.pods, pod, status={"phase": "Failed", "message": "lost"})

    def look(self, kind: str) -> None:
        """The watch of one kind catches up."""
        self.seen[kind] = dict({"vms": self.vms, "migrations": self.migrations, "pods": self.pods}[kind])

    # What the rest of the cluster does.

    def place(self) -> None:
        for pod in list(self.pods.values()):
            if not node_of(pod) and not is_terminating(pod):
                self._patch(self.pods, pod, spec={"nodeName": "n2" if migration_of(pod) else "n1"})

    def attend(self) -> None:
        """The kubelets act: pods start, end and are removed."""
        for name, pod in list(self.pods.items()):
            if is_terminating(pod):
                self._end_guest(name)
                del self.pods[name]
            elif has_finished(pod) or not node_of(pod):
                continue
            elif text(pod, "status", "phase") != "Running":
                self._begin_guest(name, pod)
            elif name not in self.guests:
                ended: Json = {"phase": "Succeeded" if name in self.moved else "Failed", "message": "it ended"}
                self._patch(self.pods, pod, status=ended)
        self._collect()

    def _begin_guest(self, name: str, pod: Json) -> None:
        if migration_of(pod):
            self.guests[name] = PodRole.RECEIVING
        else:
            self.doubled |= PodRole.RUNNING in self.guests.values()
            self.guests[name] = PodRole.RUNNING
        self._patch(self.pods, pod, status={"phase": "Running", "podIP": "10.0.0.9"})

    def _collect(self) -> None:
        """Garbage collection of objects whose owners were deleted."""
        alive = {uid_of(each) for kind in (self.vms, self.migrations) for each in kind.values()}
        for kind in (self.migrations, self.pods):
            for name, each in list(kind.items()):
                owners = items(each, "metadata", "ownerReferences")
                if owners and not any(text(owner, "uid") in alive for owner in owners):
                    self._delete(kind, name)

    def arrive(self) -> None:
        for uid, source, target in self._sending():
            if self.guests.get(source) is PodRole.RUNNING and self.guests.get(target) is PodRole.RECEIVING:
                del self.guests[source]
                self.moved.add(source)
                self.doubled |= PodRole.RUNNING in self.guests.values()
                self.guests[target] = PodRole.RUNNING
                self.transfers[uid] = TransferState(Sending.DONE)

    def fail(self, *, source_too: bool) -> None:
        for uid, source, target in self._sending():
            self.guests.pop(target, None)
            if source_too:
                self.guests.pop(source, None)
            self.transfers[uid] = TransferState(Sending.FAILED, "Refused", "it would not")

    def _sending(self) -> list[tuple[str, str, str]]:
        ends = self._ends
        return [(uid, *ends[uid]) for uid, each in self.transfers.items() if each.sending is Sending.ACTIVE]

    def _end_guest(self, name: str) -> None:
        self.guests.pop(name, None)
        for uid, source, target in self._sending():
            if name in {source, target}:
                self.guests.pop(target, None)
                self.transfers[uid] = TransferState(Sending.FAILED, "TargetLost", f"{name} is gone")

    # What our two controllers do.

    def look_at_vm(self) -> None:
        vm = self.seen["vms"].get("db")
        if vm is None:
            return
        facts = self._vm_facts(vm)
        try:
            self._carry_out(plan(facts), facts)
        except RefusedError:
            return

    def look_at_migrations(self) -> None:
        cached = sorted(self.seen["migrations"].values(), key=lambda each: name_of(each).name)
        vm = self.seen["vms"].get("db")
        if any(not text(each, "status", "phase") for each in cached):
            cached = sorted(self.migrations.values(), key=lambda each: name_of(each).name)
            vm = self.vms.get("db")
        for gone in self.transfers.keys() - {uid_of(each) for each in cached}:
            self._cancel(gone)
            del self.transfers[gone]
        fresh = [each for each in cached if not text(each, "status", "phase")]
        try:
            for each in [*(each for each in cached if each not in fresh), *fresh[:1]]:
                facts = self._migration_facts(each, vm, cached)
                self._move(plan_migration(facts), facts)
        except RefusedError:
            return

    def _vm_facts(self, vm: Json) -> VmObservation:
        pods = self.seen["pods"]
        found = pods.get(text(vm, "status", "podName"))
        pod = found if found is not None and (is_owned_by(found, vm) or migration_of(found)) else None
        return VmObservation(
            vm=vm,
            machine=machine_of(vm),
            fault="",
            pod=pod,
            guest=self._guest(pod),
            guest_fault="",
            vm_address="10.9.0.1",
            restart_due=True,
            new_pod_name=lambda: self._next("db"),
            others=tuple(each for name, each in pods.items() if pod is None or name != name_of(pod).name),
            active_migration=self._active_migration(),
        )

    def _active_migration(self) -> ActiveMigration | None:
        found = next((each for _, each in sorted(self.seen["migrations"].items()) if is_under_way(each)), None)
        if found is None:
            return None
        source, target = (text(found, "status", f"{end}PodName") for end in ("source", "target"))
        pod = self.seen["pods"].get(target)
        sends = text(found, "status", "phase") == "Running"
        is_placed = bool(text(found, "status", "targetNode")) or (pod is not None and bool(node_of(pod)))
        return ActiveMigration(source, target, is_placed, sends, pod, self._guest(pod))

    def _guest(self, pod: Json | None) -> GuestState | None:
        return SIZE if pod is not None and self.guests.get(name_of(pod).name) is PodRole.RUNNING else None

    def _migration_facts(self, found: Json, vm: Json | None, known: list[Json]) -> MigrationInputs:
        pods = self.seen["pods"]
        source = pods.get(text(found, "status", "sourcePodName") or text(vm or {}, "status", "podName"))
        target = pods.get(text(found, "status", "targetPodName"))
        others = [each for each in known if uid_of(each) != uid_of(found)]
        return MigrationInputs(
            migration=found,
            fault="",
            vm=vm,
            rival=next((name_of(each).name for each in others if is_under_way(each)), ""),
            pending_cleanup=next((name_of(each).name for each in others if needs_cleanup(each)), ""),
            source=source,
            target=target,
            source_role=self._role(source),
            target_role=self._role(target),
            is_quiet=self.is_held,
            transfer=self.transfers.get(uid_of(found), TransferState()),
            is_overdue=self.is_overdue,
            new_pod_name=lambda: self._next("db"),
        )

    def _role(self, pod: Json | None) -> PodRole:
        return self.guests.get(name_of(pod).name, PodRole.EMPTY) if pod is not None else PodRole.EMPTY

    def _carry_out(self, todo: VmPlan, facts: VmObservation) -> None:
        vm = facts.vm
        if todo.add_finalizer:
            self._patch(self.vms, vm, metadata={"finalizers": [FINALIZER]})
        if facts.guest is not None and (todo.hold or todo.desired is not None):
            self.is_held = todo.hold
        changed = {key: value for key, value in todo.status.items() if child(vm, "status").get(key) != value}
        if changed:
            self._patch(self.vms, vm, status=changed, checked=bool(changed.keys() & {"phase", "podName"}))
        if todo.create_pod and self._is_current(vm):
            self._create_pod(runner_pod(vm, text(vm, "status", "podName"), Resources(SIZE.cpu, SIZE.mem)))
        if todo.delete_pod and facts.pod is not None:
            self._delete(self.pods, name_of(facts.pod).name)
        for unneeded in todo.unneeded_pods:
            if self._is_current(vm):
                self._delete(self.pods, unneeded.name)
        if todo.remove_finalizer:
            self._patch(self.vms, vm, metadata={"finalizers": []})

    def _move(self, todo: MigrationPlan, facts: MigrationInputs) -> None:
        found, uid = facts.migration, uid_of(facts.migration)
        if todo.add_finalizer:
            owners = [owner_reference(VIRTUAL_MACHINES, facts.vm, controller=False)] if facts.vm else []
            self._patch(self.migrations, found, metadata={"finalizers": [FINALIZER], "ownerReferences": owners})
        if todo.cancel:
            self._cancel(uid)
        if todo.adopt_target and facts.target is not None and facts.vm is not None:
            owner = [owner_reference(VIRTUAL_MACHINES, facts.vm)]
            self._patch(self.pods, facts.target, metadata={"ownerReferences": owner}, checked=False)
        changed = {key: value for key, value in todo.status.items() if child(found, "status").get(key) != value}
        if changed:
            self._patch(self.migrations, found, status=changed, checked="phase" in changed)
        if todo.create_target and facts.vm is not None:
            self._create_pod(target_pod(found, facts.vm, Resources(SIZE.cpu, SIZE.mem)))
        if todo.send and facts.source is not None and facts.target is not None and uid not in self.transfers:
            self._begin(uid, name_of(facts.source).name, name_of(facts.target).name)
        if todo.delete_target and facts.target is not None:
            self._delete(self.pods, name_of(facts.target).name)
        if todo.remove_finalizer:
            self._patch(self.migrations, found, metadata={"finalizers": []})

    def _begin(self, uid: str, source: str, target: str) -> None:
        self._ends[uid] = (source, target)
        ready = self.guests.get(source) is PodRole.RUNNING and self.guests.get(target) is PodRole.RECEIVING
        refused = TransferState(Sending.FAILED, "Refused", "an end is gone")
        self.transfers[uid] = TransferState(Sending.ACTIVE) if ready else refused

    def _cancel(self, uid: str) -> None:
        for each, _, target in self._sending():
            if each == uid:
                self.guests.pop(target, None)
                self.transfers[uid] = TransferState(Sending.FAILED, "Cancelled", "it was cancelled")


def settle(world: MigrationModel, rounds: int = 40) -> None:
    """Let every component act until nothing changes."""
    for _ in range(rounds):
        before = world.state
        for kind in ("vms", "migrations", "pods"):
            world.look(kind)
        world.look_at_vm()
        world.look_at_migrations()
        world.place()
        world.attend()
        if world.state == before:
            return
