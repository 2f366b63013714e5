"""Persists permits on VirtualMachine objects: increases before they are answered, decreases when there is time.

Rules that hold here:

- A permit is for one VM, by its UID: it is never written onto another one of that name.
- Writes for one VM go one at a time, newest only, each onto the version of the VM that is known (see
  ``cluster.write``). A conflict is read and tried again while an agent would still wait.
- A write into a store that is older than the known VMs, or while a restored one is read again, counts
  as unsure: what the permit was decided on may be no more. Versions are compared within the kind alone: others may be
  kept in a store of their own.
- A write that has changed nothing proves nothing about earlier ones: it counts as unsure too.
- A permit is stored only if the object that came back has at least that permit: a webhook may drop or lower it. One
  that was taken back is stored only if the object has no more.
- The ledger hears how each write ended, whatever happens to the caller: confirmed, refused, or unsure. What it has
  heard so of a VM it is not told again; but it is where the store was restored or the term ended meanwhile.
- Decreases go at a bounded rate, several at a time, so that VMs whose writes hang do not hold up the others. One that
  fails is not repeated here: the agent's next message orders it again.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, Never

from protocol.kubernetes.objects import number, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.messages import ObjectName
from protocol.units import ZERO, Resources, Seconds
from protocol.virtual_machine import VirtualMachine
from scheduler_plugin.cluster.api import ApiError, ApiRefusedError, ApiUnknownError
from scheduler_plugin.cluster.virtual_machines import vm_facts, with_permit
from scheduler_plugin.cluster.write import WRITE_TIMEOUT
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger import PersistPermit, VmFacts
from scheduler_plugin.telemetry import LOG
from scheduler_plugin.workers.for_each import AT_ONCE


class WriteResult(NamedTuple):
    """Outcome of a write: ``outcome`` as the metric counts it, ``why`` it did not store the permit (empty if it did).

    ``facts`` is the VM as it is stored now, if that is known.
    """

    outcome: str
    why: str = ""
    facts: VmFacts | None = None


NOT_WANTED: Final = WriteResult("refused", "the VM has an agent again")


class PermitWriter:
    """The only writer of the permit annotation."""

    def __init__(self, context: SchedulerContext) -> None:
        self._context = context
        self._turns: dict[ObjectName, _Turn] = {}

    async def store(self, order: PersistPermit) -> str:
        """Writes a permit and reports to the ledger. Empty if the API is now known to hold it, otherwise why not."""
        self._drop_older(order)
        began = self._context.clock.now()
        turn = self._turns.setdefault(order.vm, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                if order.revision <= turn.newest:
                    return turn.why if order.revision == turn.newest else "a newer permit was written instead"
                turn.newest, turn.why = order.revision, "the write was given up"
                ended = await self._write(order, turn)
                turn.why = ended.why
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[order.vm]
        waited = Seconds(self._context.clock.now() - began) if order.before_answer else None
        self._context.telemetry.permit_written(ended.outcome, waited)
        return ended.why

    def _drop_older(self, order: PersistPermit) -> None:
        """A write that was ordered later stays: nobody else would carry it out, and the ledger waits for its end."""
        waiting = self._context.queues.permits.find(order.vm)
        if waiting is not None and waiting.revision <= order.revision:
            self._context.queues.permits.drop(order.vm)

    async def run(self) -> None:
        """Carries out the decreases that were ordered, for ever."""
        pace = asyncio.Lock()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(self._lower(pace))

    async def _lower(self, pace: asyncio.Lock) -> Never:
        """One of those who write; an order is taken and begun in one step, so that none is overtaken by an increase."""
        while True:
            async with pace:
                await self._context.clock.sleep(Seconds(1 / self._context.feed.settings.lazy_writes_per_second))
                order = await self._context.queues.permits.take()
            await self.store(order)

    async def _write(self, order: PersistPermit, turn: _Turn) -> WriteResult:
        ended = WriteResult("unknown", "the write was given up")
        try:
            facts = await self._stored_facts(order, turn)
            ended = self._judged(order, facts) if self._context.ledger.wants(order) or facts else NOT_WANTED
        except ApiError as error:
            ended = WriteResult("refused" if isinstance(error, ApiRefusedError) else "unknown", str(error))
        finally:
            self._report(order, ended, turn.version)
        if ended.why:
            what = {"vm": str(order.vm), "permit": str(order.permit), "outcome": ended.outcome, "reason": ended.why}
            LOG.warning("permit not stored", extra=what)
        return ended

    @staticmethod
    def _judged(order: PersistPermit, facts: VmFacts | None) -> WriteResult:
        """Whether the object that came back holds at least what was ordered; at most, if a permit was taken back."""
        if facts is None:
            return WriteResult("lost", "the VirtualMachine is gone")
        permit = facts.permit or ZERO
        covers = permit.within(order.permit) if order.takes_back else order.permit.within(permit)
        if covers and facts.is_permit_known:
            return WriteResult("stored", facts=facts)
        kept = "nothing that can be read" if facts.permit is None or not facts.is_permit_known else str(facts.permit)
        why = f"wrote the permit {order.permit}, the API server stored {kept}: a webhook or a policy changed it"
        return WriteResult("altered", why, facts)

    async def _stored_facts(self, order: PersistPermit, turn: _Turn) -> VmFacts | None:
        """The VM with the permit on it; None if there is no such VM any more. Raises ``ApiError``."""
        began = self._context.clock.now()
        vm = self._context.feed.vms.facts.get(order.vm)
        while vm is not None and vm.uid == order.uid and self._context.ledger.wants(order):
            turn.version = number(vm.resource_version)
            try:
                return await self._stored_on(vm, order)
            except ApiRefusedError as error:
                if error.kind is not RefusalKind.CONFLICT or self._context.clock.now() - began >= WRITE_TIMEOUT:
                    raise
            vm = await self._context.feed.vms.read(order.vm, self._context.writer.read_vm(order.vm))
        return None

    async def _stored_on(self, vm: VirtualMachine, order: PersistPermit) -> VmFacts | None:
        vms = self._context.feed.vms
        known = vms.newest
        answer = await self._context.writer.store_permit(vm, order)
        version = version_of(answer)
        if version == vm.resource_version:
            raise ApiUnknownError("no-op write (resourceVersion unchanged); an earlier write may still apply")
        if 0 < number(version) <= known or not self._context.ledger.is_ready:
            raise ApiUnknownError("the cluster's store was restored, and has not been read since")
        written = with_permit(vm, order.permit, answer)
        if written is None:
            found = vms.learn(answer)
            return None if found is None else vm_facts(found)
        is_told = vms.facts.get(vm.name) is vm and self._context.feed.feeds(self._context.ledger)
        (vms.learn_told if is_told else vms.learn_fact)(vm.name, vm.uid, version, written)
        return self._with_permit(vm, order.permit, version) or vm_facts(written)

    def _with_permit(self, vm: VirtualMachine, permit: Resources, version: str) -> VmFacts | None:
        """The ledger's facts of this ``vm``, with the permit; None if it knows another version of it."""
        account = self._context.ledger.vms.get(vm.name)
        known = None if account is None else account.facts
        if known is None or known.uid != vm.uid or not 0 < known.version == number(vm.resource_version):
            return None
        return known.with_permit(number(version), permit)

    def _report(self, order: PersistPermit, ended: WriteResult, version: int) -> None:
        ledger, facts = self._context.ledger, ended.facts
        if not ended.why and facts is not None:
            self._context.order(ledger.permit_stored(order.revision, facts))
        elif ended.outcome == "unknown":
            self._context.order(ledger.permit_unsure(order.revision, order.vm, version))
        else:
            self._context.order(ledger.permit_refused(order.revision, order.vm, ended.why, facts))


class _Turn:
    """Turn to write for one VM; kept only while a task writes or waits.

    ``newest`` is the last revision that was sent, ``version`` what it was written onto, ``why`` it is not stored.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        self.newest = 0
        self.version = 0
        self.why = ""
