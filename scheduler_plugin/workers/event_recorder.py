"""Events on VirtualMachines, so that ``kubectl describe`` shows why a VM does not grow and where it moved."""

from __future__ import annotations

from typing import Final, Never

from protocol.kubernetes.api import ApiError, ApiRefusedError, ApiUnknownError
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.events import EventRecord, about_vm
from protocol.units import Instant, Resources, Seconds
from protocol.virtual_machine import VirtualMachine
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.order_queues import FairQueue
from scheduler_plugin.telemetry import LOG
from scheduler_plugin.texts import events, logs

# Minimum interval between events about denials and unstored permits of one VM.
EVENT_INTERVAL: Final = Seconds(300.0)
# Five events per second in the whole cluster.
PAUSE: Final = Seconds(0.2)
MAX_QUEUED: Final = 10_000
"""Maximum number of queued events, half an hour's; more are dropped."""

MAX_VMS: Final = 10_000
"""Maximum number of VMs whose last event is remembered; the oldest go first."""


class SchedulerEvents:
    """Decides which events to write, and writes them in the background."""

    def __init__(self, context: SchedulerContext) -> None:
        self._context = context
        self._queue: FairQueue[str, EventRecord] = FairQueue(MAX_QUEUED)
        self._last_event_at: dict[ObjectName, Instant] = {}

    def denied(self, vm: VirtualMachine, uid: str, wanted: Resources, permit: Resources) -> None:
        """Record that a VM did not get all that its agent requested."""
        if not self._is_due(vm.name):
            return
        explanation = self._context.ledger.explain(uid, self._context.clock.now())
        why = explanation.denied_by or explanation.requests_problem
        self.record(EventRecord(about_vm(vm), *events.growth_denied(wanted, permit, why)))

    def not_stored(self, vm: VirtualMachine, permit: Resources, why: str) -> None:
        """Record that a VM's permit could not be written, so its agent got an error."""
        if self._is_due(vm.name):
            self.record(EventRecord(about_vm(vm), *events.permit_not_stored(permit, why)))

    def _is_due(self, vm: ObjectName) -> bool:
        """Return True if the VM had no event for a while, and record one now."""
        now = self._context.clock.now()
        # Reinsert: the dict is in order of last events.
        last = self._last_event_at.pop(vm, None)
        is_due = last is None or now - last >= EVENT_INTERVAL
        self._last_event_at[vm] = now if last is None or is_due else last
        if len(self._last_event_at) > MAX_VMS:
            del self._last_event_at[next(iter(self._last_event_at))]
        return is_due

    def record(self, event: EventRecord) -> None:
        """Queue an event; it replaces one with the same name, or else one about the same object."""
        key = f"{event.path}/{event.name}" if event.name else str(event.about.name)
        # Users can create thousands of objects with new problems. Metrics and ``/explain`` have them too.
        self._queue.put(event.namespace, key, event)

    async def run(self) -> Never:
        """Write events until cancelled."""
        while True:
            event = await self._queue.take()
            try:
                await self._context.writer.create_event(event, micro_timestamp(self._context.clock.wall()))
            except ApiError as error:
                self._failed(event, error)
            await self._context.clock.sleep(PAUSE)

    def _failed(self, event: EventRecord, error: ApiError) -> None:
        if event.name is not None and isinstance(error, ApiUnknownError):
            # A named event can be retried: it cannot be written twice. Others are dropped: metrics and ``/explain``
            # have them too.
            self.record(event)
        elif not (isinstance(error, ApiRefusedError) and error.kind is RefusalKind.ALREADY_EXISTS):
            details = {"object": str(event.about.name), "event": event.reason, "reason": str(error)}
            LOG.warning(logs.EVENT_DROPPED, extra=details)
