"""The only way to change a ``State``: every event goes to the module that owns its decision; none is made here."""

from __future__ import annotations

from agent.core import events
from agent.core.actions import Action, AskScheduler, MonitorMessage, PatchVm
from agent.core.events import Event
from agent.core.patches import adopt, patch_conflicted, patch_failed, patched, restored, sent_patch
from agent.core.permits import answered, ask_failed, expire, sent
from agent.core.scrapes import scraped
from agent.core.state import State, failed_again
from protocol.units import Instant


def advance(state: State, event: Event, now: Instant, jitter: float) -> None:  # noqa: PLR0912 - a branch for each event
    """Apply ``event`` to ``state``. ``now`` never goes back; ``jitter`` in 0..1 spreads the waits."""
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
        case events.Scraped(sample):
            scraped(state, sample, now)
        case events.ScrapeFailed(fault, reason):
            state.guest.failure = failed_again(state.guest.failure, fault, reason, now)
        case events.Started(action):
            _started(state, action, now, jitter)
        case events.Answered(response):
            answered(state, response, now, jitter)
        case events.AskFailed():
            ask_failed(state, event, now, jitter)
        case events.Patched(vm):
            patched(state, vm, now)
        case events.PatchConflicted():
            patch_conflicted(state)
        case events.PatchFailed():
            patch_failed(state, event, now, jitter)
        case events.PolicySet(policy, problems):
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
            state.monitor.answered(answer, now, jitter)
        case _:  # MonitorSaid
            state.monitor.hear(event.message, state.vm.seen, state.policy, now, settling=state.is_settling(now))


def _started(state: State, action: Action | MonitorMessage, now: Instant, jitter: float) -> None:
    match action:
        case AskScheduler():
            sent(state, action, now, jitter)
        case PatchVm():
            sent_patch(state, action, now, jitter)
        case _:  # MonitorMessage
            state.monitor.sent(action)
