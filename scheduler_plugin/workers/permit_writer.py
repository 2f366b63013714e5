"""Persists permits on VirtualMachine objects: increases before they are answered, decreases later.

The ledger hears how each write ended, whatever happens to the caller: confirmed, refused, or unsure. Writes for one VM
go one at a time, newest only.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, Never
from weakref import WeakValueDictionary

from protocol.kubernetes.api import ApiError, ApiRefusedError, ApiUnknownError
from protocol.kubernetes.objects import number, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.messages import ObjectName
from protocol.units import ZERO, Resources, Seconds
from protocol.virtual_machine import VirtualMachine
from scheduler_plugin.cluster.virtual_machines import vm_facts, with_permit
from scheduler_plugin.cluster.write import WRITE_TIMEOUT
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger.events import PermitWritten, WriteEnd
from scheduler_plugin.ledger.facts import VmFacts
from scheduler_plugin.ledger.outcomes import PersistPermit
from scheduler_plugin.order_queues import AT_ONCE
from scheduler_plugin.telemetry import LOG
from scheduler_plugin.texts import explanations, logs


class WriteResult(NamedTuple):
    """Outcome of a write: ``outcome`` as the metric counts it, ``why`` it did not store the permit (empty if it did).

    ``facts`` is the VM as it is stored now, if that is known.
    """

    outcome: str
    why: str = ""
    facts: VmFacts | None = None


NOT_WANTED: Final = WriteResult("refused", explanations.NO_LONGER_WANTED)


class PermitWriter:
    """The only writer of the permit annotation."""

    def __init__(self, context: SchedulerContext) -> None:
        self._context = context
        # Weak: a turn goes once no task writes or waits.
        self._turns: WeakValueDictionary[ObjectName, _WriteTurn] = WeakValueDictionary()

    async def store(self, order: PersistPermit) -> str:
        """Write a permit and report to the ledger. Returns an empty text if it is known to be stored, else why not."""
        self._drop_older(order)
        began = self._context.clock.now()
        turn = self._turns.setdefault(order.vm, _WriteTurn())
        async with turn.lock:
            # A newer order overtook this one while it waited for the lock.
            if order.revision <= turn.newest:
                return turn.why if order.revision == turn.newest else explanations.OVERTAKEN
            # Set before the call: it holds if this task is cancelled.
            turn.newest, turn.why = order.revision, explanations.GIVEN_UP
            result = await self._write(order, turn)
            turn.why = result.why
        waited = Seconds(self._context.clock.now() - began) if order.before_answer else None
        self._context.telemetry.permit_written(result.outcome, waited)
        return result.why

    def _drop_older(self, order: PersistPermit) -> None:
        waiting = self._context.queues.permits.find(order.vm)
        # A newer one stays: nobody else would carry it out, and the ledger waits for its outcome.
        if waiting is not None and waiting.revision <= order.revision:
            self._context.queues.permits.drop(order.vm)

    async def run(self) -> None:
        """Carries out the decreases that were ordered, for ever."""
        pace = asyncio.Lock()
        async with asyncio.TaskGroup() as tasks:
            # Several at a time, so that VMs whose writes hang do not hold up the others.
            for _ in range(AT_ONCE):
                tasks.create_task(self._lower(pace))

    async def _lower(self, pace: asyncio.Lock) -> Never:
        """One of several writers; an order is taken and begun in one step, so that no increase overtakes it."""
        while True:
            async with pace:
                # Under the shared lock, so that all writers together keep the rate of the settings.
                await self._context.clock.sleep(Seconds(1 / self._context.feed.settings.lazy_writes_per_second))
                order = await self._context.queues.permits.take()
            # A write that fails is not repeated: the agent's next message orders it again.
            await self.store(order)

    async def _write(self, order: PersistPermit, turn: _WriteTurn) -> WriteResult:
        result = WriteResult("unknown", explanations.GIVEN_UP)
        try:
            facts = await self._stored_facts(order, turn)
            result = self._judged(order, facts) if self._context.ledger.wants(order) or facts else NOT_WANTED
        except ApiError as error:
            result = WriteResult("refused" if isinstance(error, ApiRefusedError) else "unknown", str(error))
        finally:
            # Even if this task is cancelled: otherwise the ledger would wait for the outcome for ever.
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
    def _judged(order: PersistPermit, facts: VmFacts | None) -> WriteResult:
        """Check that the returned object holds at least what was ordered; at most, if a permit was taken back."""
        if facts is None:
            return WriteResult("lost", explanations.VM_GONE)
        permit = facts.permit or ZERO
        # A webhook may drop or lower the permit, so only the returned object says what is stored.
        covers = permit.within(order.permit) if order.takes_back else order.permit.within(permit)
        if covers and facts.is_permit_known:
            return WriteResult("stored", facts=facts)
        is_known = facts.permit is not None and facts.is_permit_known
        stored = facts.permit if is_known else explanations.NOTHING_READABLE
        why = explanations.ALTERED.format(permit=order.permit, stored=stored)
        return WriteResult("altered", why, facts)

    async def _stored_facts(self, order: PersistPermit, turn: _WriteTurn) -> VmFacts | None:
        """The VM with the permit on it; None if there is no such VM any more. Raises ``ApiError``."""
        began = self._context.clock.now()
        vm = self._context.feed.vms.facts.get(order.vm)
        # By UID: the permit must not be written onto another VM of that name. After a conflict the ledger may no longer
        # want this permit.
        while vm is not None and vm.uid == order.uid and self._context.ledger.wants(order):
            turn.version = number(vm.resource_version)
            try:
                return await self._stored_on(vm, order)
            except ApiRefusedError as error:
                # After a conflict the VM is read and the write repeated, while an agent would still wait.
                if error.kind is not RefusalKind.CONFLICT or self._context.clock.now() - began >= WRITE_TIMEOUT:
                    raise
            vm = await self._context.feed.vms.read(order.vm, self._context.writer.read_vm(order.vm))
        return None

    async def _stored_on(self, vm: VirtualMachine, order: PersistPermit) -> VmFacts | None:
        vms = self._context.feed.vms
        newest_before = vms.newest
        answer = await self._context.writer.store_permit(vm, order)
        version = version_of(answer)
        # The API server answers a patch that changes nothing without writing to etcd, so this answer proves nothing
        # about earlier writes.
        if version == vm.resource_version:
            raise ApiUnknownError(explanations.NO_OP)
        # A version older than one seen before: the store was restored, and the facts behind the permit may be gone.
        # Compared only within the kind, because other kinds may be in a store of their own.
        if 0 < number(version) <= newest_before or not self._context.ledger.is_ready:
            raise ApiUnknownError(explanations.RESTORED)
        written = with_permit(vm, order.permit, answer)
        if written is None:
            vm_now = vms.learn(answer)
            return None if vm_now is None else vm_facts(vm_now)
        # The ledger hears of this write by ``_report``; the watch need not tell it again, unless the store was
        # restored or the term ended meanwhile.
        is_told = vms.facts.get(vm.name) is vm and self._context.feed.feeds(self._context.ledger)
        (vms.learn_told if is_told else vms.learn_fact)(vm.name, vm.uid, version, written)
        return self._with_permit(vm, order.permit, version) or vm_facts(written)

    def _with_permit(self, vm: VirtualMachine, permit: Resources, version: str) -> VmFacts | None:
        """The ledger's facts of this ``vm``, with the permit; None if it knows another version of it."""
        account = self._context.ledger.vms.get(vm.name)
        facts = None if account is None else account.facts
        if facts is None or facts.uid != vm.uid or not 0 < facts.version == number(vm.resource_version):
            return None
        return facts.with_permit(number(version), permit)

    def _report(self, order: PersistPermit, ended: WriteResult, version: int) -> None:
        outcome = WriteEnd.UNKNOWN if ended.outcome == "unknown" else WriteEnd.REFUSED if ended.why else WriteEnd.DONE
        self._context.report(PermitWritten(order.vm, order.revision, outcome, ended.facts, ended.why, version))


class _WriteTurn:
    """Turn to write for one VM; kept only while a task writes or waits.

    ``newest`` is the last revision that was sent, ``version`` what it was written onto, ``why`` it is not stored.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.newest = 0
        self.version = 0
        self.why = ""
