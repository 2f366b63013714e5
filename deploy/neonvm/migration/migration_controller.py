"""The controller of VirtualMachineMigrations: watches them and what they depend on (S4.12).

Migrations are reconciled by VM, one VM at a time and the oldest first: two of one VM are never admitted together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deploy.neonvm.dependencies import ControllerDependencies
from deploy.neonvm.migration.migration_executor import MigrationExecutor, bandwidth_of
from deploy.neonvm.migration.migration_facts import MoveFacts, pod_on
from deploy.neonvm.migration.migration_plan import plan_migration, waits_for_guests
from deploy.neonvm.migration.transfers import Transfers
from deploy.neonvm.objects.by_vm import ByVm
from deploy.neonvm.objects.vm_spec import RUNNING, has_remains, is_under_way, machine_of
from deploy.neonvm.texts import controller as texts
from protocol.kubernetes.api import Tolerating
from protocol.kubernetes.objects import Json, is_leaving, labels_of, name_of, pod_phase, text, uid_of, whole
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import MIGRATIONS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import LABEL_VM_NAME
from protocol.runtime.kubernetes.work_queue import WorkQueue
from protocol.units import Instant, QuantityError, Seconds
from protocol.virtual_machine import InvalidObjectError

_WORKERS: Final = 4
_NEXT: Final = Seconds(0.1)
_LATER: Final = Seconds(1.0)
_DARK: Final = Seconds(10.0)
"""A runner that does not answer about its guest within twice its time may never do so."""
_REMAINS: Final = Seconds(60.0)
"""How long a migration that has not begun waits for what may never come: a silent runner, a pod on a lost node."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The migrations of one VM, and the VM."""

    vm: Json | None
    migrations: list[Json]


class MigrationController:
    """Moves the VirtualMachines of one cluster."""

    def __init__(self, deps: ControllerDependencies) -> None:
        self._deps = deps
        self._queue = WorkQueue(deps.clock)
        self.transfers = Transfers(deps.clock)
        self._executor = MigrationExecutor(deps, self.transfers, self._queue.add)
        self._deadlines: dict[str, Instant] = {}
        self._seen: dict[ObjectName, set[str]] = {}
        self._of = ByVm(deps.migrations, lambda migration: text(migration, "spec", "vmName"), self._queue.add)
        # Only for its callback; the informer holds the reference.
        ByVm(deps.pods, lambda pod: labels_of(pod).get(LABEL_VM_NAME, ""), self.look_at)
        deps.vms.listen(lambda change: self.look_at(change.name))

    def look_at(self, vm: ObjectName) -> None:
        """Something about the VM or one of its guests has changed."""
        if self._of.of(vm):
            self._queue.add(vm)

    async def run(self) -> None:
        """Works until cancelled, which leaves every guest where it is."""
        for cache in (self._deps.vms, self._deps.pods, self._deps.migrations):
            await cache.synced.wait()
        async with self.transfers, asyncio.TaskGroup() as workers:
            for _ in range(_WORKERS):
                workers.create_task(self._queue.serve(self.reconcile))

    async def reconcile(self, vm: ObjectName) -> None:
        """Looks at every migration of one VM. Raises ``ApiError``."""
        snapshot = _Known(self._deps.vms.get(vm), self._of.of(vm))
        if any(not text(migration, "status", "phase") for migration in snapshot.migrations):
            # A migration is admitted on fresh objects; for one under way a stale cache only costs time.
            snapshot = await self._afresh(vm)
        if not self._forget_all_but(vm, {uid_of(migration) for migration in snapshot.migrations}):
            return  # looked at again when the move of one that vanished has ended
        fresh = [migration for migration in snapshot.migrations if not text(migration, "status", "phase")]
        for due in [*(migration for migration in snapshot.migrations if migration not in fresh), *fresh[:1]]:
            facts = self._facts(due, snapshot)
            # A new leader has not seen any guest yet: a decision now could end a move that goes well.
            if dark := self._in_the_dark(facts):
                self._queue.add(vm, _LATER)
                # Reported only after a while: most guests are looked at within seconds.
                if self._age(due) >= _DARK:
                    await self._executor.carry_out(waits_for_guests(facts, dark), facts, Seconds(0.0))
                continue
            await self._executor.carry_out(plan_migration(facts), facts, self._remaining(due))
            # The wait for remains is limited, and no event tells when it is over.
            if facts.remains:
                self._queue.add(vm, _LATER)
        # Only the oldest is admitted in one look; the next is judged by what has become of it.
        if len(fresh) > 1:
            self._queue.add(vm, _NEXT)

    async def _afresh(self, vm: ObjectName) -> _Known:
        """The same from the API itself: a stale cache must not let a second migration begin."""
        client = self._deps.client
        listed = (await client.list(MIGRATIONS, vm.namespace)).objects
        # In the order of the cache, and then the ones that it does not have yet.
        order = {uid_of(migration): place for place, migration in enumerate(self._of.of(vm))}
        matching = [migration for migration in listed if text(migration, "spec", "vmName") == vm.name]
        matching.sort(key=lambda migration: (order.get(uid_of(migration), len(order)), name_of(migration).name))
        with Tolerating(RefusalKind.NOT_FOUND):
            return _Known(await client.get(VIRTUAL_MACHINES, vm), matching)
        return _Known(None, matching)

    def _forget_all_but(self, vm: ObjectName, uids: set[str]) -> bool:
        """Calls off the moves of migrations that vanished despite their finalizers. Return True if none is active."""
        gone = self._seen.get(vm, set()) - uids
        # A move that is being called off still runs for a while.
        active = {candidate for candidate in gone if not self.transfers.forget(candidate)}
        for uid in gone - active:
            self._deadlines.pop(uid, None)
        self._seen[vm] = uids | active
        if not self._seen[vm]:
            del self._seen[vm]
        return not active

    def _facts(self, migration: Json, known: _Known) -> MoveFacts:
        vm, deps = known.vm, self._deps
        source = self._pod(migration, text(migration, "status", "sourcePodName") or text(vm or {}, "status", "podName"))
        target = self._pod(migration, text(migration, "status", "targetPodName"))
        others = [other for other in known.migrations if uid_of(other) != uid_of(migration)]
        guest = deps.guest_host.guest(source)
        return MoveFacts(
            migration=migration,
            fault=_fault(migration, vm),
            vm=vm,
            rival=next((name_of(other).name for other in others if is_under_way(other)), ""),
            remains=self._remains(others) if self._age(migration) < _REMAINS else "",
            source=source,
            target=target,
            source_role=guest.role,
            target_role=deps.guest_host.guest(target).role,
            is_quiet=guest.resizer is not None and guest.resizer.is_quiet,
            transfer=self.transfers.of(uid_of(migration)),
            is_overdue=self._remaining(migration) <= 0,
            new_pod_name=lambda: f"{text(migration, 'spec', 'vmName')}-{deps.suffix()}",
            hindrance=guest.hindrance,
        )

    def _remains(self, migrations: Sequence[Json]) -> str:
        failed = next((migration for migration in migrations if has_remains(migration)), None)
        if failed is None:
            return ""
        target = self._pod(failed, text(failed, "status", "targetPodName"))
        leftover = "its pod" if target is None else pod_on(target)
        return texts.REMAINS.format(migration=name_of(failed).name, leftover=leftover)

    def _in_the_dark(self, facts: MoveFacts) -> str:
        """The pods whose guests this process has not looked at while there is still time; empty if there are none."""
        ends = [pod for pod in (facts.source, facts.target) if pod is not None and pod_phase(pod) == "Running"]
        # A runner that does not answer must not hold up time-outs and deletions.
        if facts.is_overdue or any(is_leaving(involved) for involved in (facts.migration, *ends)):
            return ""
        phase, age = text(facts.migration, "status", "phase"), self._age(facts.migration)
        # A guest that stands still must not wait long for an answer: its move is taken up. A migration that has not
        # begun waits longer.
        if (phase == RUNNING and age >= _DARK) or (not phase and age >= _REMAINS):
            return ""
        dark = [pod for pod in ends if not self._deps.guest_host.guest(pod).is_known]
        return " and ".join(pod_on(pod) for pod in dark)

    def _pod(self, migration: Json, name: str) -> Json | None:
        return self._deps.pods.get(ObjectName(name_of(migration).namespace, name)) if name else None

    def _age(self, migration: Json) -> Seconds:
        return Seconds(whole(migration, "spec", "completionTimeout") - self._remaining(migration))

    def _remaining(self, migration: Json) -> Seconds:
        """Time that the migration has left, counted from when it was first seen here."""
        span = whole(migration, "spec", "completionTimeout")
        now = self._deps.clock.now()
        # By this process's own clock, which nobody sets back; a new leader starts counting again.
        return Seconds(self._deadlines.setdefault(uid_of(migration), Instant(now + span)) - now)


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
