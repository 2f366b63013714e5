"""Rules that must hold for every reachable state and plan; tests check them after every step.

Each rule is one line of the result where it is broken. See ``docs/operations-agent.md`` for what they protect.
"""

from __future__ import annotations

from agent.core.actions import OrderSleep, PatchVm, Plan, RequestPermit
from agent.core.desired_size import desired_size
from agent.core.monitor.monitor_plan import retained_mem
from agent.core.state import State
from agent.core.vm import whole_slots
from protocol.guest.monitor_messages import DownscaleRequest, UpscaleNotification
from protocol.pod_database import DEFERRED
from protocol.units import ZERO, Instant


def violations(state: State, planned: Plan, now: Instant) -> list[str]:
    """Every rule that ``planned`` breaks in ``state``; empty if none."""
    broken: list[str] = []
    for action in planned.actions:
        if isinstance(action, PatchVm):
            broken += _patch(state, action, now)
        elif isinstance(action, OrderSleep):
            broken += _order(state, planned, now)
        else:
            broken += _ask(state, action, planned, now)
    # A trial of less memory for a pod may be called off.
    is_called_off = isinstance(planned.message, UpscaleNotification) and isinstance(
        state.monitor.in_flight, DownscaleRequest
    )
    is_busy = state.monitor.in_flight is not None and not (
        state.vm.observed and state.vm.observed.is_pod and is_called_off
    )
    if planned.message is not None and (state.monitor.version is None or is_busy):
        broken.append("speaks to a monitor that is not there, or has not answered yet")
    if planned.wake_at is not None and planned.wake_at <= now:
        broken.append(f"wakes at {planned.wake_at}, which has passed")
    return broken + _in_the_way(state, planned, now)


def _in_the_way(state: State, planned: Plan, now: Instant) -> list[str]:
    """The kubelet's objection to one resource that this plan leaves in the way, although nothing else holds it up."""
    vm, side, scheduler = state.vm.observed, state.vm, state.scheduler
    if vm is None or vm.objection is None or any(isinstance(action, PatchVm) for action in planned.actions):
        return []
    waits = [state.begins_at, side.retry_at or Instant(0.0)]
    if side.patching or max(waits) > now or not (vm.resizable and vm.ours):
        return []
    if scheduler.migrate or scheduler.is_superseded:
        return []
    use, has = vm.use, vm.actual
    if vm.objection.verdict != DEFERRED:
        return [] if use == has else ["leaves a resize that the kubelet will not do"]
    size = desired_size(state, vm, now).size.at_most(has if state.ceiling is None else state.ceiling.at_least(has))
    both = use.cpu > has.cpu and use.mem > has.mem
    cpu_waits, mem_waits = use.mem > has.mem and size.cpu > has.cpu, use.cpu > has.cpu and size.mem > has.mem
    return ["leaves a deferred wish in the way of the other resource"] if both or cpu_waits or mem_waits else []


def _patch(state: State, patch: PatchVm, now: Instant) -> list[str]:
    vm, ceiling = state.vm.observed, state.scheduler.ceiling
    if vm is None:
        return ["patches a VM that was never seen"]
    denial = state.scheduler.denial
    # A denied VM that has more than it was permitted goes back even against its monitor.
    overruled = denial is not None and vm.use.within(denial.wanted)
    # What a pod has is counted as long as it has it.
    has = vm.holds if vm.is_pod else vm.use
    permitted = has if ceiling is None else ceiling.at_least(has)
    target, odd = patch.target, {vm.use.mem, vm.actual.mem, vm.bounds.min.mem} if vm.is_pod else set()
    rules = {
        "patches a VM that sleeps": not vm.sleeps,
        f"patches to {patch.target}, above the permitted {permitted}": patch.target.within(permitted),
        "patches while a patch is in flight": state.vm.patching is None,
        "patches during its wait after a failure": state.vm.retry_at is None or state.vm.retry_at <= now,
        "patches while a migration is ordered": not state.scheduler.migrate,
        "takes memory that the guest's monitor has not given": retained_mem(state.monitor, vm, now) <= patch.target.mem
        or (overruled and not vm.is_pod),
        "patches a part of a slot": patch.target.mem.is_multiple_of(vm.slot_size) or patch.target.mem in odd,
        "raises CPU and lowers memory at once": not vm.is_pod or target.cpu <= vm.use.cpu or target.mem >= vm.use.mem,
        "takes memory while CPU is to grow": not vm.is_pod
        or target.cpu <= vm.actual.cpu
        or target.mem >= vm.actual.mem,
    }
    return [broken for broken, holds in rules.items() if not holds]


def _order(state: State, planned: Plan, now: Instant) -> list[str]:
    """Rules of an order to sleep, written without the code that decides it."""
    vm, side, observed = state.vm.observed, state.scheduler, state.guest.observed
    if vm is None or observed is None:
        return ["orders a VM to sleep that was never seen"]
    policy, sleep, sample = state.policy.sleep, state.sleep, observed.sample
    has_run = now - now if sleep.running_from is None else now - sleep.running_from
    # A quarter of the time, and a minute at least, is enough if the node is short and asks.
    least = max(60.0, policy.after / 4) if side.give_back.asks_sleep else policy.after
    monitor = [each.until for each in (state.monitor.alarm, state.monitor.request) if each is not None]
    in_flight = (side.in_flight, state.vm.patching, state.vm.unsettled, sleep.ordering, state.vm.stale_at)
    rules = {
        "orders sleep and something else": len(planned.actions) == 1,
        "orders sleep against the policy": bool(policy.after) and sleep.window is None and not vm.never_sleeps,
        "orders sleep in this phase": (vm.phase, vm.ours, vm.enabled, vm.is_pod) == ("Running", True, True, False),
        "orders sleep that its scheduler does not know": side.stores_permits and side.compute_unit is not None,
        "orders sleep of a database that works": not sample.awake
        and now - observed.last <= state.policy.timing.stale
        and min(-1.0 if sample.quiet is None else sample.quiet, has_run) >= least,
        "orders sleep although something is in flight": all(each is None for each in in_flight),
        "orders sleep of a VM that is denied or moves": side.denial is None and not side.migrate,
        "orders sleep without a permit": side.permit is not None and side.failure is None and not side.is_superseded,
        "orders sleep of a VM with CPUs above its minimum": side.compute_unit is None
        or vm.holds.cpu <= vm.sizes(side.compute_unit, vm.bounds_at(now)).covering(ZERO).cpu,
        "orders sleep against its monitor": all(until <= now for until in monitor),
        "orders sleep again before its time": not (vm.order and vm.order != vm.sleep.order)
        and (sleep.refusal is None or now >= sleep.refusal.retry_at)
        and (sleep.retry_at is None or now >= sleep.retry_at),
        "orders sleep of an object without a version": vm.version > 0,
    }
    return [broken for broken, holds in rules.items() if not holds]


def _ask(state: State, ask: RequestPermit, planned: Plan, now: Instant) -> list[str]:
    vm, least, unit, side = state.vm.observed, state.held, state.scheduler.compute_unit, state.scheduler
    requested = ask.request.resources
    if vm is None or least is None:
        return ["asks for a VM that was never seen"]
    for action in planned.actions:
        least = least.at_least(action.target) if isinstance(action, PatchVm) else least
    if vm.is_pod:
        least = whole_slots(least, vm.slot_size)
    # A maximum that is no multiple may be asked for exactly; see ``sizing``. A pod's CPU and memory are not coupled.
    top = vm.bounds.max
    whole = (
        requested == whole_slots(requested, vm.slot_size)
        if vm.is_pod
        else unit is None
        or (
            (requested.cpu.is_multiple_of(unit.cpu) or requested.cpu == top.cpu)
            and (requested.mem.is_multiple_of(unit.mem) or requested.mem == top.mem)
        )
    )
    last = ask.request.last_permit
    rules = {
        "shows a permit of a VM that is asleep": not vm.is_asleep or (requested, last or ZERO) == (ZERO, ZERO),
        f"asks for {requested}, less than the VM holds ({least})": least.within(requested),
        f"asks for {requested}, no multiple of {unit}": whole,
        "asks while a request is in flight": side.in_flight is None,
        "asks during its wait after a failure": side.retry_at is None or side.retry_at <= now,
        "asks before its turn": state.begins_at <= now,
    }
    return [broken for broken, holds in rules.items() if not holds]
