"""The actions due now and the time of the next plan: ask before growing, report after shrinking (S4.5).

Rules that hold here:

- A VM is never patched above the ceiling or, before the first permit, above its size. It shrinks without a permit.
- A request is never below what the VM has or may reach, a patch of the same plan included.
- At most one request and one patch are in flight, each with its own backoff.
- An asleep VM gives up its permit and requests nothing; a waking VM requests the size of its spec. Neither is patched.
  A VM is ordered to sleep only if nothing else is due.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.core.actions import Action, OrderSleep, PatchVm, Plan, RequestPermit
from agent.core.desired_size import desired_size, in_use, is_fresh, least_size
from agent.core.goal import NOTHING
from agent.core.monitor.monitor_plan import message_to, retained_mem
from agent.core.permits import has_lapsed
from agent.core.pods.requests import next_requests
from agent.core.policy import WATCH_LAG
from agent.core.sleep.obstacles import obstacles
from agent.core.state import State
from agent.core.vm import Vm, whole_slots
from protocol.messages import AgentRequest, Metrics
from protocol.units import ZERO, Instant, Resources


def plan(state: State, now: Instant) -> Plan:
    """The actions due at ``now``, in the order of their start, and the time of the next plan."""
    vm, least = state.vm.observed, state.held
    if vm is None or least is None:
        return Plan((), None, "the object has not been read yet")
    if not vm.ours:
        return Plan((), None, "the VM runs in another pod, whose agent scales it")
    wanted, may_grow = desired_size(state, vm, now), state.vm.may_grow(now)
    # After the API server refused a growth, do not request more before the next try: room must not stay reserved.
    size = wanted.size if may_grow else wanted.size.at_most(vm.use)
    size = ZERO if vm.is_asleep else size
    patch = None if vm.sleeps else _patch(state, vm, size, now)
    patch_at = None if patch is None else _patch_at(state, vm, patch)
    patching = patch is not None and patch_at is not None and patch_at <= now
    # The patch of this plan may take effect before the answer, so the request must cover it.
    report = _report(state, vm, size, least.at_least(patch.target) if patch is not None and patching else least)
    ask_at = _request_at(state, _in_slots(vm, size.at_least(least)), report, now)
    actions: list[Action] = [patch] if patch is not None and patching else []
    if ask_at is not None and ask_at <= now:
        needs = _needs(state, vm, report, size.at_least(least), now)
        actions.append(RequestPermit(_request(state, report, needs, now), vm.slot_size))
    if not actions and state.policy.sleep.after and not sleep_obstacles(state, vm, size, now):
        actions.append(OrderSleep(vm.version, state.scheduler.give_back.asks_sleep))
    pauses = [pause.until for pause in state.vm.pauses.set_pauses]
    later = [at for at in (patch_at, ask_at, state.vm.grows_from, *pauses) if at is not None and at > now]
    message = message_to(state.monitor, vm, size, wanted.proposed, now)
    return Plan(tuple(actions), min(later, default=None), wanted.because, message)


def _patch(state: State, vm: Vm, size: Resources, now: Instant) -> PatchVm | None:
    """The patch towards ``size`` as far as the permit allows; None if nothing changes."""
    target, reverts = size.at_most(_limit(state, vm, now)), None
    if vm.is_pod:
        # A permit may be lower than what a pause allows.
        target, reverts = next_requests(vm, state.vm.pauses.limits(target, vm, now))
    return None if target == vm.use else PatchVm(target, vm.version, vm.slot_size, reverts)


def _limit(state: State, vm: Vm, now: Instant) -> Resources:
    """The maximum size that the VM may be patched to."""
    scheduler = state.scheduler
    permitted = _permitted(state, now)
    ceiling = vm.use if permitted is None else whole_slots(permitted, vm.slot_size)
    # If another client patched the VM above its permit and the request for that size was denied, return to the
    # ceiling, but not below the memory in use.
    if scheduler.denial is not None and vm.use.within(scheduler.denial.wanted):
        least = retained_mem(state.monitor, vm, now) if vm.is_pod else NOTHING.mem
        return ceiling.at_least(in_use(state, vm, now)).at_least(Resources(NOTHING.cpu, least))
    # The scheduler accounts for what a pod has, regardless of its requests.
    return ceiling.at_least(vm.holds if vm.is_pod else vm.use)


def _permitted(state: State, now: Instant) -> Resources | None:
    """The certain part of the permit; None if there is none."""
    # A permit may lapse between two events, just when a patch or a request is due.
    return None if has_lapsed(state, now) else state.ceiling


def _patch_at(state: State, vm: Vm, patch: PatchVm) -> Instant | None:
    """The time when ``patch`` may start; None if it waits for an event."""
    vm_state, timing = state.vm, state.policy.timing
    if vm_state.patching is not None or not vm.resizable:
        return None
    # If the scheduler serves another agent of the VM, only that one patches.
    if state.scheduler.migrate or state.scheduler.is_superseded:
        return None
    waits = [state.begins_at, vm_state.retry_at, _permit_visible_at(state, vm, patch)]
    # A revert of a resize that the kubelet did not apply is not a shrink.
    is_shrink = patch.reverts is None and not vm.use.within(patch.target)
    if is_shrink and vm.unfinished_shrink and vm_state.shrunk_at is not None:
        waits.append(Instant(vm_state.shrunk_at + timing.unfinished_shrink))
    return max(at for at in waits if at is not None)


def _permit_visible_at(state: State, vm: Vm, patch: PatchVm) -> Instant | None:
    """The time until which to wait for a view with the permit for ``patch``; None if this view has it."""
    scheduler, recorded = state.scheduler, vm.recorded_permit
    if (
        scheduler.answered_at is None
        or recorded is None
        or patch.target.within(recorded)
        or not scheduler.stores_permits
    ):
        return None
    # The scheduler stores a larger permit before it answers, so a patch based on an older view would conflict.
    return Instant(scheduler.answered_at + WATCH_LAG)


def _report(state: State, vm: Vm, size: Resources, held: Resources) -> Resources:
    """The amounts to request: the desired size, but no less than the VM holds, in whole compute units (S4.6)."""
    amounts, unit = size.at_least(held), state.scheduler.compute_unit
    return _in_slots(vm, amounts) if vm.is_pod or unit is None else vm.sizes(unit).not_less(amounts)


def _in_slots(vm: Vm, amounts: Resources) -> Resources:
    """The amounts to request: a pod's memory in whole slots, since the scheduler reads the remainder from the pod."""
    return whole_slots(amounts, vm.slot_size) if vm.is_pod else amounts


def _request_at(state: State, wanted: Resources, report: Resources, now: Instant) -> Instant | None:
    """The time to send ``report``; None while a request is in flight."""
    scheduler = state.scheduler
    if scheduler.in_flight is not None:
        return None
    waits = [_due(state, wanted, report, now), state.begins_at, scheduler.retry_at]
    return max(at for at in waits if at is not None)


def _due(state: State, wanted: Resources, report: Resources, now: Instant) -> Instant:
    """The time to send ``report``: now if it changes anything, otherwise at the next tick."""
    scheduler = state.scheduler
    # Without the opt-in label a VM has no permit.
    if state.vm.observed is not None and not state.vm.observed.enabled:
        return scheduler.next_at
    ceiling = _permitted(state, now)
    if ceiling is None or scheduler.failure is not None:
        return now
    if not wanted.within(ceiling):
        # A denial delays only requests for more.
        return now if scheduler.denial is None else min(scheduler.next_at, max(now, scheduler.denial.retry_at))
    less = not ceiling.within(report)
    # Withdraw a denied request immediately, because the scheduler counts it as pressure.
    pressure_is_over = scheduler.denial is not None and not scheduler.migrate and report.within(ceiling)
    # Without a load the scheduler cannot tell an idle VM from a busy one.
    load_is_new = not scheduler.has_reported_load and _metrics(state) is not None
    offer_is_new = scheduler.give_back.awaits_offer(now) and least_size(state, report, now) is not None
    return now if less or pressure_is_over or load_is_new or offer_is_new else scheduler.next_at


def _request(state: State, report: Resources, needs: Resources | None, now: Instant) -> AgentRequest:
    scheduler, permitted = state.scheduler, _permitted(state, now)
    asleep = state.vm.observed is not None and state.vm.observed.is_asleep
    return AgentRequest(
        pod=state.pod,
        resources=report,
        # A scheduler without state grants again what it is shown here.
        last_permit=permitted and (ZERO if asleep else permitted),
        compute_unit=scheduler.compute_unit,
        metrics=_metrics(state),
        sequence=scheduler.sequence,
        needs=needs,
    )


def _needs(state: State, vm: Vm, report: Resources, size: Resources, now: Instant) -> Resources | None:
    """The offer of a VM that requests ``report`` and wants ``size``: the smallest size that it needs, with zero CPU if
    it may sleep now; None if it has nothing to offer.
    """
    least = least_size(state, report, now)
    if not state.policy.sleep.after or vm.sleeps or not state.scheduler.give_back.offers(now):
        return least
    # Keep offering while an order to sleep is pending, so that the scheduler asks no other VM for that room.
    is_ordered = state.sleep.ordering is not None or vm.is_ordered_to_sleep
    if not is_ordered and sleep_obstacles(state, vm, size, now, is_early=True):
        return least
    return Resources(ZERO.cpu, report.mem if least is None else least.mem)


def sleep_obstacles(state: State, vm: Vm, size: Resources, now: Instant, *, is_early: bool = False) -> tuple[str, ...]:
    """Reasons not to order the VM, which wants ``size``, to sleep; empty if there are none. ``is_early``: assume that
    the scheduler asks for early sleep.
    """
    sample = state.guest.observed.sample if state.guest.observed is not None and is_fresh(state, now) else None
    policy, is_early = state.policy.sleep, is_early or state.scheduler.give_back.asks_sleep
    if not policy.after:
        return tuple(obstacles(state.sleep, policy.after, vm, sample, now))
    after = policy.early if is_early else policy.after
    return (*obstacles(state.sleep, after, vm, sample, now), *_plan_obstacles(state, vm, size, now))


def _plan_obstacles(state: State, vm: Vm, size: Resources, now: Instant) -> Iterator[str]:
    scheduler, alarm, request = state.scheduler, state.monitor.alarm, state.monitor.request
    if not scheduler.stores_permits:
        yield "the original project's scheduler does not support sleep"
    # Without a scheduler the VM would get no permit to wake.
    if scheduler.permit is None or scheduler.failure is not None or scheduler.is_superseded:
        yield "no permit from the scheduler"
    if scheduler.migrate or scheduler.denial is not None:
        yield "it is about to migrate" if scheduler.migrate else "the scheduler denied its request"
    if (alarm is not None and now < alarm.until) or (request is not None and now < request.until):
        yield "its monitor reports load"
    if scheduler.in_flight or state.vm.patching or state.vm.unsettled or state.vm.stale_at is not None:
        yield "a request or a resize is in flight"
    if not size.within(vm.holds):
        yield f"it needs {size}"
    # Memory above the minimum is unplugged before sleep.
    elif scheduler.compute_unit is not None:
        least = vm.sizes(scheduler.compute_unit, vm.bounds_at(now)).covering(ZERO).cpu
        if max(size.cpu, vm.holds.cpu) > least:
            yield f"its CPU is above the minimum of {least}"


def _metrics(state: State) -> Metrics | None:
    observed = state.guest.observed
    # The load from before the sleep is stale.
    if observed is None or state.sleeps:
        return None
    sample, load1 = observed.sample, observed.sample.load1
    # A cgroup has no load average; busy cores are the closest substitute.
    if load1 is None and state.vm.observed is not None and state.vm.observed.is_pod:
        load1 = state.guest.rates.used
    return None if load1 is None else Metrics(load1, sample.load5, sample.mem_used)
