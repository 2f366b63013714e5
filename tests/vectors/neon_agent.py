"""The family neon: permits that an agent believes, memory goals and the rules of order, against the real agent core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

from agent.core.advance import advance
from agent.core.events import Answered, Started, VmSeen
from agent.core.goal import goal
from agent.core.guest import NO_RATES, GuestSample
from agent.core.permits import objection
from agent.core.plan import plan
from agent.core.policy import MemoryPolicy, Policy
from agent.core.state import begin
from agent.core.vm import Vm
from protocol.messages import ObjectName, PluginResponse
from protocol.units import Bytes, ComputeUnit, Instant, MilliCpu, Resources
from protocol.virtual_machine import Bounds
from tests.scenarios.world import World
from tests.vectors.bench import Bench
from tests.vectors.case import Case
from tests.vectors.registry import Answer, Check, Declined

GIB: Final = Bytes(1024**3)
STORM_STEPS: Final = 400


def permit_validation(case: Case) -> object:
    """Whether an agent believes a permit (S4.5)."""
    permit, request, using = (
        Resources(MilliCpu(cpu), GIB * gib) for cpu, gib in (case.input[key] for key in ("permit", "request", "using"))
    )
    return objection(permit, request, using) is None


def goal_mem(case: Case) -> object:
    """The memory that a guest needs, in compute units, from what it uses (S4.3)."""
    given = case.input
    if given.get("cached_bytes") is not None:
        raise Declined("the page cache is the guest's own affair: what it needs of it shows as memory pressure (S4.3)")
    usage, unit = Bytes(given["usage_bytes"]), Bytes(given["cu_mem"])
    policy = Policy(memory=MemoryPolicy(target=given["usage_target"], kernel_allowance=Bytes(0)))
    sample = GuestSample(mem_total=usage, mem_available=Bytes(0))
    need = goal(sample, NO_RATES, Resources(MilliCpu(1000), usage), policy, settling=False).mem
    if need is None:
        raise ValueError("the core has no memory goal")
    return {"usage_cu": need.ratio(unit), "goal_cu_if_only_mem": need.units_up(unit)}


def _goal_expected(case: Case) -> Any:
    return {key: case.expected[key] for key in ("usage_cu", "goal_cu_if_only_mem")}


def ordering(case: Case) -> object:
    """A rule that holds of every reachable state: None where it does."""
    text = str(case.raw["desc"])
    if "monitor downscale" in text:
        raise Declined("a VM shrinks at once to what is proven to be enough, not one unit at a time (S4.5)")
    for part, check in _RULES.items():
        if part in text:
            return check()
    raise ValueError(f"no check for the rule: {text}")


def _storm() -> None:
    """Real cores and the real ledger through lost, doubled and late messages; the world checks itself."""
    world = World(seed=7, is_open=False)
    for _ in range(STORM_STEPS):
        world.step()


def _idempotent() -> object:
    bench = Bench(total=10)
    bench.add_vm("vm", use=2, permit=2)
    bench.add_foreign(5)
    bench.rebuild()
    answers = {bench.ask("vm", 7, sequence=1), bench.ask("vm", 7, sequence=1), bench.ask("vm", 7, sequence=2)}
    return None if answers == {5} else f"the permits were {sorted(answers)}"


def _asks_every_tick() -> object:
    """An agent with nothing to say still asks within 15 s of its last request."""
    policy, size = Policy(), Resources(MilliCpu(1000), GIB * 4)
    vm = Vm(Bounds(size, size), size, size, GIB, version=1)
    state = begin(ObjectName("default", "pg"), policy, Instant(0), 0.0, sequence=0)
    advance(state, VmSeen(vm), Instant(0), 0.0)
    asked: list[Instant] = []
    now: Instant | None = Instant(0)
    while now is not None and len(asked) < 10:
        planned = plan(state, now)
        for action in planned.actions:
            asked.append(now)
            advance(state, Started(action), now, 0.5)
            advance(state, Answered(PluginResponse(size, ComputeUnit(MilliCpu(250), GIB))), now, 0.5)
        now = planned.wake_at if not planned.actions else plan(state, now).wake_at
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    return None if len(asked) == 10 and max(pauses) <= 15 else f"asked at {asked}"


_RULES: Final[Mapping[str, Callable[[], object]]] = {
    "above the last permit": _storm,
    "below what the monitor approved": _storm,
    "report to the scheduler less": _storm,
    "at least every tick": _asks_every_tick,
    "within its retry wait": _storm,
    "sum over pods of permits": _storm,
    "idempotent": _idempotent,
}

GROUPS: Final[Mapping[str, Check | Answer]] = {
    "permit_validation": Check(permit_validation, lambda case: case.expected == "ok"),
    "goal_mem": Check(goal_mem, _goal_expected),
    "ordering_invariants": ordering,
}
