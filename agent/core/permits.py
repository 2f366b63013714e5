"""Requests to the scheduler and its answers as state, and the rules by which an agent accepts a permit (S4.5).

Part of ``advance``. A permit that breaks a rule is rejected as a whole; what was permitted before stays.
"""

from __future__ import annotations

from typing import Final

from agent import texts
from agent.core.actions import AskScheduler
from agent.core.events import AskFailed, Fault
from agent.core.policy import (
    DENIED_BACKOFF,
    MOST_OF_SUCCESSION,
    POD_PERMIT_LASTS,
    SCHEDULER_BACKOFF,
    SOONEST,
    SUCCESSION_BACKOFF,
    Rhythm,
    Timing,
)
from agent.core.state import Denial, State, failed_again
from agent.core.vm import whole_slots
from protocol.codec import PluginResponseView
from protocol.messages import AgentRequest, PluginResponse
from protocol.units import Instant, Resources, Seconds

Response = PluginResponse | PluginResponseView

JUST_BEEN: Final = 0.5
"""Seconds within which a moment of the rhythm is too near to be the next."""


def sent(state: State, ask: AskScheduler, now: Instant, jitter: float) -> None:
    """Record that ``ask`` was sent: from now on the permit may be as low as it says."""
    side, timing = state.scheduler, state.policy.timing
    side.asking = ask
    side.is_void = state.vm.seen is not None and not state.vm.seen.enabled
    # A request that fails uses up its number too: a late copy of it must not look like the next one.
    side.sequence += 1
    if side.ceiling is not None and not ask.request.resources.within(side.ceiling):
        side.giving.note_growth(now)
    side.giving.note_offer(ask.request.needs, now)
    # The scheduler may take the request even if its answer is lost.
    side.ceiling = side.ceiling and side.ceiling.at_most(ask.request.resources)
    side.retry_at = None
    side.next_at = _next_at(state.rhythm, timing, now, jitter)


def _next_at(rhythm: Rhythm | None, timing: Timing, now: Instant, jitter: float) -> Instant:
    """The time of the next request at the latest; ticks too short for the rhythm ignore it."""
    if rhythm is not None and timing.tick >= 2 * rhythm.step:
        return rhythm.before(Instant(now + timing.tick))
    return Instant(now + timing.tick - timing.tick_jitter * jitter)


def _soon(rhythm: Rhythm | None, wait: Seconds, now: Instant) -> Instant:
    """The time of the next request if the scheduler wishes it within ``wait``."""
    wait = max(wait, SOONEST)
    if rhythm is None:
        return Instant(now + wait)
    # A little later than wished rather than at the moment that has just been.
    return rhythm.quick.before(Instant(now + max(wait, rhythm.quick.step) + JUST_BEEN))


def expire(state: State, now: Instant) -> None:
    """Give up a pod's permit that has not been answered for ``POD_PERMIT_LASTS``."""
    side, vm = state.scheduler, state.vm.seen
    # A VM's permit is stored with the VM, so that every scheduler knows it.
    if vm is None or not vm.is_pod or side.answered_at is None or now - side.answered_at < POD_PERMIT_LASTS:
        return
    side.permit = side.ceiling = None


def answered(state: State, response: Response, now: Instant, jitter: float) -> None:
    """Apply the scheduler's answer to the request in flight."""
    side = state.scheduler
    if side.asking is None:
        return
    request, side.asking = side.asking.request, None
    in_use = state.held or request.resources
    if state.vm.seen is not None and state.vm.seen.is_pod:
        # A pod may have begun with any size, which the scheduler knows but can answer only in whole slots. A wish that
        # the kubelet has not granted is not in use: a new scheduler does not count it if its node is full.
        in_use = whole_slots(in_use.at_most(state.vm.seen.actual), state.vm.seen.slot_size)
    # If another writer has patched the VM above its permit, the excess gives no right to a larger one.
    complaint = objection(response.permit, request.resources, in_use.at_most(side.ceiling or in_use))
    if complaint is not None:
        side.rejected += 1
        _ask_again_later(state, AskFailed(Fault.SCHEDULER, complaint), now, jitter)
        return
    side.failure = None
    side.knows_load = side.knows_load or request.metrics is not None
    _accept(state, request, response, now, jitter)


def _accept(state: State, request: AgentRequest, response: Response, now: Instant, jitter: float) -> None:
    side = state.scheduler
    # A void answer: the VM was opted out or restored meanwhile, so the scheduler does not count this permit.
    side.permit = side.ceiling = None if side.is_void else response.permit
    side.compute_unit = response.compute_unit or side.compute_unit
    side.migrate = response.migrate
    side.is_stood_back = False
    side.giving.hear(response.shrink_to, now)
    side.answered_version = 0 if state.vm.seen is None else state.vm.seen.version
    side.answered_at = now
    if response.ask_again is not None:
        side.next_at = min(side.next_at, _soon(state.rhythm, response.ask_again, now))
    if side.migrate:
        # The end of a migration is learned only by asking.
        side.next_at = min(side.next_at, Instant(now + state.policy.timing.migrating_tick))
    if request.resources.within(response.permit):
        side.denial = None
        return
    count = 1 if side.denial is None else side.denial.count + 1
    side.denial = Denial(
        wanted=request.resources,
        granted=response.permit,
        since=now if side.denial is None else side.denial.since,
        count=count,
        retry_at=Instant(now + DENIED_BACKOFF.delay(count, jitter)),
    )


def ask_failed(state: State, event: AskFailed, now: Instant, jitter: float) -> None:
    """Record that the request in flight failed or was refused."""
    side = state.scheduler
    if side.asking is None:
        return
    side.asking = None
    if event.is_others_turn:
        side.is_stood_back = True
        # The permit belongs to the VM, and is answered to another agent now.
        side.permit = side.ceiling = None
    _ask_again_later(state, event, now, jitter)


def _ask_again_later(state: State, failed: AskFailed, now: Instant, jitter: float) -> None:
    """Schedule the next request, at ``retry_after`` if the scheduler asks for that and it is within a ``tick``.

    Retry soon after a standby (which asks for no wait) and an unreachable scheduler: its successor may answer.
    """
    side = state.scheduler
    side.failure = failed_again(side.failure, failed.fault, failed.reason, now)
    # ``Retry-After: 0`` comes from a standby.
    is_elsewhere = (failed.retry_after is not None and not failed.retry_after) or failed.fault is Fault.NETWORK
    is_soon = is_elsewhere and side.failure.count <= MOST_OF_SUCCESSION
    wait = (SUCCESSION_BACKOFF if is_soon else SCHEDULER_BACKOFF).delay(side.failure.count, jitter)
    side.retry_at = Instant(now + max(wait, min(failed.retry_after or wait, state.policy.timing.tick)))


def objection(permit: Resources, requested: Resources, in_use: Resources) -> str | None:
    """The reason to reject ``permit``; None if it is acceptable."""
    if not (permit.cpu and permit.mem):
        return texts.PERMIT_WITH_ZERO.format(permit=permit)
    if not permit.within(requested):
        return texts.PERMIT_TOO_LARGE.format(permit=permit, requested=requested)
    if not in_use.within(permit):
        return texts.PERMIT_TOO_SMALL.format(permit=permit, in_use=in_use)
    return None
