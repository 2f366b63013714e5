"""What must hold of every reachable state and plan; tests run this after every step.

Each rule is one line of the result where it is broken. See ``docs/operations-agent.md`` for what they protect.
"""

from __future__ import annotations

from agent.core.actions import AskScheduler, PatchVm, Plan
from agent.core.monitor.monitor_plan import kept_by
from agent.core.state import State
from protocol.units import Instant


def violations(state: State, planned: Plan, now: Instant) -> list[str]:
    """Every rule that ``planned`` breaks in ``state``; empty if none."""
    found: list[str] = []
    for action in planned.actions:
        if isinstance(action, PatchVm):
            found += _patch(state, action, now)
        else:
            found += _ask(state, action, planned, now)
    if planned.message is not None and (state.monitor.version is None or state.monitor.asking is not None):
        found.append("speaks to a monitor that is not there, or has not answered yet")
    if planned.wake_at is not None and planned.wake_at <= now:
        found.append(f"wakes at {planned.wake_at}, which has passed")
    return found


def _patch(state: State, patch: PatchVm, now: Instant) -> list[str]:
    vm, ceiling = state.vm.seen, state.scheduler.ceiling
    if vm is None:
        return ["patches a VM that was never seen"]
    denial = state.scheduler.denial
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
    vm, held, unit, side = state.vm.seen, state.held, state.scheduler.compute_unit, state.scheduler
    asked = ask.request.resources
    if vm is None or held is None:
        return ["asks for a VM that was never seen"]
    for action in planned.actions:
        held = held.at_least(action.target) if isinstance(action, PatchVm) else held
    top = vm.bounds.max
    whole = unit is None or (
        (asked.cpu.is_multiple_of(unit.cpu) or asked.cpu == top.cpu)
        and (asked.mem.is_multiple_of(unit.mem) or asked.mem == top.mem)
    )
    rules = {
        f"asks for {asked}, less than the VM holds ({held})": held.within(asked),
        f"asks for {asked}, no multiple of {unit}": whole,
        "asks while a request is in flight": side.asking is None,
        "asks during its wait after a failure": side.retry_at is None or side.retry_at <= now,
        "asks before its turn": state.begins_at <= now,
    }
    return [broken for broken, holds in rules.items() if not holds]
