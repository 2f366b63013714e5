"""Applies requests and the scheduler's answers to the state, and validates permits (S4.5).

Part of ``advance``. A permit that breaks a rule is rejected as a whole, and the previous one stays.
"""

from __future__ import annotations

from typing import Final

from agent import texts
from agent.core.actions import RequestPermit
from agent.core.events import Fault, RequestFailed
from agent.core.policy import (
    DENIED_BACKOFF,
    MAX_SUCCESSION_FAILURES,
    MIN_REQUEST_DELAY,
    POD_PERMIT_LASTS,
    SCHEDULER_BACKOFF,
    SUCCESSION_BACKOFF,
    BatchSchedule,
    Timing,
)
from agent.core.state import Denial, State, failed_again
from agent.core.vm import whole_slots
from protocol.backoff import Backoff
from protocol.codec import PluginResponseView
from protocol.messages import AgentRequest, PluginResponse
from protocol.units import ZERO, Instant, Resources, Seconds

Response = PluginResponse | PluginResponseView

MIN_LEAD: Final = 0.5
"""Minimum seconds between now and the chosen time of the schedule."""


def sent(state: State, ask: RequestPermit, now: Instant, jitter: float) -> None:
    """Record that ``ask`` was sent: from now on the permit may be as low as the request."""
    scheduler, timing = state.scheduler, state.policy.timing
    scheduler.in_flight = ask
    scheduler.is_void = state.vm.observed is not None and not state.vm.observed.enabled
    # A failed request also uses up its number, so that a late copy cannot pass for the next one.
    scheduler.sequence += 1
    if scheduler.ceiling is not None and not ask.request.resources.within(scheduler.ceiling):
        scheduler.give_back.note_growth(now)
    scheduler.give_back.note_offer(ask.request.needs, now)
    # The scheduler may apply the request even if its answer is lost.
    scheduler.ceiling = scheduler.ceiling and scheduler.ceiling.at_most(ask.request.resources)
    scheduler.retry_at = None
    scheduler.next_at = _next_at(state.schedule, timing, now, jitter)


def _next_at(schedule: BatchSchedule | None, timing: Timing, now: Instant, jitter: float) -> Instant:
    """The latest time of the next request. A tick shorter than two intervals ignores the schedule."""
    if schedule is not None and timing.tick >= 2 * schedule.interval:
        return schedule.last_before(Instant(now + timing.tick))
    return Instant(now + timing.tick - timing.tick_jitter * jitter)


def _soon(schedule: BatchSchedule | None, wait: Seconds, now: Instant) -> Instant:
    """The time of the next request if the scheduler asks for it after ``wait``."""
    wait = max(wait, MIN_REQUEST_DELAY)
    if schedule is None:
        return Instant(now + wait)
    # Rather a little late than too soon after the last time of the schedule.
    return schedule.doubled.last_before(Instant(now + max(wait, schedule.doubled.interval) + MIN_LEAD))


def has_lapsed(state: State, now: Instant) -> bool:
    """Return True if a pod's permit was not renewed for ``POD_PERMIT_LASTS``."""
    scheduler, vm = state.scheduler, state.vm.observed
    # A VM's permit is stored on its object, so it does not expire.
    if vm is None or not vm.is_pod or scheduler.answered_at is None:
        return False
    return now - scheduler.answered_at >= POD_PERMIT_LASTS


def expire(state: State, now: Instant) -> None:
    """Drop a pod's permit that has lapsed."""
    if has_lapsed(state, now):
        state.scheduler.permit = state.scheduler.ceiling = None


def request_answered(state: State, response: Response, now: Instant, jitter: float) -> None:
    """Apply the scheduler's answer to the request in flight."""
    scheduler = state.scheduler
    if scheduler.in_flight is None:
        return
    request, scheduler.in_flight = scheduler.in_flight.request, None
    # A sleeping VM uses nothing, even while it requests a permit to wake.
    in_use = ZERO if state.sleeps else state.held or request.resources
    if state.vm.observed is not None and state.vm.observed.is_pod:
        # A pod may have started with any size, but permits are in whole slots. A resize that the kubelet has not
        # applied is not in use: a new scheduler ignores it if its node is full.
        in_use = whole_slots(in_use.at_most(state.vm.observed.actual), state.vm.observed.slot_size)
    # If another client patched the VM above its permit, the excess does not make the permit invalid.
    error = permit_error(
        response.permit, request.resources, in_use.at_most(scheduler.ceiling or in_use), may_be_zero=state.sleeps
    )
    if error is not None:
        # To a scheduler whose watch lags, a VM that has just woken is still asleep.
        if response.permit != ZERO or not state.sleep.has_just_woken(now):
            scheduler.rejected += 1
        _retry_later(state, RequestFailed(Fault.SCHEDULER, error), now, jitter)
        return
    scheduler.failure = None
    scheduler.has_reported_load = scheduler.has_reported_load or request.metrics is not None
    _accept(state, request, response, now, jitter)


def _accept(state: State, request: AgentRequest, response: Response, now: Instant, jitter: float) -> None:
    scheduler = state.scheduler
    # If the VM was opted out or restored meanwhile, the scheduler does not count this permit.
    scheduler.permit = scheduler.ceiling = None if scheduler.is_void else response.permit
    scheduler.compute_unit = response.compute_unit or scheduler.compute_unit
    scheduler.migrate = response.migrate
    scheduler.freezes = scheduler.freezes + 1 if scheduler.migrate else 0
    scheduler.is_superseded = False
    scheduler.give_back.apply(response.shrink_to, response.permit, now)
    scheduler.answered_version = 0 if state.vm.observed is None else state.vm.observed.version
    scheduler.answered_at = now
    if response.ask_again is not None:
        scheduler.next_at = min(scheduler.next_at, _soon(state.schedule, response.ask_again, now))
    if scheduler.migrate:
        # Only another answer shows that a migration has ended.
        wait = state.policy.timing.migrating_tick
        if state.vm.observed is not None and state.vm.observed.is_pod:
            # A new scheduler briefly freezes pods, until it knows which other controllers resize them. Back off,
            # because some pods stay frozen.
            wait = Backoff(wait, state.policy.timing.tick).delay(scheduler.freezes, 0.0)
        scheduler.next_at = min(scheduler.next_at, Instant(now + wait))
    if request.resources.within(response.permit):
        scheduler.denial = None
        return
    count = 1 if scheduler.denial is None else scheduler.denial.count + 1
    scheduler.denial = Denial(
        wanted=request.resources,
        granted=response.permit,
        since=now if scheduler.denial is None else scheduler.denial.since,
        count=count,
        # The clients of a waking VM wait for its permit.
        retry_at=Instant(now + (MIN_REQUEST_DELAY if state.sleeps else DENIED_BACKOFF.delay(count, jitter))),
    )


def request_failed(state: State, event: RequestFailed, now: Instant, jitter: float) -> None:
    """Record that the request in flight failed or was refused."""
    scheduler = state.scheduler
    if scheduler.in_flight is None:
        return
    scheduler.in_flight = None
    if event.is_superseded:
        scheduler.is_superseded = True
        # The permit belongs to the VM, and the other agent holds it now.
        scheduler.permit = scheduler.ceiling = None
    _retry_later(state, event, now, jitter)


def _retry_later(state: State, failed: RequestFailed, now: Instant, jitter: float) -> None:
    """Schedule the next request after a backoff, or after the scheduler's ``retry_after``, at most a ``tick``.

    Retry sooner if the scheduler is a standby or unreachable, because another may become leader.
    """
    scheduler = state.scheduler
    scheduler.failure = failed_again(scheduler.failure, failed.fault, failed.reason, now)
    # A standby sends ``Retry-After: 0``.
    is_elsewhere = (failed.retry_after is not None and not failed.retry_after) or failed.fault is Fault.NETWORK
    is_soon = is_elsewhere and scheduler.failure.count <= MAX_SUCCESSION_FAILURES
    wait = (SUCCESSION_BACKOFF if is_soon else SCHEDULER_BACKOFF).delay(scheduler.failure.count, jitter)
    scheduler.retry_at = Instant(now + max(wait, min(failed.retry_after or wait, state.policy.timing.tick)))


def permit_error(
    permit: Resources, requested: Resources, in_use: Resources, *, may_be_zero: bool = False
) -> str | None:
    """The reason to reject ``permit``; None if it is valid. ``may_be_zero``: the VM sleeps."""
    if not (may_be_zero or requested == ZERO or (permit.cpu and permit.mem)):
        return texts.PERMIT_WITH_ZERO.format(permit=permit)
    if not permit.within(requested):
        return texts.PERMIT_TOO_LARGE.format(permit=permit, requested=requested)
    if not in_use.within(permit):
        return texts.PERMIT_TOO_SMALL.format(permit=permit, in_use=in_use)
    return None
