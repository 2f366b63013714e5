"""Applies samples of the guest to the state: need, smoothing and probing (S4.3). Part of ``advance``."""

from __future__ import annotations

from dataclasses import replace

from agent import texts
from agent.core.events import Fault
from agent.core.goal import NO_GOAL, goal, is_calm, with_part, without_waiting
from agent.core.guest import LONGEST, NO_RATES, SHORTEST, GuestSample, ObservedSample, rates
from agent.core.memory.memory_view import memory_view
from agent.core.memory.probing import Probing
from agent.core.memory.rereading import cost
from agent.core.state import State, failed_again
from agent.core.vm import Vm
from protocol.units import Instant, Seconds


def scraped(state: State, sample: GuestSample, now: Instant) -> None:
    """Apply a sample, unless it repeats the last one or comes too soon after it."""
    guest, vm = state.guest, state.vm.observed
    # A page of another exporter, or of a proxy, has none of the metrics.
    guest.failure = failed_again(guest.failure, Fault.GUEST, incomplete(sample), now) if sample.missing else None
    before = guest.observed
    # Like a failed scrape, until it lasts: the next complete sample yields rates with the last one.
    if before is not None and sample.missing - before.sample.missing and now - before.last <= _tolerated(state):
        return
    # A sample this soon yields no rates, and would replace one that does.
    if before is not None and now - before.last < SHORTEST:
        return
    # An exporter with its own clock repeats a sample until it takes the next.
    if vm is not None and before is not None and guest.sampled_size is not None and sample.repeats(before.sample):
        # After too many repetitions the exporter has stopped sampling, and the sample is stale.
        if now - before.at <= _longest_interval(state):
            guest.observed = replace(before, again=now)
            _smooth(state, vm, now)
        return
    is_rebooted = guest.is_rebooted(sample)
    guest.observed, guest.cpus = ObservedSample(sample, now), max(guest.cpus, len(sample.cpus))
    if vm is None:
        guest.sampled_size, guest.rates, guest.goal = None, NO_RATES, NO_GOAL
    else:
        _apply(state, vm, before, guest.observed, is_rebooted=is_rebooted)


def incomplete(sample: GuestSample) -> str:
    """The problem of a sample that misses metrics; empty if it does not."""
    missing = " and ".join(sorted(sample.missing))
    return texts.METRICS_INCOMPLETE.format(missing=missing) if missing else ""


def _apply(state: State, vm: Vm, before: ObservedSample | None, observed: ObservedSample, *, is_rebooted: bool) -> None:
    guest, policy, sample, now = state.guest, state.policy, observed.sample, observed.at
    # The smaller of before and after, so that stalls from before a growth do not cause another.
    has = vm.actual.at_most(guest.sampled_size or vm.actual)
    if _may_have_filled(sample) or (before is not None and _may_have_filled(before.sample)):
        has = vm.up_to_limit(has)
    guest.sampled_size = vm.actual
    guest.kills = guest.kills.after(sample, has.mem, now, policy.memory, is_rebooted=is_rebooted)
    guest.rates = rates(before, observed, min(guest.cpus, has.cpu.whole_cpus), _longest_interval(state))
    guest.counted = guest.counted.plus(guest.rates)
    since = now if before is None else before.at
    if not vm.unfinished_shrink and state.vm.patching is None and is_calm(guest.rates, has, policy):
        guest.calm_since = since
    settling = state.is_settling(since)
    guest.goal = goal(sample, guest.rates, has, policy, settling=settling)
    # Stalls while the guest refills reclaimed memory do not mean that it needs more.
    if guest.probing.is_refilling(now, policy.memory.cache) and not sample.shows_rereading:
        guest.goal = without_waiting(guest.goal)
    killed = guest.kills.part(now)
    if killed is not None:
        guest.goal = with_part(guest.goal, killed)
    state.monitor.check_alarm(guest.goal.cpu, now)
    _smooth(state, vm, now)
    _probe(state, vm, observed, settling=settling)


def _longest_interval(state: State) -> Seconds:
    """The maximum interval of a rate: without rates, a busy guest that is scraped rarely would never grow."""
    return max(LONGEST, _tolerated(state))


def _tolerated(state: State) -> Seconds:
    """The time for two missed scrapes."""
    return Seconds(3 * state.policy.timing.scrape)


def _may_have_filled(sample: GuestSample) -> bool:
    """Return False if at least half was free, page cache included: a kill or stall then comes from a node that is short
    of memory, not from the pod's limit, which may be many times its request.
    """
    if sample.mem_total is None or sample.mem_free is None:
        return True
    return sample.mem_free < sample.mem_total.scaled(0.5)


def _smooth(state: State, vm: Vm, now: Instant) -> None:
    need = state.guest.goal.need
    hold = state.guest.goal.possible.at_most(state.vm.ordered or vm.use)
    at = state.guest.awake_time(now)
    state.guest.stabilizer.observe(None if need is None else need.at_most(vm.bounds.max), vm.use, at, hold)


def _probe(state: State, vm: Vm, observed: ObservedSample, *, settling: bool) -> None:
    guest, policy = state.guest, state.policy.memory.cache
    if not policy.enabled:
        guest.probing = Probing()
        return
    # Stalls during a shrink come from the shrink, not from a lack of page cache.
    spent = None if settling or guest.rates.is_partial else cost(guest.rates, policy.trickle)
    view = memory_view(observed.sample, spent, vm, guest.goal, state.scheduler.compute_unit)
    guest.probing.observe(view, observed.at, policy)
