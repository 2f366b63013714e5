"""Live migration of a guest between two QEMU processes, driven by ``handover`` (S4.12).

The driver polls both ends, and their current state alone decides the next step. A transfer ends only when it is known
which end runs; cancelling asks for that to be the source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from deploy.neonvm.ports import GuestError, TransferError, TransferFault
from deploy.neonvm.qemu.frame_handover import FrameHandover, FrameRouting
from deploy.neonvm.qemu.handover import (
    PAUSED_BY_MIGRATION,
    UNDER_WAY,
    HandoverStep,
    MigrationView,
    SourceState,
    TargetState,
    must_continue,
    next_step,
    source_state,
    target_state,
)
from deploy.neonvm.qemu.machine import Decide, Decided, Machine, OpenRoute, Route, accept_decision, socket_pair
from deploy.neonvm.qemu.reports import TransferReport, completed_info, parse_report, parse_run_state, transfer_info
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

_Result = TypeVar("_Result")

_POLL_SECONDS: Final = 0.2
"""Poll interval in seconds; events trigger an earlier poll."""

_REPORT: Final = 1.0
_SILENCE_TIMEOUT: Final = Seconds(60.0)
"""How long a released target, or a source that resumes, may be silent before it counts as lost. Until then no other
copy may run, and QEMU with an emulated guest on a busy host may miss some calls.
"""

_MAX_REFUSALS: Final = 5
"""How often a target that was given the guest may refuse to run, or its source be gone, before both are killed."""
_ANNOUNCE: Final = {"initial": 20, "max": 100, "rounds": 5, "step": 40}
"""Parameters of ``announce-self``; times in milliseconds."""


@dataclass(frozen=True, slots=True)
class TransferEndpoints:
    """Both machines, the connection between them, and the VM's name for messages. ``route_to_source`` and
    ``route_to_target`` redirect the guest's frames on the network; ``frames`` hands over those that the source received
    and its guest did not read.
    """

    vm: str
    source: Machine
    target: Machine
    clock: Clock
    route_to_source: Callable[[], None]
    route_to_target: Callable[[], None]
    frames: FrameHandover = field(default_factory=FrameHandover)
    open_route: OpenRoute = socket_pair
    decide: Decide = accept_decision


class Transfer:
    """One live migration. After ``run``, the source runs, or the target, or neither."""

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
        self._routing = FrameRouting(ends.route_to_source, ends.route_to_target, ends.frames)
        self._released: Instant | None = None
        self._is_cancelled = False
        self._refusals = 0
        self._is_detached = False

    def cancel(self) -> None:
        """Cancel the migration, unless the target was already told to run."""
        self._is_cancelled = True

    def detach(self) -> None:
        """Stop driving the migration: QEMU continues it, and another process can resume driving it."""
        self._is_detached = True

    async def run(self) -> TransferInfo:
        """Migrate the guest. Raises ``TransferError``, and ``CancelledError`` after ``detach``."""
        source = self._endpoints.source
        with source.on_event("STOP", self._routing.away), source.on_event("RESUME", self._resumed):
            return await self._drive()

    async def _drive(self) -> TransferInfo:
        try:
            if not await self._is_under_way() and not self._must_abort():
                await self._begin()
        except TransferError:
            raise  # the source's runner does not support migration, so nothing was started
        except GuestError as error:
            if await self._decide_kept():
                raise await self._take_back(TransferFault.REFUSED, str(error)) from error
        while not self._is_detached:
            view = await self._poll()
            match next_step(view):
                case HandoverStep.WAIT:
                    await self._raise_downtime_limit()
                    await self._endpoints.source.wait_for_event(_POLL_SECONDS)
                case HandoverStep.RELEASE:
                    await self._release()
                case HandoverStep.FINISH:
                    return await self._finish()
                case HandoverStep.TAKE_BACK:
                    fault, reason = self._blame(view)
                    if await self._decide_kept():
                        raise await self._take_back(fault, reason)
                    if self._refusals > _MAX_REFUSALS:
                        raise await self._give_up(view)
                    await self._endpoints.source.wait_for_event(_POLL_SECONDS)
                case HandoverStep.GIVE_UP:
                    raise await self._give_up(view)
        raise asyncio.CancelledError

    async def _begin(self) -> None:
        """Configure both ends and start the migration. Raises ``GuestError``."""
        source, target, limits = self._endpoints.source, self._endpoints.target, self._limits
        # `late-block-activate`: the target does not touch the disk before it runs.
        await target.call("migrate-set-capabilities", _capabilities("events", "return-path", "late-block-activate"))
        throttle = ("auto-converge",) if limits.auto_converge else ()
        await source.call("migrate-set-capabilities", _capabilities("events", "return-path", *throttle))
        rates = {**_downtime_limit(self._downtime), "max-bandwidth": limits.bandwidth.value}
        await source.call("migrate-set-parameters", rates)
        # Before the migration starts: the guest may stop at any moment after that.
        await self._endpoints.frames.prepare()
        route = await self._open_route()
        if route is None:
            return  # the next poll ends the migration
        # The target mangles the first frame, read before virtio features are known: let it be this announcement.
        self._endpoints.route_to_source()
        await target.call("migrate-incoming", {"uri": route.incoming})
        await source.call("migrate", route.outgoing)

    async def _open_route(self) -> Route | None:
        """Connect the ends, which includes copying a sleeping guest's disk; None if the migration is aborted first."""
        opening = asyncio.ensure_future(self._endpoints.open_route(self._endpoints.source, self._endpoints.target))
        try:
            while not (opening.done() or self._must_abort() or self._is_detached):
                await asyncio.wait((opening,), timeout=_POLL_SECONDS)
            return opening.result() if opening.done() else None
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)

    async def _is_under_way(self) -> bool:
        """Return True if another process has already started the migration. Raises ``GuestError``."""
        # Its state is only in the recorded decision and in both QEMUs.
        decided = await self._endpoints.decide(Decided.OPEN)
        if decided is Decided.GIVEN:
            await self._release()
        self._is_cancelled = self._is_cancelled or decided is Decided.KEPT
        if decided is not Decided.OPEN:
            return True
        source = self._endpoints.source
        status = parse_report(await source.call("query-migrate")).status
        if source_state(status) is SourceState.SENT:
            # A running source may still report the migration by which its guest arrived.
            return parse_run_state(await source.call("query-status")) in PAUSED_BY_MIGRATION
        return status in UNDER_WAY

    async def _raise_downtime_limit(self) -> None:
        """Raise the downtime limit as the migration takes longer, and after the only pass of an emulated guest."""
        span = Seconds(self._endpoints.clock.now() - self._began)
        downtime = self._limits.downtime_after(span, self._report.is_sent_once)
        if downtime != self._downtime:
            self._downtime = downtime
            await _try_call(self._endpoints.source, "migrate-set-parameters", _downtime_limit(downtime))

    def _resumed(self) -> None:
        """The source has resumed: redirect frames to it, unless the target was released."""
        # After the release QEMU may resume the source on its own; it is killed then.
        if self._released is None:
            self._routing.back()

    async def _poll(self) -> MigrationView:
        source = await self._source()
        target = await self._target()
        now = self._endpoints.clock.now()
        return MigrationView(
            source,
            target,
            is_released=self._released is not None,
            is_cancelled=self._must_abort(),
            is_hopeless=self._released is not None and now - self._released >= _SILENCE_TIMEOUT,
        )

    def _must_abort(self) -> bool:
        return self._is_cancelled or self._endpoints.clock.now() - self._began >= self._limits.timeout

    async def _source(self) -> SourceState:
        source = self._endpoints.source
        try:
            self._report = parse_report(await source.call("query-migrate"))
        except GuestError:
            # A missing response proves neither that it runs nor that it is gone.
            return SourceState.SILENT if source.alive else SourceState.GONE
        now = self._endpoints.clock.now()
        if now - self._reported >= _REPORT:
            self._reported = now
            self._progress(transfer_info(self._report))
        return source_state(self._report.status)

    async def _target(self) -> TargetState:
        target = self._endpoints.target
        try:
            run_state = parse_run_state(await target.call("query-status"))
            return target_state(run_state, has_run=self._released is not None)
        except GuestError:
            return TargetState.SILENT if target.alive else TargetState.GONE

    async def _release(self) -> None:
        """Tell the target to run. From here on the source is never resumed. The next poll shows whether it runs."""
        if not await self._decide_given():
            return
        self._routing.away()
        self._released = self._endpoints.clock.now()
        await self._routing.settled()
        await _try_call(self._endpoints.target, "cont")
        await _try_call(self._endpoints.target, "announce-self", _ANNOUNCE)
        self._released = self._endpoints.clock.now()  # the timeout starts after the commands, however long they took

    async def _decide_given(self) -> bool:
        """Return True if the target may run. If another process returned the guest to the source, follow it."""
        try:
            decided = await self._endpoints.decide(Decided.GIVEN)
        except GuestError:
            return False  # retried after the next poll
        self._is_cancelled = self._is_cancelled or decided is Decided.KEPT
        return decided is Decided.GIVEN

    async def _decide_kept(self) -> bool:
        try:
            decided = await self._endpoints.decide(Decided.KEPT)
        except GuestError:
            self._refusals += not self._endpoints.source.alive
            return False
        if decided is Decided.GIVEN:
            self._refusals += 1
            await self._release()  # the decision was for the target: tell it again to run
        return decided is not Decided.GIVEN

    async def _finish(self) -> TransferInfo:
        await self._routing.settled()
        await self._endpoints.source.end()
        await self._endpoints.frames.finish()
        # QEMU's own downtime ends before `cont`.
        stopped, resumed = self._endpoints.source.event_time("STOP"), self._endpoints.target.event_time("RESUME")
        standstill = Seconds(resumed - stopped) if stopped is not None and resumed is not None else None
        info = completed_info(self._report, standstill)
        self._progress(info)
        return info

    async def _take_back(self, fault: TransferFault, reason: str) -> TransferError:
        """Kill the target, then make sure that the source runs."""
        source, target, clock = self._endpoints.source, self._endpoints.target, self._endpoints.clock
        await self._routing.settled()
        await target.kill()  # the source may resume only once the target cannot run
        self._routing.back()
        await _try_call(source, "migrate_cancel")
        deadline = clock.now() + _SILENCE_TIMEOUT
        while source.alive and clock.now() < deadline:
            if await self._runs_again():
                return TransferError(fault, f"{self._endpoints.vm}: {reason}; the guest keeps running on the source")
            await source.wait_for_event(_POLL_SECONDS)
        await source.kill()
        return TransferError(fault, f"{self._endpoints.vm}: {reason}; the source did not resume and was killed")

    async def _runs_again(self) -> bool:
        """Resume the source if it is paused by the migration. Return True if it runs."""
        source = self._endpoints.source
        source_decision = await self._source()
        try:
            # Before the guest runs: remaining filters would divert its frames.
            await self._endpoints.frames.restore()
            run_state = parse_run_state(await source.call("query-status"))
        except GuestError:
            return False
        if must_continue(source_decision, run_state):
            await _try_call(source, "cont")
        return run_state not in PAUSED_BY_MIGRATION

    async def _give_up(self, view: MigrationView) -> TransferError:
        source, target = self._endpoints.source, self._endpoints.target
        await target.kill()  # both, so that neither has the disk open when the VM restarts
        await source.kill()
        if view.source is SourceState.GONE and not view.is_released:
            fault, reason = TransferFault.SOURCE_LOST, f"the source ended during the migration: {source.output_tail()}"
        else:
            fault, reason = TransferFault.TARGET_LOST, f"the target ended during the handover: {target.output_tail()}"
        return TransferError(fault, f"{self._endpoints.vm}: {reason}; the guest is lost")

    def _blame(self, view: MigrationView) -> tuple[TransferFault, str]:
        if view.target is TargetState.GONE or view.source is SourceState.KEPT:
            reasons = [self._endpoints.target.output_tail(), self._report.error_desc]
            return TransferFault.TARGET_LOST, f"the target failed: {'; '.join(filter(None, reasons))}"
        if view.is_released:
            return TransferFault.TARGET_LOST, "the target received everything and did not start"
        if self._is_cancelled:
            return TransferFault.REFUSED, "the migration was cancelled"
        return TransferFault.TIMED_OUT, f"not sent within {self._limits.timeout:g} s"


async def run_to_completion(work: Coroutine[object, object, _Result], cancel: Callable[[], None]) -> _Result:
    """Run ``work`` to its end even if cancelled: then ``cancel`` is called, and the cancellation is raised last."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            # Raised at the end: the migration must not be left unfinished.
            cancelled = error
            cancel()
    if cancelled is not None and (task.exception() is None or isinstance(task.exception(), GuestError)):
        raise cancelled  # the caller gets the outcome from the guests
    return task.result()


def _downtime_limit(downtime: Seconds) -> dict[str, int]:
    return {"downtime-limit": round(downtime * 1000)}  # milliseconds


def _capabilities(*names: str) -> dict[str, object]:
    return {"capabilities": [{"capability": name, "state": True} for name in names]}


async def _try_call(machine: Machine, command: str, arguments: dict[str, int] | None = None) -> None:
    """Run a command and ignore errors: the next poll shows its effect."""
    with suppress(GuestError):
        await machine.call(command, arguments)
