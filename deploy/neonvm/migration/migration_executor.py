"""Executes a migration's plan: patches objects, creates and deletes pods, starts the transfer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from deploy.kube.events import NORMAL, WARNING
from deploy.neonvm.dependencies import ControllerDependencies
from deploy.neonvm.migration.migration_facts import WAITS, MigrationInputs, MigrationPlan, pod_on
from deploy.neonvm.migration.transfers import Transfers
from deploy.neonvm.objects.owners import is_owned_by, owner_reference
from deploy.neonvm.objects.target_pod import target_pod, with_guest_of
from deploy.neonvm.objects.vm_spec import finalizers_of, machine_of, other_finalizers, vm_of
from deploy.neonvm.texts import controller as texts
from deploy.neonvm.texts.controller import reasoned
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.kubernetes.api import Tolerating
from protocol.kubernetes.conditions import stamped
from protocol.kubernetes.objects import Json, child, items, name_of, text, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import MIGRATIONS, PODS, VIRTUAL_MACHINES
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.names import FINALIZER
from protocol.units import Bytes, Seconds

_DOWNTIME: Final = Seconds(0.02)
"""Initial downtime limit."""
_DEFAULT_BANDWIDTH: Final = "1Gi"
_RETRY: Final = Seconds(5.0)
"""Pause before a transfer that ended with an internal error is resumed."""
_OUTCOME_TRIES: Final = 10
"""How often an outcome is tried to be recorded, in about a minute: Events may be in a store that is down for hours."""
Record = Callable[[Json, str, str, str], Awaitable[None]]
_EXPECTED: Final = frozenset({"Migrated", "Cancelled"})


class MigrationExecutor:
    """Executes plans. ``requeue`` enqueues a VM after a delay."""

    def __init__(
        self, deps: ControllerDependencies, transfers: Transfers, requeue: Callable[[ObjectName, Seconds], None]
    ) -> None:
        self._deps = deps
        self._transfers = transfers
        self._requeue = requeue
        self._tries: dict[str, int] = {}  # to record outcomes, by the migration's uid

    async def execute(self, plan: MigrationPlan, facts: MigrationInputs, remaining: Seconds) -> None:
        """Execute the plan in the order of its fields. Raises ``ApiError``."""
        migration, target = facts.migration, facts.target
        # The order matters: write what must not be lost before anything that depends on it.
        if plan.add_finalizer:
            await self._add_finalizer(migration, facts.vm)
        if plan.adopt_target and target is not None and facts.vm is not None:
            owners: Json = {"metadata": {"ownerReferences": [owner_reference(VIRTUAL_MACHINES, facts.vm)]}}
            self._deps.pods.learn(await self._deps.client.merge_patch(PODS, name_of(target), owners))
        if "conditions" in await self._report(migration, plan.status):
            await self._record_wait(plan, facts)
        if plan.own_source and facts.source is not None:
            await self._add_owner(facts.source, migration)
        if plan.create_target and facts.vm is not None:
            await self._create_target(migration, facts.vm, facts.source)
        if plan.send:
            await self._begin(facts, remaining)
        if plan.cancel:
            self._transfers.cancel(uid_of(migration))
        elif plan.send:
            pods = [pod for pod in (facts.source, facts.target) if pod is not None]
            await self._record(facts, *reasoned(texts.MIGRATION_STARTED, ends=" to ".join(map(pod_on, pods))))
        if plan.delete_target and target is not None:
            with Tolerating(RefusalKind.NOT_FOUND):
                # With the uid as precondition: another pod may have the same name.
                await self._deps.client.delete(PODS, name_of(target), uid_of(target))
        if plan.record_outcome:
            # Before the finalizer is removed, so that the outcome is always recorded.
            await self._record_outcome(facts)
        if plan.remove_finalizer:
            await self._patch(migration, {"finalizers": other_finalizers(migration)})
        elif remaining > 0:
            # No watch event marks the timeout.
            self._requeue(vm_of(migration), remaining)

    async def _add_finalizer(self, migration: Json, vm: Json | None) -> None:
        """Add the finalizer, and an owner reference so that Kubernetes deletes the migration with its VM."""
        owners = items(migration, "metadata", "ownerReferences")
        if vm is not None and not is_owned_by(migration, vm):
            owners = [*owners, owner_reference(VIRTUAL_MACHINES, vm, controller=False)]
        await self._patch(migration, {"finalizers": [*finalizers_of(migration), FINALIZER], "ownerReferences": owners})

    async def _patch(self, migration: Json, metadata: Json) -> None:
        # A merge patch replaces whole lists, so it carries the resourceVersion that was read.
        body: Json = {"metadata": {**metadata, "resourceVersion": text(migration, "metadata", "resourceVersion")}}
        self._deps.migrations.learn(await self._deps.client.merge_patch(MIGRATIONS, name_of(migration), body))

    async def _report(self, migration: Json, desired: Json) -> Json:
        """Write the fields that differ, and return them."""
        status = child(migration, "status")
        desired = stamped(desired, timestamp(self._deps.clock.wall()))
        changed = {key: value for key, value in desired.items() if status.get(key) != value}
        if not changed:
            return changed
        # A phase is written only to the version that it was derived from.
        has_phase = "phase" in changed
        version: Json = {"resourceVersion": text(migration, "metadata", "resourceVersion")} if has_phase else {}
        body: Json = {"metadata": version, "status": changed}
        written = await self._deps.client.merge_patch(MIGRATIONS, name_of(migration), body, "status")
        self._deps.migrations.learn(written)
        return changed

    async def _create_target(self, migration: Json, vm: Json, source: Json | None) -> None:
        pod = self._deps.form(vm, target_pod(migration, vm, machine_of(vm).use))
        pod = with_guest_of(pod, source or {})
        # The name is already in the status, so a second attempt finds the pod of the first.
        with Tolerating(RefusalKind.ALREADY_EXISTS):
            await self._deps.client.create(PODS, name_of(vm).namespace, pod)

    async def _add_owner(self, source: Json, migration: Json) -> None:
        owners = items(source, "metadata", "ownerReferences")
        metadata: Json = {
            "resourceVersion": text(source, "metadata", "resourceVersion"),
            "ownerReferences": [*owners, owner_reference(MIGRATIONS, migration, controller=False)],
        }
        self._deps.pods.learn(await self._deps.client.merge_patch(PODS, name_of(source), {"metadata": metadata}))

    async def _begin(self, facts: MigrationInputs, remaining: Seconds) -> None:
        """Start the transfer, or resume one that another process started."""
        migration, guest_host = facts.migration, self._deps.guest_host
        source, target = (_pod_of(migration, end) for end in ("source", "target"))
        if facts.target is None and await self._exists(target):
            return  # the watch lags: without the target pod, the transfer could kill a guest that runs there
        # Resume a transfer even if the spec has become invalid since, to bring it to an end.
        bandwidth = Bytes.parse(_DEFAULT_BANDWIDTH) if facts.fault else bandwidth_of(migration)
        # The API's default is true.
        auto_converge = child(migration, "spec").get("autoConverge") is not False
        limits = TransferLimits(_DOWNTIME, bandwidth, remaining, auto_converge)

        async def send(progress: Callable[[TransferInfo], None]) -> TransferInfo:
            return await guest_host.send(source, target, limits, progress)

        async def on_fault(error: Exception) -> None:
            self._requeue(vm, _RETRY)
            await self._record(facts, texts.MIGRATION_FAILED_INTERNALLY, repr(error), WARNING)

        vm = vm_of(migration)
        self._transfers.begin(uid_of(migration), send, lambda: self._requeue(vm, Seconds(0.0)), on_fault)

    async def _exists(self, pod: ObjectName) -> bool:
        """Return True if the API server has the pod. Uses list, because RBAC does not let the controller get pods."""
        listed = await self._deps.client.list(PODS, pod.namespace, field_selector=f"metadata.name={pod.name}")
        return bool(listed.objects)

    async def _record_wait(self, plan: MigrationPlan, facts: MigrationInputs) -> None:
        for condition in items(plan.status, "conditions"):
            if (reason := text(condition, "reason")) in WAITS:
                await self._record(facts, f"Migration{reason}", text(condition, "message"), WARNING)

    async def _record_outcome(self, facts: MigrationInputs) -> None:
        ended = next(iter(items(facts.migration, "status", "conditions")), {})
        reason = text(ended, "reason")
        event_reason = reason if reason == texts.MIGRATED[0] else f"Migration{reason}"
        kind = NORMAL if reason in _EXPECTED else WARNING
        uid = uid_of(facts.migration)
        self._tries[uid] = tries = self._tries.get(uid, 0) + 1
        # Raises, unlike for other Events: the finalizer stays until the outcome is recorded.
        record = self._deps.events.record_or_raise if tries < _OUTCOME_TRIES else None
        await self._record(facts, event_reason, text(ended, "message"), kind, record)
        del self._tries[uid]

    async def _record(
        self, facts: MigrationInputs, reason: str, message: str, kind: str = NORMAL, record: Record | None = None
    ) -> None:
        """Record an Event on the migration and on its VM."""
        message = texts.MIGRATION_MESSAGE.format(migration=name_of(facts.migration).name, message=message)
        for about in filter(None, (facts.migration, facts.vm)):
            await (record or self._deps.events.record)(about, reason, message, kind)


def bandwidth_of(migration: Json) -> Bytes:
    """The migration's bandwidth in bytes per second. Raises ``QuantityError``."""
    bandwidth = child(migration, "spec").get("maxBandwidth")
    # Quantities may be numbers in YAML.
    return Bytes.parse(bandwidth if isinstance(bandwidth, (int, str)) else _DEFAULT_BANDWIDTH)


def _pod_of(migration: Json, end: str) -> ObjectName:
    return ObjectName(name_of(migration).namespace, text(migration, "status", f"{end}PodName"))
