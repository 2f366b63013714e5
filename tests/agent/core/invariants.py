"""Rules that must hold of every reachable state and plan; tests run this after every step.

Each rule is one line of the result where it is broken. See ``docs/operations-agent.md`` for what they protect.
"""

from __future__ import annotations

from agent.core.actions import AskScheduler, PatchVm, Plan
from agent.core.monitor.monitor_plan import kept_by
from agent.core.state import State
from protocol.units import Instant


def violations(state: State, planned: Plan, now: Instant) -> list[str]:
    """Every rule that ``planned`` breaks in ``state``; empty if none."""
    broken: list[str] = []
    for action in planned.actions:
        if isinstance(action, PatchVm):
            broken += _patch(state, action, now)
        else:
            broken += _ask(state, action, planned, now)
    if planned.message is not None and (state.monitor.version is None or state.monitor.asking is not None):
        broken.append("speaks to a monitor that is not there, or has not answered yet")
    if planned.wake_at is not None and planned.wake_at <= now:
        broken.append(f"wakes at {planned.wake_at}, which has passed")
    return broken


def _patch(state: State, patch: PatchVm, now: Instant) -> list[str]:
    vm, ceiling = state.vm.seen, state.scheduler.ceiling
    if vm is None:
        return ["patches a VM that was never seen"]
    denial = state.scheduler.denial
    # A denied VM that has more than it was permitted goes back even against its monitor.
    overruled = denial is not None and vm.use.within(denial.wanted)
    permitted = vm.use if ceiling is None else ceiling.at_least(vm.use)
    rules = {
        f"patches to {patch.target}, above the permitted {permitted}": patch.target.within(permitted),
        "patches while a patch is in flight": state.vm.patching is None,
        "patches during its wait after a failure": state.vm.retry_at is None or state.vm.retry_at <= now,
        "patches while a migration is ordered": not state.scheduler.migrate,
        "takes memory that the guest's monitor has not given": kept_by(state.monitor, vm, now) <= patch.target.mem
        or overruled,
        "patches a part of a slot": patch.target.mem.is_multiple_of(vm.slot_size),
    }
    return [broken for broken, holds in rules.items() if not holds]


def _ask(state: State, ask: AskScheduler, planned: Plan, now: Instant) -> list[str]:
    vm, least, unit, side = state.vm.seen, state.held, state.scheduler.compute_unit, state.scheduler
    requested = ask.request.resources
    if vm is None or least is None:
        return ["asks for a VM that was never seen"]
    for action in planned.actions:
        least = least.at_least(action.target) if isinstance(action, PatchVm) else least
    # A maximum that is no multiple may be asked for exactly; see ``sizing``.
    top = vm.bounds.max
    whole = unit is None or (
        (requested.cpu.is_multiple_of(unit.cpu) or requested.cpu == top.cpu)
        and (requested.mem.is_multiple_of(unit.mem) or requested.mem == top.mem)
    )
    rules = {
        f"asks for {requested}, less than the VM holds ({least})": least.within(requested),
        f"asks for {requested}, no multiple of {unit}": whole,
        "asks while a request is in flight": side.asking is None,
        "asks during its wait after a failure": side.retry_at is None or side.retry_at <= now,
        "asks before its turn": state.begins_at <= now,
    }
    return [broken for broken, holds in rules.items() if not holds]
