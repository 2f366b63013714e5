"""Log and event counts of an agent: one JSON line on stderr for each change. Never influences decisions."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Final

from prometheus_client import Histogram

from agent import texts
from agent.core import events
from agent.core.actions import OrderSleep, PatchVm, RequestPermit
from agent.core.events import Event
from agent.core.growth import WaitStage
from agent.core.guest import GuestSample
from agent.core.monitor.monitor_side import printable
from agent.core.scrapes import incomplete
from agent.core.sleep.obstacles import SHOWN
from agent.core.state import State
from agent.core.vm import Vm
from protocol.guest.monitor_messages import DownscaleRequest, DownscaleResult, UpscaleNotification
from protocol.guest.sleep import SleepState
from protocol.messages import ObjectName
from protocol.pod_database import pod_of
from protocol.units import Instant

LOG: Final = logging.getLogger("autoscale.agent")


GROWTH_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets in seconds; 5 s is the objective."""


def growth_times() -> Histogram:
    """A histogram of waits for growth by stage, not yet registered."""
    name, text = "autoscale_agent_growth_seconds", "Time from a VM's need to its permit, and to its size."
    times = Histogram(name, text, ("stage",), registry=None, buckets=GROWTH_BUCKETS)
    # Export zeros from the start, so that the first wait counts as an increase.
    for stage in WaitStage:
        times.labels(stage)
    return times


class VmLog:
    """The log and the event counts of one VM's agent."""

    def __init__(self, vm: ObjectName) -> None:
        self.tally: Counter[str] = Counter()
        self._vm = vm
        self._scrapes = _ScrapeLog()
        self._kills_next_at = -inf

    def note(self, state: State, event: Event, now: Instant) -> None:
        """Count ``event``, and log it if it changes anything in ``state``, which does not include it yet."""
        self.tally[KINDS[type(event.action if isinstance(event, events.Started) else event)]] += 1
        match event:
            case events.Scraped(sample):
                # One line per event: OOM kills are more important.
                line = self._killed(state, sample, now) or self._scrapes.line(state, event, now)
            case events.ScrapeFailed():
                line = self._scrapes.line(state, event, now)
            case _:
                line = _line(state, event, is_pod=pod_of(self._vm) is not None)
        if line is not None:
            level, message, fields = line
            LOG.log(level, message, extra={"vm": str(self._vm), **fields})

    def _killed(self, state: State, sample: GuestSample, now: Instant) -> Line | None:
        count = state.guest.kills_in(sample)
        # Not from the last kill in ``state``, which ignores some samples.
        if not count or now < self._kills_next_at:
            return None
        self._kills_next_at = now + KILLS_APART
        return logging.WARNING, texts.OOM_KILLED, {"kills": count}


class _ScrapeLog:
    """Log lines about a guest's scrapes: at most one problem per ``SCRAPES_APART``, and its end."""

    def __init__(self) -> None:
        self._problem = ""
        self._next_at = -inf

    def line(self, state: State, event: events.Scraped | events.ScrapeFailed, now: Instant) -> Line | None:
        """The line for ``event``. Log a lasting problem only once."""
        match event:
            case events.ScrapeFailed(fault, reason):
                return self._problem_line(texts.NO_METRICS, fault, reason, now)
            case events.Scraped(sample) if sample.missing:
                return self._problem_line(texts.METRICS_UNUSABLE, events.Fault.GUEST, incomplete(sample), now)
        failure, was_logged, self._problem = state.guest.failure, self._problem, ""
        if failure is None or not was_logged:
            return None
        return logging.INFO, texts.METRICS_BACK, {"failures": failure.count}

    def _problem_line(self, message: str, fault: events.Fault, problem: str, now: Instant) -> Line | None:
        if problem == self._problem or now < self._next_at:
            return None
        self._problem, self._next_at = problem, now + SCRAPES_APART
        return logging.WARNING, message, {"fault": fault.value, "reason": problem}


SCRAPES_APART: Final = 60.0
"""Minimum seconds between two log lines about failures of one guest's scrapes."""

KILLS_APART: Final = 60.0
"""Minimum seconds between two log lines about OOM kills of one guest."""

KINDS: Final[Mapping[type, str]] = {
    RequestPermit: "ask_started",
    PatchVm: "patch_started",
    OrderSleep: "sleep_started",
    DownscaleRequest: "monitor_asked",
    UpscaleNotification: "monitor_asked",
    events.VmSeen: "vm_seen",
    events.VmRestored: "vm_restored",
    events.VmLost: "vm_lost",
    events.Scraped: "scrape_ok",
    events.ScrapeFailed: "scrape_failed",
    events.SchedulerAnswered: "ask_answered",
    events.RequestFailed: "ask_failed",
    events.Patched: "patch_ok",
    events.PatchConflicted: "patch_conflict",
    events.PatchFailed: "patch_failed",
    events.SleepOrdered: "sleep_ordered",
    events.SleepNotOrdered: "sleep_failed",
    events.WindowChanged: "window_seen",
    events.PolicySet: "policy_set",
    events.PolicyRefused: "policy_refused",
    events.MonitorJoined: "monitor_joined",
    events.MonitorLost: "monitor_lost",
    events.MonitorNotified: "monitor_said",
    events.MonitorAnswered: "monitor_answered",
}
"""The ``kind`` label of an event, or of a started action, in the metric ``events``."""

Line = tuple[int, str, dict[str, object]]
"""Level, message and fields of a log line."""


def _line(  # noqa: PLR0911, PLR0912 - one branch per event
    state: State, event: Event, *, is_pod: bool
) -> Line | None:
    match event:
        case events.SchedulerAnswered():
            return _answer_line(state, event)
        case events.Patched(vm):
            return logging.INFO, texts.RESIZED, {"cpu": str(vm.use.cpu), "mem": str(vm.use.mem), "version": vm.version}
        case events.CallFailed():
            return _failed(state, event, is_pod=is_pod)
        case events.PatchConflicted(reason):
            return _conflicted(state, reason)
        case events.VmRestored(vm):
            return logging.WARNING, texts.RESTORED, {"version": vm.version}
        case events.SleepOrdered():
            return logging.INFO, texts.SLEEP_ORDERED, {}
        case events.VmSeen(vm) if state.vm.observed is not None and _sleep_line(state.vm.observed, vm):
            return logging.INFO, _sleep_line(state.vm.observed, vm), {"reason": vm.sleep.message[:SHOWN]}
        case events.VmSeen() if state.vm.lost is not None:
            return logging.INFO, texts.VM_READ_AGAIN, {"failures": state.vm.lost.count}
        case events.VmSeen(vm) if vm.objection is not None and (
            state.vm.observed is None or state.vm.observed.objection != vm.objection
        ):
            fields = {"verdict": vm.objection.verdict, "reason": vm.objection.message}
            return logging.WARNING, texts.RESIZE_OBJECTION, {**fields, "cpu": str(vm.use.cpu), "mem": str(vm.use.mem)}
        case events.PolicyRefused(reason):
            return logging.ERROR, texts.POLICY_REFUSED, {"reason": reason}
        case events.PolicySet(problems=problems) if problems:
            return logging.WARNING, texts.SETTINGS_IN_PART, {"reason": "; ".join(problems)}
        case events.MonitorJoined(version):
            return logging.INFO, texts.TRIALS_READY if is_pod else texts.MONITOR_JOINED, {"version": version}
        case events.MonitorAnswered(DownscaleResult(ok=False, status=status)):
            return _refused(state, texts.TRIAL_FAILED if is_pod else texts.MONITOR_REFUSED_SHRINK, printable(status))
        case _:
            return None


def _sleep_line(before: Vm, vm: Vm) -> str:
    """The log line for a change of the VM's sleep between two views; empty if there is none."""
    if vm.sleep.state is SleepState.REFUSED and vm.sleep.order != before.sleep.order:
        return texts.SLEEP_REFUSED
    if vm.phase == before.phase or not (vm.sleeps or before.sleeps):
        return ""
    return texts.ASLEEP if vm.is_asleep else texts.WAKING if vm.is_waking else texts.AWAKE


def _answer_line(state: State, event: events.SchedulerAnswered) -> Line | None:
    response, asking = event.response, state.scheduler.in_flight
    # The core ignores a late answer.
    if asking is None:
        return None
    scheduler, requested, permit = state.scheduler, asking.request.resources, response.permit
    was_denied, is_denied = scheduler.denial is not None, not requested.within(permit)
    # Log only changes: an agent sends a request every 15 s.
    if scheduler.failure is None and (scheduler.permit, scheduler.migrate, was_denied) == (
        permit,
        response.migrate,
        is_denied,
    ):
        return None
    fields: dict[str, object] = {
        "asked_cpu": str(requested.cpu),
        "asked_mem": str(requested.mem),
        "permit_cpu": str(permit.cpu),
        "permit_mem": str(permit.mem),
        "migrate": response.migrate,
    }
    if is_denied:
        return logging.WARNING, texts.PARTLY_PERMITTED, fields
    return logging.INFO, texts.PERMITTED, fields


def _conflicted(state: State, reason: str) -> Line | None:
    vm_state = state.vm
    # A first conflict is normal. A second at the same version concerns another object; log it once.
    is_repeated = vm_state.patching is not None and vm_state.patching.base == vm_state.stale_at
    if not is_repeated or (vm_state.failure is not None and vm_state.failure.reason == reason):
        return None
    return logging.WARNING, texts.NOT_RESIZED, {"fault": events.Fault.VM_API.value, "reason": reason}


def _refused(state: State, message: str, reason: str) -> Line | None:
    refusal = state.monitor.refusal
    # Log a repeated refusal with the same reason only once.
    is_known = refusal is not None and refusal.status == reason
    return None if is_known else (logging.INFO, message, {"reason": reason})


def _failed(state: State, event: events.CallFailed, *, is_pod: bool) -> Line | None:
    # The event is not applied yet, so these are the previous failures.
    message, before = {
        events.RequestFailed: (texts.NO_PERMIT, state.scheduler.failure),
        events.PatchFailed: (texts.NOT_RESIZED, state.vm.failure),
        events.VmLost: (texts.VM_NOT_READ, state.vm.lost),
        events.MonitorLost: (texts.TRIALS_UNAVAILABLE if is_pod else texts.MONITOR_LOST, state.monitor_failure),
        events.SleepNotOrdered: (texts.SLEEP_NOT_ORDERED, state.sleep_failure),
    }[type(event)]
    # Log a lasting failure only once.
    if before is not None and before.reason == event.reason:
        return None
    return logging.WARNING, message, {"fault": event.fault.value, "reason": event.reason}
