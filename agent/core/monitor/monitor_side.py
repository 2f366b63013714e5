"""State of the connection to the guest's monitor, and its requests (B.8).

Rules that hold here:

- The guest is not trusted. A request expires, and asks for at most one step beyond the VM's size. So a monitor affects
  only its own VM, within its bounds and its permit.
- ``known_mem`` is the memory that the monitor assumes the guest has: it falls when the monitor agrees to a shrink, and
  rises with a growth.
- An alarm is a load report that makes the VM grow. Later scrapes show whether it was right or false; both are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from agent.core.actions import MonitorMessage
from agent.core.goal import cpu_demand
from agent.core.guest import GuestSample, Rates
from agent.core.policy import MONITOR_GRACE, REFUSED_BACKOFF, TRIAL_BACKOFF, CpuPolicy, MonitorPolicy, Policy
from agent.core.vm import Vm
from protocol.guest.monitor_messages import (
    DownscaleRequest,
    DownscaleResult,
    LoadReport,
    UpscaleConfirmation,
    UpscaleNotification,
    UpscaleRequest,
)
from protocol.units import Bytes, Instant, MilliCpu, Seconds

LONGEST_STATUS: Final = 200
"""Maximum length of a monitor's text in characters."""


CANCELLED: Final = "the pod needed more again"


@dataclass(frozen=True, slots=True)
class ShrinkRefusal:
    """The monitor refused ``target``, ``count`` times in a row; do not ask again before ``retry_at``."""

    target: Bytes
    status: str
    count: int
    retry_at: Instant


@dataclass(frozen=True, slots=True)
class FailedNotice:
    """The monitor failed to apply a growth ``count`` times in a row; repeat the message at ``retry_at``."""

    count: int
    retry_at: Instant


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """The monitor requested memory when the VM had ``base``; expires at ``until``."""

    base: Bytes
    until: Instant


@dataclass(frozen=True, slots=True)
class Alarm:
    """A load report: the VM needs ``need`` instead of ``before`` until ``until``. A scrape sets ``is_right``."""

    need: MilliCpu
    before: MilliCpu
    because: str
    until: Instant
    is_right: bool = False


@dataclass(slots=True)
class MonitorSide:
    """State of the monitor. ``version`` is None while disconnected. The alarm counts never fall.

    ``agreed`` is the memory that the monitor last agreed to; None after a resize or a refusal. ``cancelled`` is the
    memory of the trial that the message in flight cancels.
    """

    version: int | None = None
    known_mem: Bytes | None = None
    agreed: Bytes | None = None
    kept_until: Instant | None = None
    in_flight: MonitorMessage | None = None
    cancelled: Bytes | None = None
    refusal: ShrinkRefusal | None = None
    failed_notice: FailedNotice | None = None
    request: MemoryRequest | None = None
    alarm: Alarm | None = None
    right_alarms: int = 0
    false_alarms: int = 0

    def join(self, version: int) -> None:
        """Record that a monitor connected. The first message to it will be the VM's size."""
        self.version = version
        # A new monitor may assume any size.
        self.known_mem = self.agreed = self.in_flight = self.failed_notice = None

    def leave(self, now: Instant) -> None:
        """Record that the monitor disconnected: drop its requests, but remember for a while which size it assumes, and
        what it refused.
        """
        # It may reconnect soon, so the VM keeps what the monitor has not agreed to give up. A monitor that keeps
        # disconnecting without an answer gets this grace only once.
        has_answered = self.in_flight is None or self.kept_until is None
        if self.version is not None and has_answered:
            self.kept_until = Instant(now + MONITOR_GRACE)
        self.version = self.agreed = self.in_flight = self.failed_notice = self.request = None

    def keeps(self, now: Instant) -> bool:
        """Return True if memory may shrink only as far as the monitor has agreed."""
        return self.version is not None or (self.kept_until is not None and now < self.kept_until)

    def sent(self, message: MonitorMessage) -> None:
        """Record that ``message`` was sent. It may replace one in flight."""
        self.cancelled = self.in_flight.target.mem if isinstance(self.in_flight, DownscaleRequest) else None
        self.in_flight = message
        if isinstance(message, UpscaleNotification):
            self.agreed = None

    def answered(
        self, result: DownscaleResult | UpscaleConfirmation | None, now: Instant, jitter: float, *, is_trial: bool
    ) -> None:
        """Apply the answer to the message in flight; ``result`` is None after an internal error of the monitor.

        ``is_trial``: the answer comes from a trial, not from a guest.
        """
        message, self.in_flight = self.in_flight, None
        if message is None:
            return
        if isinstance(message, UpscaleNotification):
            self.known_mem = message.granted.mem
            count = 1 if self.failed_notice is None else self.failed_notice.count + 1
            retry_at = Instant(now + REFUSED_BACKOFF.delay(count, jitter))
            # A monitor that fails here (its database is down) may still assume less memory, so repeat the message.
            self.failed_notice = FailedNotice(count, retry_at) if result is None else None
            if self.cancelled is not None:
                self._refuse(self.cancelled, CANCELLED, now, TRIAL_BACKOFF.delay(self._refusals + 1, jitter))
            return
        # An answer, even a refusal, renews the grace after a disconnect.
        self.kept_until = None if result is not None else self.kept_until
        if isinstance(result, DownscaleResult) and result.ok:
            self.known_mem, self.refusal, self.failed_notice = message.target.mem, None, None
            self.agreed = message.target.mem
        else:
            self.agreed = None
            status = (
                printable(result.status) if isinstance(result, DownscaleResult) else "internal error in the monitor"
            )
            before, target = self.refusal, message.target.mem
            # This refusal of a smaller shrink must not delay the retry of a larger one.
            if not is_trial and before is not None and target > before.target and now < before.retry_at:
                self.refusal = replace(before, target=target, status=status)
                return
            backoff = TRIAL_BACKOFF if is_trial else REFUSED_BACKOFF
            self._refuse(target, status, now, backoff.delay(self._refusals + 1, jitter))

    @property
    def _refusals(self) -> int:
        return 0 if self.refusal is None else self.refusal.count

    def _refuse(self, target: Bytes, status: str, now: Instant, wait: Seconds) -> None:
        self.refusal = ShrinkRefusal(target, status, self._refusals + 1, Instant(now + wait))

    def apply(
        self, message: UpscaleRequest | LoadReport, vm: Vm | None, policy: Policy, now: Instant, *, settling: bool
    ) -> None:
        """Apply an unsolicited message. ``settling``: the guest may be busy with a shrink."""
        if vm is None or self.version is None:
            return
        if isinstance(message, UpscaleRequest):
            self.request = MemoryRequest(vm.actual.mem, Instant(now + policy.monitor.request))
        # Load reported while settling may come from the shrink.
        elif not settling:
            self._report(message, vm, policy.cpu, policy.monitor, now)

    def _report(self, report: LoadReport, vm: Vm, cpu: CpuPolicy, policy: MonitorPolicy, now: Instant) -> None:
        # A hold of 0 s turns reports off.
        if not policy.hold:
            return
        wanted, because = demand(report, vm, cpu, policy)
        need = min(wanted, vm.bounds.max.cpu)
        # If an alarm is active, compare the report with the size before the alarm.
        before = vm.use.cpu if self.alarm is None else self.alarm.before
        # Without scrapes an alarm stays after its end, but must not block the next report of the same load.
        current = MilliCpu(0) if self.alarm is None or now >= self.alarm.until else self.alarm.need
        if need <= max(vm.use.cpu, current):
            return
        is_right = self.alarm is not None and self.alarm.is_right
        self.alarm = Alarm(need, before, because, Instant(now + policy.hold), is_right)

    def check_alarm(self, need: MilliCpu | None, now: Instant) -> None:
        """Check the alarm against the ``need`` from a scrape; count it once it expires."""
        alarm = self.alarm
        if alarm is None:
            return
        if not alarm.is_right and need is not None and need > alarm.before:
            self.alarm = alarm = replace(alarm, is_right=True)
        if now >= alarm.until:
            self.alarm = None
            self.right_alarms += alarm.is_right
            self.false_alarms += not alarm.is_right


def demand(report: LoadReport, vm: Vm, cpu: CpuPolicy, policy: MonitorPolicy) -> tuple[MilliCpu, str]:
    """The CPU needed for ``report``, and why: for waiting tasks, or for new connections.

    A new connection is expected to use ``policy.connection`` cores, and all together at most as much as the VM has.
    """
    over = Rates(busy=report.cpu_busy, cpu_stall=report.cpu_stall)
    waiting = cpu_demand(GuestSample(runnable=float(report.runnable)), over, vm.actual.cpu, cpu)
    # At most doubled, because a guest may report any number of connections.
    expected = vm.use.cpu + min(vm.use.cpu, MilliCpu.cores(report.new_processes * policy.connection))
    if waiting is not None and waiting[0] >= expected:
        return waiting[0], f"{waiting[1]}{_activity(report)}"
    return expected, f"{report.new_processes} new connections within a second{_activity(report)}"


def _activity(report: LoadReport) -> str:
    if not report.active:
        return ""
    waiting = f", {report.waiting} waiting for locks" if report.waiting else ""
    return f", {report.active} connections active{waiting}"


def printable(text: str) -> str:
    """``text`` from a guest, truncated and without control characters."""
    return "".join(char if char.isprintable() else " " for char in text[:LONGEST_STATUS])
