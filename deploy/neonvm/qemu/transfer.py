"""Carries out the transfer of a guest between two QEMU processes, as ``handover`` decides (S4.12).

It polls both ends, and only what they say now decides the next step. A transfer always ends with it
being known which end runs; cancelling only asks for that end to be the source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from deploy.neonvm.ports import GuestError, TransferError, TransferFault
from deploy.neonvm.qemu.frame_handover import FrameHandover, FrameLead
from deploy.neonvm.qemu.handover import (
    HELD_BY_THE_MOVE,
    HandoverStep,
    MoveView,
    Resumption,
    SourceSays,
    TargetSays,
    next_step,
    resumption,
    source_says,
    target_says,
)
from deploy.neonvm.qemu.machine import Decide, Decided, Machine, OpenWire, decided_here, socket_pair
from deploy.neonvm.qemu.reports import (
    TransferReport,
    completed_info,
    parse_report,
    parse_run_state,
    transfer_info,
)
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

_Result = TypeVar("_Result")

_LOOK: Final = 0.2
"""Seconds between two looks if no event asks for one."""

_REPORT: Final = 1.0
_UNDER_WAY: Final = frozenset({"setup", "active", "pre-switchover", "device"})
"""QEMU's words for a move that has begun and not ended."""
_PATIENCE: Final = Seconds(60.0)
"""How long a released target or a source that is taken back may be silent before it counts as lost. Until then nothing
else can run, and an emulated guest on a busy machine may well leave some calls unanswered.
"""

_MOST_REFUSALS: Final = 5
"""How often a target that was given the guest may refuse to run, or its source be gone, before both are given up."""
_ANNOUNCE: Final = {"initial": 20, "max": 100, "rounds": 5, "step": 40}
"""Milliseconds until, and between, announcements of the guest's new place."""


@dataclass(frozen=True, slots=True)
class TransferEndpoints:
    """The machines of a move, what is between them, and the name of the VM for messages. ``lead_to_source`` and
    ``lead_to_target`` tell the network where the guest's frames should go from now on, and ``frames`` takes care of
    those that went to the source and were not read.
    """

    vm: str
    source: Machine
    target: Machine
    clock: Clock
    lead_to_source: Callable[[], None]
    lead_to_target: Callable[[], None]
    frames: FrameHandover = field(default_factory=FrameHandover)
    open_wire: OpenWire = socket_pair
    decide: Decide = decided_here


class Transfer:
    """One move. ``run`` ends with the source or the target running, or with neither."""

    def __init__(
        self, ends: TransferEndpoints, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> None:
        self._endpoints = ends
        self._limits = limits
        self._progress = progress
        self._report = TransferReport()
        self._began = ends.clock.now()
        self._reported = Instant(self._began - _REPORT)
        self._downtime = limits.downtime_after(Seconds(0.0))
        self._lead = FrameLead(ends.lead_to_source, ends.lead_to_target, ends.frames)
        self._released: Instant | None = None
        self._is_called_off = False
        self._refusals = 0
        self._is_left = False

    def call_off(self) -> None:
        """Cancels the move, as far as the target was not yet told to run."""
        self._is_called_off = True

    def leave(self) -> None:
        """Ends this process's part: both ends go on, and another process may take the move up."""
        self._is_left = True

    async def run(self) -> TransferInfo:
        """Moves the guest. Raises ``TransferError``, and ``CancelledError`` after ``leave``."""
        source = self._endpoints.source
        with source.hearing("STOP", self._lead.away), source.hearing("RESUME", self._resumed):
            return await self._carried_out()

    async def _carried_out(self) -> TransferInfo:
        try:
            if not await self._taken_up() and not self._must_end():
                await self._begin()
        except TransferError:
            raise  # the source's runner decides nothing, so nothing was begun
        except GuestError as error:
            if await self._keeps():
                raise await self._taken_back(TransferFault.REFUSED, str(error)) from error
        while not self._is_left:
            view = await self._look()
            match next_step(view):
                case HandoverStep.WAIT:
                    await self._relax()
                    await self._endpoints.source.wait_for_event(_LOOK)
                case HandoverStep.RELEASE:
                    await self._release()
                case HandoverStep.FINISH:
                    return await self._finish()
                case HandoverStep.TAKE_BACK:
                    fault, story = self._blame(view)
                    if await self._keeps():
                        raise await self._taken_back(fault, story)
                    if self._refusals > _MOST_REFUSALS:
                        raise await self._given_up(view)
                    await self._endpoints.source.wait_for_event(_LOOK)
                case HandoverStep.GIVE_UP:
                    raise await self._given_up(view)
        raise asyncio.CancelledError

    async def _begin(self) -> None:
        """Prepares both ends and tells them to start. Raises ``GuestError`` if one will not."""
        source, target, limits = self._endpoints.source, self._endpoints.target, self._limits
        # `late-block-activate`: the target does not touch the disk before it runs.
        await target.call("migrate-set-capabilities", _capabilities("events", "return-path", "late-block-activate"))
        brake = ("auto-converge",) if limits.auto_converge else ()
        await source.call("migrate-set-capabilities", _capabilities("events", "return-path", *brake))
        rates = {**_stands_still(self._downtime), "max-bandwidth": limits.bandwidth.value}
        await source.call("migrate-set-parameters", rates)
        # Before the move starts: the guest may stop at any moment after it.
        await self._endpoints.frames.prepare()
        route = await self._endpoints.open_wire(source, target)
        # A target spoils the one frame that it takes before it knows its guest's features: let it be this announcement.
        self._endpoints.lead_to_source()
        await target.call("migrate-incoming", {"uri": route.incoming})
        await source.call("migrate", route.outgoing)

    async def _taken_up(self) -> bool:
        """Return True if the move was begun by another process before. Raises ``GuestError``."""
        # What was decided, and what both ends say, is all there is to know of a move that another process began.
        decided = await self._endpoints.decide(Decided.OPEN)
        if decided is Decided.GIVEN:
            await self._release()
        self._is_called_off = self._is_called_off or decided is Decided.KEPT
        if decided is not Decided.OPEN:
            return True
        source = self._endpoints.source
        status = parse_report(await source.call("query-migrate")).status
        if source_says(status) is SourceSays.SENT:
            # A running source may still report the move that brought its guest.
            return parse_run_state(await source.call("query-status")) in HELD_BY_THE_MOVE
        return status in _UNDER_WAY

    async def _relax(self) -> None:
        """Lets the guest stand still for longer if the move has lasted for long, or is made in one pass."""
        span = Seconds(self._endpoints.clock.now() - self._began)
        downtime = self._limits.downtime_after(span, self._report.is_sent_once)
        if downtime != self._downtime:
            self._downtime = downtime
            await _tried(self._endpoints.source, "migrate-set-parameters", _stands_still(downtime))

    def _resumed(self) -> None:
        """The source goes on. Once the target was told to run, the end of the move decides instead."""
        # After the release the source's QEMU may go on by itself; it is ended then.
        if self._released is None:
            self._lead.back()

    async def _look(self) -> MoveView:
        source = await self._source()
        target = await self._target()
        now = self._endpoints.clock.now()
        return MoveView(
            source,
            target,
            is_released=self._released is not None,
            is_called_off=self._must_end(),
            is_hopeless=self._released is not None and now - self._released >= _PATIENCE,
        )

    def _must_end(self) -> bool:
        return self._is_called_off or self._endpoints.clock.now() - self._began >= self._limits.timeout

    async def _source(self) -> SourceSays:
        source = self._endpoints.source
        try:
            self._report = parse_report(await source.call("query-migrate"))
        except GuestError:
            # An end that does not answer is silent, which is neither alive nor dead.
            return SourceSays.SILENT if source.alive else SourceSays.GONE
        now = self._endpoints.clock.now()
        if now - self._reported >= _REPORT:
            self._reported = now
            self._progress(transfer_info(self._report))
        return source_says(self._report.status)

    async def _target(self) -> TargetSays:
        target = self._endpoints.target
        try:
            return target_says(parse_run_state(await target.call("query-status")))
        except GuestError:
            return TargetSays.SILENT if target.alive else TargetSays.GONE

    async def _release(self) -> None:
        """Runs the target. The source is never continued from here on; only a look tells whether the target obeyed."""
        if not await self._gives():
            return
        self._lead.away()
        self._released = self._endpoints.clock.now()
        await self._lead.settled()
        await _tried(self._endpoints.target, "cont")
        await _tried(self._endpoints.target, "announce-self", _ANNOUNCE)
        self._released = self._endpoints.clock.now()  # its time to answer begins now, however long the orders took

    async def _gives(self) -> bool:
        """Return True if the target may run. If another process took the guest back, this one does as well."""
        try:
            decided = await self._endpoints.decide(Decided.GIVEN)
        except GuestError:
            return False  # asked again with the next look
        self._is_called_off = self._is_called_off or decided is Decided.KEPT
        return decided is Decided.GIVEN

    async def _keeps(self) -> bool:
        try:
            decided = await self._endpoints.decide(Decided.KEPT)
        except GuestError:
            self._refusals += not self._endpoints.source.alive
            return False
        if decided is Decided.GIVEN:
            self._refusals += 1
            await self._release()  # the target was given the guest: the order to run is repeated
        return decided is not Decided.GIVEN

    async def _finish(self) -> TransferInfo:
        await self._lead.settled()
        await self._endpoints.source.end()
        await self._endpoints.frames.finish()
        # QEMU's own figure for the downtime ends before the order to run.
        stopped, resumed = self._endpoints.source.event_time("STOP"), self._endpoints.target.event_time("RESUME")
        standstill = Seconds(resumed - stopped) if stopped is not None and resumed is not None else None
        info = completed_info(self._report, standstill)
        self._progress(info)
        return info

    async def _taken_back(self, fault: TransferFault, story: str) -> TransferError:
        """Ends the target for good, and then sees that the source runs."""
        source, target, clock = self._endpoints.source, self._endpoints.target, self._endpoints.clock
        await self._lead.settled()
        await target.kill()  # only once it cannot run any more may the source go on
        self._lead.back()
        await _tried(source, "migrate_cancel")
        deadline = clock.now() + _PATIENCE
        while source.alive and clock.now() < deadline:
            if await self._runs_again():
                return TransferError(fault, f"{self._endpoints.vm}: {story}; it goes on where it was")
            await source.wait_for_event(_LOOK)
        await source.kill()
        return TransferError(fault, f"{self._endpoints.vm}: {story}; and its source did not go on")

    async def _runs_again(self) -> bool:
        """Continues the source if it needs that. Return True if it runs."""
        source = self._endpoints.source
        says = await self._source()
        try:
            # Before the guest runs: filters that stay would keep its frames from it.
            await self._endpoints.frames.restore()
            needs = resumption(says, parse_run_state(await source.call("query-status")))
        except GuestError:
            return False
        if needs is Resumption.CONTINUE:
            await _tried(source, "cont")
        return needs is Resumption.DONE

    async def _given_up(self, view: MoveView) -> TransferError:
        source, target = self._endpoints.source, self._endpoints.target
        await target.kill()  # both, so that nothing else has the disk when the VM starts again
        await source.kill()
        if view.source is SourceSays.GONE and not view.is_released:
            fault, story = TransferFault.SOURCE_LOST, f"its source ended on the way: {source.last_words()}"
        else:
            fault, story = TransferFault.TARGET_LOST, f"its target ended as it took over: {target.last_words()}"
        return TransferError(fault, f"{self._endpoints.vm}: {story}; nothing runs any more")

    def _blame(self, view: MoveView) -> tuple[TransferFault, str]:
        if view.target is TargetSays.GONE or view.source is SourceSays.KEPT:
            reasons = [self._endpoints.target.last_words(), self._report.error_desc]
            return TransferFault.TARGET_LOST, f"its target failed: {'; '.join(filter(None, reasons))}"
        if view.is_released:
            return TransferFault.TARGET_LOST, "its target had everything and would not run"
        if self._is_called_off:
            return TransferFault.REFUSED, "the move was called off"
        return TransferFault.TIMED_OUT, f"it could not be sent within {self._limits.timeout:g} s"


async def carried_through(work: Coroutine[object, object, _Result], call_off: Callable[[], None]) -> _Result:
    """The result of ``work``, which always runs to its end: being cancelled calls it off, and is passed on after it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            # Noted and passed on at the end: the move must not be left half done.
            cancelled = error
            call_off()
    if cancelled is not None and (task.exception() is None or isinstance(task.exception(), GuestError)):
        raise cancelled  # the caller that cancelled asks the guests for the outcome
    return task.result()


def _stands_still(downtime: Seconds) -> dict[str, int]:
    return {"downtime-limit": round(downtime * 1000)}  # milliseconds


def _capabilities(*names: str) -> dict[str, object]:
    return {"capabilities": [{"capability": name, "state": True} for name in names]}


async def _tried(machine: Machine, command: str, arguments: dict[str, int] | None = None) -> None:
    """Gives an order whose answer does not matter: its effect shows in the next look."""
    with suppress(GuestError):
        await machine.call(command, arguments)
