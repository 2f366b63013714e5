"""Stores permits on VirtualMachine objects: increases before the response, decreases later.

The ledger gets the outcome of each write, even if the caller is cancelled: confirmed, refused, or unknown. Writes for
one VM are sent one at a time, and only the newest is sent.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, Never
from weakref import WeakValueDictionary

from protocol.kubernetes.api import ApiError, ApiRefusedError, ApiUnknownError
from protocol.kubernetes.objects import number, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.units import ZERO, Resources, Seconds
from scheduler_plugin.cluster.virtual_machines import ClusterVm, vm_facts, with_permit
from scheduler_plugin.cluster.write import WRITE_TIMEOUT
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger.events import PermitWritten, WriteOutcome
from scheduler_plugin.ledger.facts import VmFacts
from scheduler_plugin.ledger.outcomes import PersistPermit
from scheduler_plugin.order_queues import AT_ONCE
from scheduler_plugin.telemetry import LOG
from scheduler_plugin.texts import explanations, logs
from scheduler_plugin.workers.pacing import Pacer


class WriteResult(NamedTuple):
    """Result of a write: ``outcome`` is the metric's label, ``why`` the reason if the permit was not stored (else
    empty).

    ``facts`` is the VM as stored now, if known.
    """

    outcome: str
    why: str = ""
    facts: VmFacts | None = None


NOT_WANTED: Final = WriteResult("refused", explanations.NO_LONGER_WANTED)


class PermitWriter:
    """The only writer of the permit annotation."""

    def __init__(self, context: SchedulerContext) -> None:
        self._context = context
        # Weak: removed once no task writes or waits.
        self._turns: WeakValueDictionary[ObjectName, _WriteTurn] = WeakValueDictionary()
        self._pacer: Pacer[ObjectName] = Pacer(context.clock)

    async def store(self, order: PersistPermit) -> str:
        """Write a permit and report to the ledger. Return an empty text if it is known to be stored, else the
        reason.
        """
        self._drop_older(order)
        began = self._context.clock.now()
        # Before the wait, so that this order is dropped if a newer one is sent meanwhile.
        turn = self._turns.setdefault(order.vm, _WriteTurn())
        if order.before_answer and not await self._is_due(order):
            return explanations.OVERTAKEN
        async with turn.lock:
            # A newer order overtook this one.
            if order.revision <= turn.newest:
                return turn.why if order.revision == turn.newest else explanations.OVERTAKEN
            # Set before the call, in case this task is cancelled.
            turn.newest, turn.why = order.revision, explanations.GIVEN_UP
            result = await self._write(order, turn)
            turn.why = result.why
        waited = Seconds(self._context.clock.now() - began) if order.before_answer else None
        self._context.telemetry.permit_written(result.outcome, waited)
        return result.why

    async def _is_due(self, order: PersistPermit) -> bool:
        """Wait for the turn of an increase; return False if a newer one has come meanwhile."""
        try:
            return await self._pacer.turn(order.vm)
        except asyncio.CancelledError:
            # As if cancelled in the write: the ledger waits for the outcome.
            self._report(order, WriteResult("unknown", explanations.GIVEN_UP), 0)
            raise

    def _drop_older(self, order: PersistPermit) -> None:
        waiting = self._context.queues.permits.find(order.vm.namespace, order.vm)
        # Keep a newer one: the ledger waits for its outcome.
        if waiting is not None and waiting.revision <= order.revision:
            self._context.queues.permits.drop(order.vm.namespace, order.vm)

    async def run(self) -> None:
        """Write queued decreases until cancelled."""
        pace = asyncio.Lock()
        async with asyncio.TaskGroup() as tasks:
            # Several at a time, so that hanging writes do not delay other VMs.
            for _ in range(AT_ONCE):
                tasks.create_task(self._write_decreases(pace))

    async def _write_decreases(self, pace: asyncio.Lock) -> Never:
        """One of several writers; takes and starts an order in one step, so that no increase overtakes it."""
        while True:
            async with pace:
                # Under the shared lock, so that all writers together keep the configured rate.
                await self._context.clock.sleep(Seconds(1 / self._context.feed.settings.lazy_writes_per_second))
                order = await self._context.queues.permits.take()
            # Not retried: the agent's next message orders it again.
            await self.store(order)

    async def _write(self, order: PersistPermit, turn: _WriteTurn) -> WriteResult:
        result = WriteResult("unknown", explanations.GIVEN_UP)
        try:
            facts = await self._stored_facts(order, turn)
            result = (
                self._check_stored(order, facts) if self._context.ledger.is_write_needed(order) or facts else NOT_WANTED
            )
        except ApiError as error:
            result = WriteResult("refused" if isinstance(error, ApiRefusedError) else "unknown", str(error))
        finally:
            # Even if this task is cancelled: the ledger waits for the outcome.
            self._report(order, result, turn.version)
        if result.why:
            details = {
                "vm": str(order.vm),
                "permit": str(order.permit),
                "outcome": result.outcome,
                "reason": result.why,
            }
            LOG.warning(logs.PERMIT_NOT_STORED, extra=details)
        return result

    @staticmethod
    def _check_stored(order: PersistPermit, facts: VmFacts | None) -> WriteResult:
        """Check that the returned object has at least the ordered permit; at most, if it was taken back."""
        if facts is None:
            return WriteResult("lost", explanations.VM_GONE)
        permit = facts.permit or ZERO
        # A webhook may drop or lower the permit.
        covers = permit.within(order.permit) if order.revokes else order.permit.within(permit)
        if covers and facts.is_permit_known:
            return WriteResult("stored", facts=facts)
        is_known = facts.permit is not None and facts.is_permit_known
        stored = facts.permit if is_known else explanations.NOTHING_READABLE
        why = explanations.ALTERED.format(permit=order.permit, stored=stored)
        return WriteResult("altered", why, facts)

    async def _stored_facts(self, order: PersistPermit, turn: _WriteTurn) -> VmFacts | None:
        """The VM with the stored permit; None if the VM is gone. Raises ``ApiError``."""
        began = self._context.clock.now()
        vm = self._context.feed.vms.facts.get(order.vm)
        # By UID: not to another VM of that name. After a conflict the ledger may no longer want this permit.
        while vm is not None and vm.uid == order.uid and self._context.ledger.is_write_needed(order):
            turn.version = number(vm.resource_version)
            try:
                return await self._write_to(vm, order)
            except ApiRefusedError as error:
                # After a conflict read the VM and retry while an agent would still wait.
                if error.kind is not RefusalKind.CONFLICT or self._context.clock.now() - began >= WRITE_TIMEOUT:
                    raise
            vm = await self._context.feed.vms.read(order.vm, self._context.writer.read(VIRTUAL_MACHINES, order.vm))
        return None

    async def _write_to(self, vm: ClusterVm, order: PersistPermit) -> VmFacts | None:
        vms = self._context.feed.vms
        newest_before = vms.newest
        answer = await self._context.writer.store_permit(vm, order)
        version = version_of(answer)
        # A no-op patch does not reach etcd, so its response proves nothing about earlier writes.
        if version == vm.resource_version:
            raise ApiUnknownError(explanations.NO_OP)
        # An older version than seen before: etcd was restored, and the facts behind the permit may be gone. Compared
        # within the kind only, because other kinds may be in another store.
        if 0 < number(version) <= newest_before or not self._context.ledger.is_ready:
            raise ApiUnknownError(explanations.RESTORED)
        written = with_permit(vm, order.permit, answer)
        if written is None:
            vm_now = vms.learn(answer)
            return None if vm_now is None else vm_facts(vm_now)
        # ``_report`` tells the ledger, so the watch need not, unless etcd was restored or the term has ended.
        is_reported = vms.facts.get(vm.name) is vm and self._context.feed.is_attached_to(self._context.ledger)
        (vms.learn_silently if is_reported else vms.learn_fact)(vm.name, vm.uid, version, written)
        return self._with_permit(vm, order.permit, version) or vm_facts(written)

    def _with_permit(self, vm: ClusterVm, permit: Resources, version: str) -> VmFacts | None:
        """The ledger's facts of this ``vm`` with the permit; None if it knows another version."""
        account = self._context.ledger.vms.get(vm.name)
        facts = None if account is None else account.facts
        if facts is None or facts.uid != vm.uid or not 0 < facts.version == number(vm.resource_version):
            return None
        return facts.with_permit(number(version), permit)

    def _report(self, order: PersistPermit, ended: WriteResult, version: int) -> None:
        outcome = (
            WriteOutcome.UNKNOWN
            if ended.outcome == "unknown"
            else WriteOutcome.REFUSED
            if ended.why
            else WriteOutcome.DONE
        )
        self._context.report(PermitWritten(order.vm, order.revision, outcome, ended.facts, ended.why, version))


class _WriteTurn:
    """Lock and state of one VM's writes, while a task writes or waits.

    ``newest`` is the last revision sent, ``version`` its resourceVersion, ``why`` the reason if it is not stored.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.newest = 0
        self.version = 0
        self.why = ""
