"""Watches VirtualMachineMigrations with their VMs and pods, and reconciles them (S4.12).

The work queue is keyed by VM, and the oldest migration of a VM comes first, so a VM never has two under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from deploy.neonvm.dependencies import ControllerDependencies
from deploy.neonvm.migration.migration_executor import MigrationExecutor, bandwidth_of
from deploy.neonvm.migration.migration_facts import MigrationInputs, Sending, pod_on
from deploy.neonvm.migration.migration_plan import plan_migration, waits_for_guests
from deploy.neonvm.migration.transfers import Transfers
from deploy.neonvm.objects.vm_index import VmIndex
from deploy.neonvm.objects.vm_spec import (
    ENDED,
    RUNNING,
    SUCCEEDED,
    finalizers_of,
    is_under_way,
    machine_of,
    needs_cleanup,
)
from deploy.neonvm.texts import controller as texts
from protocol.kubernetes.api import Tolerating
from protocol.kubernetes.objects import Json, integer, is_terminating, labels_of, name_of, pod_phase, text, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import MIGRATIONS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import FINALIZER, LABEL_VM_NAME
from protocol.runtime.kubernetes.work_queue import WorkQueue
from protocol.units import Instant, QuantityError, Seconds
from protocol.virtual_machine import InvalidObjectError

_WORKERS: Final = 4
_NEXT: Final = Seconds(0.1)
_LATER: Final = Seconds(1.0)
_MOST_REFUSED: Final = 20
"""Maximum number of new migrations to refuse in one go because another one is under way."""
_POLL_TIMEOUT: Final = Seconds(10.0)
"""How long a running migration waits for a runner to respond: twice the timeout of a request."""
_PENDING_TIMEOUT: Final = Seconds(60.0)
"""How long a pending migration waits for what may never happen: an unresponsive runner, a pod on a lost node."""


class MigrationController:
    """Migrates the VirtualMachines of one cluster."""

    def __init__(self, deps: ControllerDependencies) -> None:
        self._deps = deps
        self._queue = WorkQueue(deps.clock)
        self.transfers = Transfers(deps.clock)
        self._executor = MigrationExecutor(deps, self.transfers, self._queue.add)
        self._deadlines: dict[str, Instant] = {}
        self._pod_uids: dict[ObjectName, set[str]] = {}
        self._migrations = VmIndex(
            deps.migrations, lambda migration: text(migration, "spec", "vmName"), self._queue.add
        )
        # Used only for its callback; the informer keeps the reference.
        VmIndex(deps.pods, lambda pod: labels_of(pod).get(LABEL_VM_NAME, ""), self.enqueue)
        deps.vms.listen(lambda change: self.enqueue(change.name))

    def enqueue(self, vm: ObjectName) -> None:
        """Enqueue the VM after a change of the VM or one of its guests."""
        if self._migrations.objects_of(vm):
            self._queue.add(vm)

    async def run(self) -> None:
        """Reconcile until cancelled. Cancellation leaves every guest where it is."""
        for cache in (self._deps.vms, self._deps.pods, self._deps.migrations):
            await cache.synced.wait()
        async with self.transfers, asyncio.TaskGroup() as workers:
            for _ in range(_WORKERS):
                workers.create_task(self._queue.serve(self.reconcile))

    async def reconcile(self, name: ObjectName) -> None:
        """Reconcile all migrations of one VM. Raises ``ApiError``."""
        vm, migrations = self._deps.vms.get(name), self._migrations.objects_of(name)
        if any(not text(migration, "status", "phase") for migration in migrations):
            # Admission needs fresh objects. For a migration under way, a stale cache only costs time.
            vm, migrations = await self._fresh(name)
        if not self._forget_all_but(name, {uid_of(migration) for migration in migrations}):
            return  # requeued when the transfer of the deleted migration has ended
        fresh = [migration for migration in migrations if not text(migration, "status", "phase")]
        # Once for all of them, because anyone may create thousands of migrations of a VM.
        admitted = [
            migration for migration in migrations if text(migration, "status", "phase") and not self._is_done(migration)
        ]
        rivals = [migration for migration in migrations if is_under_way(migration)]
        uncleaned = [migration for migration in migrations if needs_cleanup(migration)]
        # Admit only the oldest; the decision on the next depends on its outcome. All that come too late are refused.
        for due in [*admitted, *fresh[: _MOST_REFUSED if rivals else 1]]:
            facts = self._facts(due, vm, rivals, uncleaned)
            # A new leader has polled no guest yet; a decision now could end a healthy migration.
            if unpolled := self._unpolled_pods(facts):
                self._queue.add(name, _LATER)
                # Most guests are polled within seconds, so report only a longer wait.
                if self._age(due) >= _POLL_TIMEOUT:
                    await self._executor.execute(waits_for_guests(facts, unpolled), facts, Seconds(0.0))
                continue
            await self._executor.execute(plan_migration(facts), facts, self._remaining(due))
            # This wait is bounded, and no watch event marks its end.
            if facts.pending_cleanup:
                self._queue.add(name, _LATER)
        if len(fresh) > 1:
            self._queue.add(name, _NEXT)

    def _is_done(self, migration: Json) -> bool:
        """Return True if the migration has ended and needs no cleanup."""
        phase = text(migration, "status", "phase")
        if phase not in ENDED or FINALIZER in finalizers_of(migration):
            return False
        has_target = self._pod(migration, text(migration, "status", "targetPodName")) is not None
        is_sending = self.transfers.of(uid_of(migration)).sending is Sending.ACTIVE
        return not is_sending and (phase == SUCCEEDED or not has_target)

    async def _fresh(self, vm: ObjectName) -> tuple[Json | None, list[Json]]:
        """The VM and its migrations from the API server: with a stale cache a second migration could start."""
        client = self._deps.client
        listed = (await client.list(MIGRATIONS, vm.namespace)).objects
        # In the order of the cache, followed by those not cached yet.
        order = {uid_of(migration): index for index, migration in enumerate(self._migrations.objects_of(vm))}
        matching = [migration for migration in listed if text(migration, "spec", "vmName") == vm.name]
        matching.sort(key=lambda migration: (order.get(uid_of(migration), len(order)), name_of(migration).name))
        with Tolerating(RefusalKind.NOT_FOUND):
            return await client.get(VIRTUAL_MACHINES, vm), matching
        return None, matching

    def _forget_all_but(self, vm: ObjectName, uids: set[str]) -> bool:
        """Cancel the transfers of migrations deleted despite their finalizers. Return True if none is active."""
        gone = self._pod_uids.get(vm, set()) - uids
        # A cancelled transfer keeps running for a while.
        active = {candidate for candidate in gone if not self.transfers.forget(candidate)}
        for uid in gone - active:
            self._deadlines.pop(uid, None)
        self._pod_uids[vm] = uids | active
        if not self._pod_uids[vm]:
            del self._pod_uids[vm]
        return not active

    def _facts(
        self, migration: Json, vm: Json | None, rivals: Sequence[Json], uncleaned: Sequence[Json]
    ) -> MigrationInputs:
        """Inputs of the plan for a migration of ``vm``; ``rivals`` are all under way, ``uncleaned`` all failed ones."""
        deps = self._deps
        source = self._pod(migration, text(migration, "status", "sourcePodName") or text(vm or {}, "status", "podName"))
        target = self._pod(migration, text(migration, "status", "targetPodName"))
        rival, failed = (_first_other(migration, others) for others in (rivals, uncleaned))
        guest = deps.guest_host.guest(source)
        return MigrationInputs(
            migration=migration,
            fault=_fault(migration, vm),
            vm=vm,
            rival="" if rival is None else name_of(rival).name,
            pending_cleanup=self._pending_cleanup(failed) if self._age(migration) < _PENDING_TIMEOUT else "",
            source=source,
            target=target,
            source_role=guest.role,
            target_role=deps.guest_host.guest(target).role,
            is_quiet=guest.resizer is not None and guest.resizer.is_quiet,
            transfer=self.transfers.of(uid_of(migration)),
            is_overdue=self._remaining(migration) <= 0,
            new_pod_name=lambda: f"{text(migration, 'spec', 'vmName')}-{deps.suffix()}",
            migration_obstacle=guest.migration_obstacle,
            moves_asleep=guest.moves_asleep,
        )

    def _pending_cleanup(self, failed: Json | None) -> str:
        if failed is None:
            return ""
        target = self._pod(failed, text(failed, "status", "targetPodName"))
        leftover = "its pod" if target is None else pod_on(target)
        return texts.CLEANUP_PENDING.format(migration=name_of(failed).name, leftover=leftover)

    def _unpolled_pods(self, facts: MigrationInputs) -> str:
        """Running pods whose guests this process has not polled yet and still may wait for; empty if none."""
        ends = [pod for pod in (facts.source, facts.target) if pod is not None and pod_phase(pod) == "Running"]
        # An unresponsive runner must not block timeouts and deletions.
        if facts.is_overdue or any(is_terminating(involved) for involved in (facts.migration, *ends)):
            return ""
        phase, age = text(facts.migration, "status", "phase"), self._age(facts.migration)
        # The guest may be paused, so a running migration resumes soon. A pending one can wait longer.
        if (phase == RUNNING and age >= _POLL_TIMEOUT) or (not phase and age >= _PENDING_TIMEOUT):
            return ""
        unpolled = [pod for pod in ends if not self._deps.guest_host.guest(pod).is_known]
        return " and ".join(pod_on(pod) for pod in unpolled)

    def _pod(self, migration: Json, name: str) -> Json | None:
        return self._deps.pods.get(ObjectName(name_of(migration).namespace, name)) if name else None

    def _age(self, migration: Json) -> Seconds:
        return Seconds(integer(migration, "spec", "completionTimeout") - self._remaining(migration))

    def _remaining(self, migration: Json) -> Seconds:
        """Time left until the migration's timeout, counted from when this process first saw it."""
        span = integer(migration, "spec", "completionTimeout")
        now = self._deps.clock.now()
        # Monotonic clock of this process; a new leader starts counting from zero.
        return Seconds(self._deadlines.setdefault(uid_of(migration), Instant(now + span)) - now)


def _first_other(migration: Json, migrations: Sequence[Json]) -> Json | None:
    return next((other for other in migrations if uid_of(other) != uid_of(migration)), None)


def _fault(migration: Json, vm: Json | None) -> str:
    try:
        bandwidth_of(migration)
        if vm is not None:
            machine_of(vm)
    except QuantityError as error:
        return texts.BANDWIDTH_UNUSABLE.format(error=error)
    except InvalidObjectError as error:
        return texts.VM_UNUSABLE.format(error=error)
    return ""
