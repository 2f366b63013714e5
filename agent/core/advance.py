"""The only writer of a ``State``: dispatches each event to the module that handles it."""

from __future__ import annotations

from agent.core import events
from agent.core.actions import Action, MonitorMessage, OrderSleep, PatchVm, RequestPermit
from agent.core.events import Event
from agent.core.patches import adopt, patch_conflicted, patch_failed, patched, restored, sent_patch
from agent.core.permits import expire, request_answered, request_failed, sent
from agent.core.scrapes import scraped
from agent.core.state import State, failed_again
from protocol.units import Instant


def advance(state: State, event: Event, now: Instant, jitter: float) -> None:  # noqa: PLR0912 - one branch per event
    """Apply ``event`` to ``state``. ``now`` never decreases; ``jitter`` (0..1) spreads delays."""
    expire(state, now)
    match event:
        case events.VmSeen(vm):
            state.vm.lost = None
            adopt(state, vm, now)
        case events.VmRestored(vm):
            state.vm.lost = None
            restored(state, vm, now)
        case events.VmLost(fault, reason):
            state.vm.lost = failed_again(state.vm.lost, fault, reason, now)
        # Results in flight when the guest fell asleep are stale.
        case events.Scraped() | events.ScrapeFailed() | events.MonitorJoined() | events.MonitorNotified() if (
            state.sleeps
        ):
            pass
        case events.Scraped(sample):
            scraped(state, sample, now)
        case events.ScrapeFailed(fault, reason):
            state.guest.failure = failed_again(state.guest.failure, fault, reason, now)
        case events.Started(action):
            _started(state, action, now, jitter)
        case events.SchedulerAnswered(response):
            request_answered(state, response, now, jitter)
        case events.RequestFailed():
            request_failed(state, event, now, jitter)
        case events.Patched(vm):
            patched(state, vm, now)
        case events.PatchConflicted(reason):
            patch_conflicted(state, reason, now, jitter)
        case events.PatchFailed():
            patch_failed(state, event, now, jitter)
        case events.SleepOrdered() | events.SleepNotOrdered():
            _sleep_ordered(state, event, now, jitter)
        case events.WindowChanged(window):
            state.sleep.update_window(window, now, jitter)
        case events.PolicySet(policy, problems):
            state.sleep.update_policy(state.policy.sleep, policy.sleep, now, jitter)
            state.use(policy, "; ".join(problems), now)
        case events.PolicyRefused(reason):
            state.settings_failure = failed_again(state.settings_failure, events.Fault.SETTINGS, reason, now)
        case events.MonitorJoined(version):
            state.monitor_failure = None
            state.monitor.join(version)
        case events.MonitorLost(fault, reason):
            state.monitor_failure = failed_again(state.monitor_failure, fault, reason, now)
            state.monitor.leave(now)
        case events.MonitorAnswered(answer):
            is_trial = state.vm.observed is not None and state.vm.observed.is_pod
            state.monitor.answered(answer, now, jitter, is_trial=is_trial)
        case _:  # MonitorNotified
            state.monitor.apply(event.message, state.vm.observed, state.policy, now, settling=state.is_settling(now))


def _sleep_ordered(
    state: State, event: events.SleepOrdered | events.SleepNotOrdered, now: Instant, jitter: float
) -> None:
    if isinstance(event, events.SleepOrdered):
        state.sleep.order_written()
        state.sleep_failure = None
        adopt(state, event.vm, now)
    else:
        state.sleep.order_failed(now, jitter)
        state.sleep_failure = failed_again(state.sleep_failure, event.fault, event.reason, now)


def _started(state: State, action: Action | MonitorMessage, now: Instant, jitter: float) -> None:
    match action:
        case RequestPermit():
            sent(state, action, now, jitter)
        case PatchVm():
            sent_patch(state, action, now, jitter)
        case OrderSleep():
            state.sleep.order_sent(action, state.guest.observed)
        case _:  # MonitorMessage
            state.monitor.sent(action)
