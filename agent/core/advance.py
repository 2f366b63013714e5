"""The only way to change a ``State``: every event is applied here, or in ``permits`` if it is the scheduler's.

Rules that hold here:

- Nothing is decided here; ``plan`` decides from what stands in the state.
- An outcome without an action in flight changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from agent.core.actions import Action, AskMonitor, AskScheduler, PatchVm
from agent.core.events import (
    Answered,
    AskFailed,
    Event,
    Fault,
    MonitorAnswered,
    MonitorJoined,
    MonitorLost,
    MonitorSaid,
    PatchConflicted,
    Patched,
    PatchFailed,
    PolicyRefused,
    PolicySet,
    Scraped,
    ScrapeFailed,
    Started,
    VmLost,
    VmRestored,
    VmSeen,
)
from agent.core.goal import NO_GOAL, goal, is_calm, with_part, without_waiting
from agent.core.guest import LONGEST, NO_RATES, SHORTEST, GuestSample, ObservedSample, is_other_boot, rates
from agent.core.memory.memory_view import memory_view
from agent.core.memory.probing import Probing
from agent.core.memory.rereading import cost
from agent.core.permits import answered, ask_failed, sent
from agent.core.policy import REFUSED_GROWTH_BACKOFF, VM_API_BACKOFF
from agent.core.stabilizer import Stabilizer
from agent.core.state import State, failed_again
from agent.core.vm import Vm
from protocol.guest.monitor_messages import LoadReport, UpscaleRequest
from protocol.units import Instant


def advance(state: State, event: Event, now: Instant, jitter: float) -> None:
    """Apply ``event`` to ``state``. ``now`` never goes back; ``jitter`` in 0..1 spreads the waits."""
    match event:
        case VmSeen(vm):
            state.vm.lost = None
            _adopt(state, vm, now)
        case VmRestored(vm):
            state.vm.lost = None
            _restored(state, vm, now)
        case VmLost(fault, reason):
            state.vm.lost = failed_again(state.vm.lost, fault, reason, now)
        case Scraped(sample):
            _scraped(state, sample, now)
        case ScrapeFailed(fault, reason):
            state.guest.failure = failed_again(state.guest.failure, fault, reason, now)
        case Started(action):
            _started(state, action, now, jitter)
        case Answered(response):
            answered(state, response, now, jitter)
        case AskFailed():
            ask_failed(state, event, now, jitter)
        case Patched(vm):
            _patched(state, vm, now)
        case PatchConflicted():
            _patch_conflicted(state)
        case PatchFailed():
            _patch_failed(state, event, now, jitter)
        case _:
            _others(state, event, now, jitter)


def _adopt(state: State, vm: Vm, now: Instant) -> None:
    """Adopt a newer view; a stale one changes nothing."""
    side = state.vm
    # A read and a watch can overtake each other, so a view may arrive late.
    if side.seen is not None and not vm.follows(side.seen.version - 1):
        return
    if side.seen is not None and not side.seen.actual.within(vm.actual):
        side.fell_at = now
    side.seen = vm
    if not vm.enabled:  # it has no permit until it is opted in again
        _forget_permit(state)
    # A newer version than the base proves that the patch was applied or can no longer be.
    if side.unsettled is not None and vm.follows(side.unsettled.base):
        side.unsettled = None
    if side.stale_at is not None and vm.follows(side.stale_at):
        side.stale_at = None


def _restored(state: State, vm: Vm, now: Instant) -> None:
    """Restart versions at ``vm`` after the store was restored.

    A patch based on a later version can no longer take effect, and the permit written there is lost to a new scheduler.
    """
    _forget_permit(state)
    side = state.vm
    side.unsettled = side.stale_at = None
    if side.seen is not None:
        side.seen = replace(side.seen, version=vm.version)
    _adopt(state, vm, now)


def _forget_permit(state: State) -> None:
    """Drop the permit, so that the scheduler must grant again; an answer already in flight does not count."""
    side = state.scheduler
    side.permit = side.ceiling = None
    # An answer in flight was decided before the opt-out or the restore.
    side.is_void = side.asking is not None


def _scraped(state: State, sample: GuestSample, now: Instant) -> None:
    guest, vm = state.guest, state.vm.seen
    guest.failure = None
    before = guest.seen
    # Two pages this close give no rates, and would replace a sample that can give some.
    if before is not None and now - before.last < SHORTEST:
        return
    # An exporter that samples by its own clock shows the same page until its next sample.
    if vm is not None and before is not None and guest.had is not None and sample.repeats(before.sample):
        _repeated(state, vm, before, now)
        return
    guest.seen, guest.cpus = ObservedSample(sample, now), max(guest.cpus, len(sample.cpus))
    if vm is None:
        guest.had, guest.rates, guest.goal = None, NO_RATES, NO_GOAL
        return
    # The smaller of before and after: what waited before a growth must not be counted again after it.
    has = vm.actual.at_most(guest.had or vm.actual)
    guest.had = vm.actual
    is_rebooted = before is not None and is_other_boot(before.sample, sample)
    guest.kills = guest.kills.after(sample, has.mem, now, state.policy.memory, is_rebooted=is_rebooted)
    guest.rates = rates(before, guest.seen, min(guest.cpus, has.cpu.whole_cpus))
    guest.counted = guest.counted.plus(guest.rates)
    since = now if before is None else before.at
    if not vm.unfinished_shrink and state.vm.patching is None and is_calm(guest.rates, has, state.policy):
        guest.calm_since = since
    settling = _settling(state, since)
    guest.goal = goal(sample, guest.rates, has, state.policy, settling=settling)
    # While a guest refills memory that it got back, waiting tasks need no more than that.
    if guest.probing.is_refilling(now, state.policy.memory.cache) and not sample.shows_rereading:
        guest.goal = without_waiting(guest.goal)
    killed = guest.kills.part(now)
    if killed is not None:
        guest.goal = with_part(guest.goal, killed)
    state.monitor.looked(guest.goal.cpu, now)
    _observe(state, vm, now)
    _probe(state, vm, now, settling=settling)


def _repeated(state: State, vm: Vm, before: ObservedSample, now: Instant) -> None:
    """Reuse the last sample until the exporter takes a new one, unless it is too old to describe the present."""
    # The exporter has stopped sampling.
    if now - before.at > LONGEST:
        return
    state.guest.seen = replace(before, again=now)
    _observe(state, vm, now)


def _observe(state: State, vm: Vm, now: Instant) -> None:
    """Feed the need of the last sample to the smoothing pipelines."""
    need = state.guest.goal.need
    in_doubt = state.guest.goal.kept.at_most(state.vm.ordered or vm.use)
    state.guest.stabilizer.observe(None if need is None else need.at_most(vm.bounds.max), vm.use, now, in_doubt)


def _probe(state: State, vm: Vm, now: Instant, *, settling: bool) -> None:
    """Feed the last sample to the page cache's state machine."""
    guest, policy = state.guest, state.policy.memory.cache
    if guest.seen is None or not policy.enabled:
        guest.probing = Probing()
        return
    # Waiting during a shrink is caused by the shrink, not by a lack of page cache.
    spent = None if settling or guest.rates.is_partial else cost(guest.rates, policy.trickle)
    view = memory_view(guest.seen.sample, spent, vm, guest.goal, state.scheduler.compute_unit)
    guest.probing.observe(view, now, policy)


def _settling(state: State, since: Instant) -> bool:
    """Return True if a recent or unfinished shrink may have kept the guest busy ``since`` then (it was never calm)."""
    side, timing, calm = state.vm, state.policy.timing, state.guest.calm_since
    is_unfinished = side.seen is not None and side.seen.unfinished_shrink
    # A guest that still has more than was ordered is still unplugging.
    span = max(timing.settle, timing.unfinished_shrink) if is_unfinished else timing.settle
    shrinks = [at for at in (side.shrunk_at, side.fell_at) if at is not None and (calm is None or at > calm)]
    return any(since - at <= span for at in shrinks)


def _started(state: State, action: Action | AskMonitor, now: Instant, jitter: float) -> None:
    if isinstance(action, AskScheduler):
        sent(state, action, now, jitter)
        return
    if isinstance(action, AskMonitor):
        state.monitor.asking = action
        return
    vm = state.vm.seen
    state.vm.patching = action
    if vm is not None and not vm.use.within(action.target):
        # From the order, not from the outcome: the guest may begin to shrink before the answer arrives.
        state.vm.shrunk_at = now


def _patched(state: State, vm: Vm, now: Instant) -> None:
    side = state.vm
    # A patch that took effect ends every wait, even that after a refused growth.
    side.patching = side.failure = side.retry_at = side.grows_from = None
    side.refused = 0
    side.patched_at = now
    _adopt(state, vm, now)


def _patch_conflicted(state: State) -> None:
    side = state.vm
    patch, side.patching = side.patching, None
    # A conflict with a view older than the newest says nothing about the newest.
    if patch is not None and _is_newest(side.seen, patch):
        side.stale_at = patch.base


def _is_newest(seen: Vm | None, patch: PatchVm) -> bool:
    """Return True if ``patch`` is based on the newest view; a view without a version never counts as that."""
    return seen is not None and not seen.follows(patch.base) and seen.version == patch.base


def _patch_failed(state: State, event: PatchFailed, now: Instant, jitter: float) -> None:
    side = state.vm
    patch, side.patching = side.patching, None
    side.failure = failed_again(side.failure, event.fault, event.reason, now)
    side.retry_at = Instant(now + VM_API_BACKOFF.delay(side.failure.count, jitter))
    # Only a refused growth bars further ones; a refused shrink is simply tried again.
    if event.refused and patch is not None and side.seen is not None and not patch.target.within(side.seen.use):
        side.refused += 1
        side.grows_from = Instant(now + REFUSED_GROWTH_BACKOFF.delay(side.refused, jitter))
    if patch is None or event.refused or not _is_newest(side.seen, patch):
        return
    # Several patches with unknown outcomes: any of them may be in effect, so the largest counts.
    earlier = patch.target if side.unsettled is None else side.unsettled.target
    side.unsettled = replace(patch, target=patch.target.at_least(earlier))


def _others(
    state: State,
    event: PolicySet | PolicyRefused | MonitorJoined | MonitorLost | MonitorSaid | MonitorAnswered,
    now: Instant,
    jitter: float,
) -> None:
    if isinstance(event, (PolicySet, PolicyRefused)):
        _settings(state, event, now)
    else:
        _monitored(state, event, now, jitter)


def _settings(state: State, event: PolicySet | PolicyRefused, now: Instant) -> None:
    if isinstance(event, PolicyRefused):
        state.settings_failure = failed_again(state.settings_failure, Fault.SETTINGS, event.reason, now)
        return
    problems = "; ".join(event.problems)
    state.settings_failure = failed_again(None, Fault.SETTINGS, problems, now) if problems else None
    before, state.policy = state.policy, event.policy
    # New stages begin without a memory; unchanged ones keep theirs, or each policy would delay shrinking.
    if before.smoothing != event.policy.smoothing:
        state.guest.stabilizer = Stabilizer(event.policy.smoothing)


def _monitored(
    state: State, event: MonitorJoined | MonitorLost | MonitorSaid | MonitorAnswered, now: Instant, jitter: float
) -> None:
    side = state.monitor
    match event:
        case MonitorJoined(version):
            state.monitor_failure = None
            side.join(version)
        case MonitorLost(fault, reason):
            side.leave(now)
            state.monitor_failure = failed_again(state.monitor_failure, fault, reason, now)
        case MonitorAnswered(result):
            side.answered(result, now, jitter)
        case _:
            _said(state, event.message, now)


def _said(state: State, message: UpscaleRequest | LoadReport, now: Instant) -> None:
    """Apply an unsolicited message of the monitor."""
    vm, policy = state.vm.seen, state.policy
    if vm is None or state.monitor.version is None:
        return
    if isinstance(message, UpscaleRequest):
        state.monitor.requested(vm, policy.monitor, now)
    # The load that a settling guest reports may be the shrink itself.
    elif not _settling(state, now):
        state.monitor.reported(message, vm, policy.cpu, policy.monitor, now)
