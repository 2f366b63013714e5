"""Watches VirtualMachines and their pods, and executes the plan of ``plan`` for each VM.

Its only state is the restart backoff; everything else comes from the API server and the guests.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from deploy.kube.events import NORMAL, WARNING
from deploy.kube.informer import ObjectChange
from deploy.neonvm.controller.growth import VERSIONED, grows, set_target, with_growth
from deploy.neonvm.controller.plan import plan
from deploy.neonvm.controller.sleep_plan import LONGEST_SLEEP, sleep_event
from deploy.neonvm.controller.vm_facts import ActiveMigration, VmObservation, VmPlan
from deploy.neonvm.dependencies import ControllerDependencies, HostedGuest
from deploy.neonvm.objects.owners import is_owned_by, migration_of
from deploy.neonvm.objects.pods import metadata_patch, runner_pod, usage_annotation
from deploy.neonvm.objects.vm_index import VmIndex
from deploy.neonvm.objects.vm_spec import (
    ENDED,
    RUNNING,
    finalizers_of,
    is_under_way,
    machine_of,
    other_finalizers,
)
from deploy.neonvm.ports import GuestError, GuestPhase
from deploy.neonvm.runner.resizer import Resizer
from deploy.neonvm.texts import controller as texts
from protocol.backoff import Backoff
from protocol.guest.sleep import SLEEPING, SleepReport, SleepState, sleep_report
from protocol.kubernetes.api import ApiRefusedError, ApiUnknownError, Tolerating
from protocol.kubernetes.conditions import stamped
from protocol.kubernetes.objects import (
    Json,
    annotations_of,
    child,
    has_finished,
    is_terminating,
    items,
    labels_of,
    name_of,
    node_of,
    text,
    uid_of,
)
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import PODS, VIRTUAL_MACHINES
from protocol.kubernetes.timestamps import parse_timestamp, timestamp
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_USAGE, FINALIZER, LABEL_VM_NAME
from protocol.runtime.kubernetes.work_queue import WorkQueue
from protocol.units import Instant, Resources, Seconds
from protocol.virtual_machine import InvalidObjectError, VirtualMachine

_STALE_CACHE: Final = frozenset({RefusalKind.CONFLICT, RefusalKind.ALREADY_EXISTS, RefusalKind.NOT_FOUND})
"""Refusals that only show that the cache was stale."""

_OWN: Final = ("machine", "sleep", "growingTo")
"""Fields of a VM's status that NeonVM's own CRD lacks."""

_WORKERS: Final = 4
_RESTART_BACKOFF: Final = Backoff(Seconds(1.0), Seconds(30.0), spread=0.0)
_SLEEPER_CHECK: Final = Seconds(3600.0)
"""Requeue interval of sleeping VMs, because no watch event marks the end of the longest sleep."""
_STEADY: Final = Seconds(60.0)
"""A guest that ran this long is restarted without backoff."""


@dataclass(slots=True)
class _Restarts:
    """Restart backoff of one VM."""

    failures: int = 0
    not_before: Instant = Instant(0.0)
    ran_since: Instant | None = None
    counted: str = ""  # the last pod counted in failures


class NeonVmController:
    """Reconciles the VirtualMachines of one cluster."""

    def __init__(self, deps: ControllerDependencies) -> None:
        self._deps = deps
        self._queue = WorkQueue(deps.clock)
        self._restarts: dict[str, _Restarts] = {}
        self._dropped: set[str] = set()  # fields of a VM's status, by the API server: NeonVM's own CRD lacks them
        deps.vms.listen(self._vm_changed)
        self._pods = VmIndex(deps.pods, lambda pod: labels_of(pod).get(LABEL_VM_NAME, ""), self._queue.add)
        self._migrations = VmIndex(
            deps.migrations, lambda migration: text(migration, "spec", "vmName"), self._queue.add
        )

    def _vm_changed(self, change: ObjectChange) -> None:
        self._queue.add(change.name)
        # Not when the finalizer is removed: the VM is reconciled once more before it is gone.
        if change.before is not None and uid_of(change.after or {}) != uid_of(change.before):
            self._restarts.pop(uid_of(change.before), None)

    def enqueue(self, vm: ObjectName) -> None:
        """Enqueue the VM after a change of its guest."""
        self._queue.add(vm)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        await self._deps.vms.synced.wait()
        await self._deps.pods.synced.wait()
        await self._deps.migrations.synced.wait()
        async with asyncio.TaskGroup() as workers:
            for _ in range(_WORKERS):
                workers.create_task(self._queue.serve(self._reconcile_or_record_failure))

    async def _reconcile_or_record_failure(self, name: ObjectName) -> None:
        try:
            await self.reconcile(name)
        except ApiUnknownError:
            raise
        except Exception as error:
            vm = self._deps.vms.get(name)
            is_stale = isinstance(error, ApiRefusedError) and error.kind in _STALE_CACHE
            if vm is not None and is_stale:
                await self._is_current(vm)  # the watch may lag for minutes
            elif vm is not None:
                await self._deps.events.record(vm, texts.RECONCILE_FAILED, str(error) or repr(error), WARNING)
            raise

    async def reconcile(self, name: ObjectName) -> None:
        """Reconcile one VM. Raises ``ApiError``."""
        vm = self._deps.vms.get(name)
        if vm is None:
            return
        pod = self._pod_of(vm)
        hosted = self._deps.guest_host.guest(pod)
        facts = await self._facts(vm, pod, hosted, self._active_migration(name))
        await self._execute(plan(facts), facts, hosted.resizer)

    async def _facts(
        self, vm: Json, pod: Json | None, hosted: HostedGuest, active_migration: ActiveMigration | None
    ) -> VmObservation:
        machine: VirtualMachine | None = None
        guest, fault = hosted.resizer, ""
        # The label is not enough: the pod must have an owner reference.
        others = [other for other in self._pods.objects_of(name_of(vm)) if _is_run_for(other, vm)]
        try:
            machine = machine_of(vm)
        except InvalidObjectError as error:
            fault = str(error)
            await self._deps.events.record(vm, texts.INVALID_SPEC, fault, WARNING)
        return VmObservation(
            vm=vm,
            machine=machine,
            fault=fault,
            pod=pod,
            guest=guest.state if guest else None,
            guest_fault=guest.fault if guest else hosted.fault,
            # Do not allocate an address for a VM that is being deleted.
            vm_address="" if is_terminating(vm) else await self._address(vm),
            restart_due=active_migration is None and self._restart_due(vm, pod, guest),
            new_pod_name=lambda: f"{name_of(vm).name}-{self._deps.suffix()}",
            others=tuple(other for other in others if pod is None or name_of(other) != name_of(pod)),
            active_migration=active_migration,
            is_known=pod is None or hosted.is_known,
            acceleration=hosted.acceleration,
            stalled=guest.stalled if guest else frozenset(),
            sleeping=guest.sleep_orders.report if guest else SleepReport(),
            migrates=self._migrates(name_of(vm)),
            moves_asleep=hosted.moves_asleep,
            is_sleep_over=self._is_sleep_over(vm),
        )

    def _migrates(self, vm: ObjectName) -> bool:
        """Return True if a migration of the VM is pending or under way."""
        migrations = self._migrations.objects_of(vm)
        waiting = (migration for migration in migrations if text(migration, "status", "phase") not in ENDED)
        return any(not is_terminating(migration) for migration in waiting)

    def _is_sleep_over(self, vm: Json) -> bool:
        report = sleep_report(vm)
        since = parse_timestamp(report.since)
        if report.state is not SleepState.ASLEEP or since is None:
            return False
        self._queue.add(name_of(vm), _SLEEPER_CHECK)
        return self._deps.clock.wall() - since >= LONGEST_SLEEP

    async def _address(self, vm: Json) -> str:
        try:
            return await self._deps.guest_host.vm_address(vm)
        except GuestError as error:
            await self._deps.events.record(vm, texts.NO_ADDRESS, str(error), WARNING)
            # As an unavailable API, so that the queue retries: an address may become free.
            raise ApiUnknownError(str(error)) from error

    def _pod_of(self, vm: Json) -> Json | None:
        name = text(vm, "status", "podName")
        pod = self._deps.pods.get(ObjectName(name_of(vm).namespace, name)) if name else None
        return pod if pod is not None and _is_run_for(pod, vm) else None

    def _active_migration(self, vm: ObjectName) -> ActiveMigration | None:
        migration = next((candidate for candidate in self._migrations.objects_of(vm) if is_under_way(candidate)), None)
        if migration is None:
            return None
        source, target = (text(migration, "status", f"{end}PodName") for end in ("source", "target"))
        pod = self._deps.pods.get(ObjectName(vm.namespace, target))
        guest = self._deps.guest_host.guest(pod).resizer
        # A receiving guest is not the VM's guest yet.
        runs = guest is not None and guest.state.phase in {GuestPhase.BOOTING, GuestPhase.RUNNING}
        return ActiveMigration(
            source=source,
            target=target,
            # Also if the target's pod is gone: the migration decides what happens then.
            is_placed=bool(text(migration, "status", "targetNode")) or (pod is not None and bool(node_of(pod))),
            is_transferring=text(migration, "status", "phase") == RUNNING,
            target_pod=pod,
            target_guest=guest.state if guest is not None and runs else None,
        )

    def _restart_due(self, vm: Json, pod: Json | None, guest: Resizer | None) -> bool:
        """Track how long the guest runs. Return True if the restart backoff is over."""
        restarts = self._restarts.setdefault(uid_of(vm), _Restarts())
        now = self._deps.clock.now()
        has_failed = pod is not None and has_finished(pod) and name_of(pod).name != restarts.counted
        if guest is not None and guest.state.phase is not GuestPhase.STOPPED:
            restarts.ran_since = restarts.ran_since or now
        # A guest that ended before it was polled counts as a run of zero seconds.
        elif restarts.ran_since is not None or has_failed:
            ran = now - restarts.ran_since if restarts.ran_since is not None else 0.0
            restarts.failures = 0 if ran >= _STEADY else restarts.failures + 1
            # Count an ended pod only once.
            restarts.counted = text(vm, "status", "podName")
            pause = _RESTART_BACKOFF.delay(restarts.failures, 0.0) if restarts.failures else 0.0
            restarts.not_before = Instant(now + pause)
            restarts.ran_since = None
        return now >= restarts.not_before

    async def _execute(self, vm_plan: VmPlan, facts: VmObservation, guest: Resizer | None) -> None:
        name, vm = name_of(facts.vm), facts.vm
        if vm_plan.add_finalizer:
            await self._set_finalizers(vm, [*finalizers_of(vm), FINALIZER])
        set_target(guest, vm_plan, facts.machine)
        # The status must have the pod's name before the pod is created, and a guest's size before it grows.
        is_current = await self._report(vm, with_growth(vm_plan, guest, facts.machine))
        if guest is not None:
            await self._command(guest, vm, vm_plan, is_current=is_current)
        if vm_plan.create_pod and facts.machine is not None:
            await self._create_pod(vm, facts.machine)
        if vm_plan.delete_pod and facts.pod is not None:
            await self._deps.client.delete(PODS, name_of(facts.pod), uid_of(facts.pod))
        if vm_plan.remake_pod and facts.pod is not None:
            version = text(facts.pod, "metadata", "resourceVersion")
            # With the resourceVersion as precondition: the scheduler may have bound the pod since.
            await self._deps.client.delete(PODS, name_of(facts.pod), uid_of(facts.pod), version=version)
            return
        if vm_plan.unneeded_pods and await self._is_current(vm):
            for pod in vm_plan.unneeded_pods:
                await self._deps.client.delete(PODS, pod)
        if vm_plan.remove_finalizer:
            # Before the finalizer is removed, or the address would leak.
            await self._deps.guest_host.release_vm(name, uid_of(vm))
            await self._set_finalizers(vm, other_finalizers(vm))
        if vm_plan.wait_for_restart:
            wait = self._restarts.get(uid_of(vm), _Restarts()).not_before - self._deps.clock.now()
            # The pause may already be over, and an immediate retry would spin.
            self._queue.add(name, Seconds(max(0.05, wait)))
        kept_pod = None if vm_plan.delete_pod else facts.pod
        if kept_pod is not None and not has_finished(kept_pod) and not is_terminating(kept_pod):
            # Last, so that a refusal by an older admission policy blocks nothing else.
            await self._update_pod_metadata(vm, kept_pod, guest)

    async def _command(self, guest: Resizer, vm: Json, vm_plan: VmPlan, *, is_current: bool) -> None:
        """Resize the guest, put it to sleep or wake it, after the status was written: only that reserves its room."""
        # A phase or size that was not written now may be an earlier one, in the cache of a former standby.
        must_be_current = vm_plan.wake or grows(guest, vm_plan)
        if vm_plan.desired is not None and (is_current or (must_be_current and await self._is_current(vm))):
            guest.end_inheritance()
        elif must_be_current:
            return
        # The status of a sleeping guest has no size: it grows once it is awake.
        if vm_plan.desired is not None and text(vm_plan.status, "cpus"):
            guest.resize_to(vm_plan.desired)
        if vm_plan.sleep:
            guest.sleep_orders.sleep(vm_plan.sleep)
        if vm_plan.wake:
            guest.sleep_orders.wake()

    async def _report(self, vm: Json, desired: Json) -> bool:
        """Write the fields of the status that differ, with timestamps for changed conditions and a new revision.
        Return True if the API server accepted a write that is bound to the version of ``vm``.
        """
        now = timestamp(self._deps.clock.wall())
        desired = stamped(desired, now)
        if revision := child(desired, "currentRevision"):
            desired = {**desired, "currentRevision": {**revision, "updatedAt": now}}
        if (sleep := child(desired, "sleep")) and not sleep["since"]:
            desired = {**desired, "sleep": {**sleep, "since": now}}
        status = child(vm, "status")
        changed = {key: value for key, value in desired.items() if status.get(key) != value}
        # Do not write again what would be dropped.
        if changed.keys() <= self._dropped:
            return False
        is_versioned = bool(changed.keys() & VERSIONED)
        version: Json = {"resourceVersion": text(vm, "metadata", "resourceVersion")} if is_versioned else {}
        body: Json = {"metadata": version, "status": changed}
        written = await self._deps.client.merge_patch(VIRTUAL_MACHINES, name_of(vm), body, "status")
        self._deps.vms.learn(written)
        stored = child(written, "status")
        self._dropped -= stored.keys()
        self._dropped |= {field for field in _OWN if changed.get(field) is not None and field not in stored}
        if changed.get("phase") in ENDED:
            why = next((text(condition, "message") for condition in items(changed, "conditions")), "")
            await self._deps.events.record(vm, str(changed["phase"]), texts.VM_ENDED.format(why=why), WARNING)
        if (event := sleep_event(vm, stored if "sleep" in changed else {})) is not None:
            await self._deps.events.record(vm, *event, WARNING if event[0] == texts.RESTARTED_ASLEEP[0] else NORMAL)
        return is_versioned

    async def _update_pod_metadata(self, vm: Json, pod: Json, guest: Resizer | None) -> None:
        """Copy the VM's labels and annotations, and the size of a running guest, to its pod."""
        metadata = metadata_patch(vm, pod)
        if guest is not None and guest.state.phase in {GuestPhase.RUNNING, *SLEEPING}:
            usage = usage_annotation(Resources(guest.state.cpu, guest.state.mem))
            if annotations_of(pod).get(ANNOTATION_USAGE) != usage:
                metadata = {**metadata, "annotations": {**child(metadata, "annotations"), ANNOTATION_USAGE: usage}}
        if metadata:
            self._deps.pods.learn(await self._deps.client.merge_patch(PODS, name_of(pod), {"metadata": metadata}))

    async def _create_pod(self, vm: Json, machine: VirtualMachine) -> None:
        pod = self._deps.form(vm, runner_pod(vm, text(vm, "status", "podName"), machine.use))
        if not await self._is_current(vm):
            return
        with Tolerating(RefusalKind.ALREADY_EXISTS):
            await self._deps.client.create(PODS, name_of(vm).namespace, pod)

    async def _is_current(self, vm: Json) -> bool:
        # With a stale cache, the controller could create a pod that the VM no longer uses, or delete the one it does.
        fresh = await self._deps.client.get(VIRTUAL_MACHINES, name_of(vm))
        is_current = text(fresh, "metadata", "resourceVersion") == text(vm, "metadata", "resourceVersion")
        if not is_current:
            self._deps.vms.learn(fresh)
            self._queue.add(name_of(vm), Seconds(0.25))
        return is_current

    async def _set_finalizers(self, vm: Json, finalizers: list[object]) -> None:
        metadata: Json = {"finalizers": finalizers, "resourceVersion": text(vm, "metadata", "resourceVersion")}
        self._deps.vms.learn(await self._deps.client.merge_patch(VIRTUAL_MACHINES, name_of(vm), {"metadata": metadata}))


def _is_run_for(pod: Json, vm: Json) -> bool:
    return is_owned_by(pod, vm) or bool(migration_of(pod))
