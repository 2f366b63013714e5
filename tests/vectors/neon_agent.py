"""The family neon: permits that an agent believes, memory goals and the rules of order, against the real agent core."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise, product
from typing import Final

from agent.core.actions import MonitorMessage, PatchVm, RequestPermit
from agent.core.advance import advance
from agent.core.events import MonitorAnswered, MonitorJoined, SchedulerAnswered, Started, VmSeen
from agent.core.goal import goal
from agent.core.guest import NO_RATES, GuestSample
from agent.core.permits import permit_error
from agent.core.plan import plan
from agent.core.policy import (
    DENIED_BACKOFF,
    REFUSED_BACKOFF,
    SCHEDULER_BACKOFF,
    VM_API_BACKOFF,
    MemoryPolicy,
    Policy,
    Timing,
)
from agent.core.state import begin
from agent.core.vm import Vm
from protocol.guest.monitor_messages import DownscaleResult, UpscaleConfirmation, UpscaleNotification
from protocol.messages import ObjectName, PluginResponse
from protocol.units import Bytes, ComputeUnit, Instant, MilliCpu, Resources, Seconds
from protocol.virtual_machine import Bounds
from tests.agent.core.invariants import violations
from tests.agent.core.story import Story, cu, settled
from tests.scenarios.world import World
from tests.vectors.case import Case
from tests.vectors.ledger_fixture import LedgerFixture
from tests.vectors.phrases import Phrases, told, understood
from tests.vectors.registry import Answer, Check, Declined

GIB: Final = Bytes(1024**3)
STORM_STEPS: Final = 400


def permit_validation(case: Case) -> object:
    """True if an agent believes a permit (S4.5)."""
    permit, request, using = (
        Resources(MilliCpu(cpu), GIB * gib) for cpu, gib in (case.input[key] for key in ("permit", "request", "using"))
    )
    return permit_error(permit, request, using) is None


def goal_mem(case: Case) -> object:
    """The memory that a guest needs, in compute units, from what it uses (S4.3)."""
    given = case.input
    if given.get("cached_bytes") is not None:
        raise Declined("what a guest needs of its page cache shows when it lacks it: refaults and stalls (B.16)")
    usage, unit = Bytes(given["usage_bytes"]), Bytes(given["cu_mem"])
    policy = Policy(memory=MemoryPolicy(target=given["usage_target"], kernel_allowance=Bytes(0)))
    sample = GuestSample(mem_total=usage, mem_available=Bytes(0))
    need = goal(sample, NO_RATES, Resources(MilliCpu(1000), usage), policy, settling=False).mem
    if need is None:
        raise ValueError("the core has no memory goal")
    needed = need.ratio(unit)
    return {"usage_cu": needed, "total_cu": None, "mem_goal_cu": needed, "goal_cu_if_only_mem": need.units_up(unit)}


_NO_CACHE: Final = {
    "input.wss_bytes": "says of the cache what only counts together with cached_bytes",
    "input.total_target": "counts only together with cached_bytes",
}


def ordering(case: Case) -> object:
    """A rule that holds of every reachable state: None if it does, otherwise what broke it."""
    found, check = understood(_RULES, case.text, "check")
    return check(found)


@cache
def _storm() -> str | None:
    """Real cores and the real ledger through lost, doubled and late messages; both sides check their invariants."""
    world = World(seed=7, is_open=False)
    for _ in range(STORM_STEPS):
        world.step()
        for agent in world.agents.alive.values():
            planned = plan(agent.state, world.now)
            if not agent.restless and (broken := violations(agent.state, planned, world.now)):
                return f"{agent.vm} at {world.now}: {broken}"
    return None


def _holds_in_a_storm(_: re.Match[str]) -> object:
    return _storm()


def _waits(told: re.Match[str]) -> object:
    """Every wait that the rule names in seconds, against ours; then the storm, which checks that waits are kept."""
    ours = {
        "scheduler": SCHEDULER_BACKOFF.first,
        "vm api": VM_API_BACKOFF.first,
        "monitor": REFUSED_BACKOFF.first,
        "denied grow": DENIED_BACKOFF.first,
        "denied shrink": REFUSED_BACKOFF.first,
    }
    for peer, seconds in _WAIT.findall(told.string):
        if ours[peer.lower()] < float(seconds):
            return f"{peer} is asked again after {ours[peer.lower()]:g} s"
    return _storm()


def _idempotent(_: re.Match[str]) -> object:
    ledger = LedgerFixture(total=10)
    ledger.add_vm("vm", use=2, permit=2)
    ledger.add_foreign(5)
    ledger.rebuild()
    answers = {ledger.ask("vm", 7, sequence=number) for number in (1, 1, 2)}
    return None if answers == {5} else f"the permits were {sorted(answers)}"


def _asks_every_tick(told: re.Match[str]) -> object:
    """An agent with nothing to say asks at least as often as the rule says, with that tick as its policy."""
    tick = float(told["tick"])
    policy, size = Policy(timing=Timing(tick=Seconds(tick))), Resources(MilliCpu(1000), GIB * 4)
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
            advance(state, SchedulerAnswered(PluginResponse(size, ComputeUnit(MilliCpu(250), GIB))), now, 0.5)
        now = planned.wake_at if not planned.actions else plan(state, now).wake_at
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    return None if len(asked) == 10 and max(pauses) <= tick else f"asked at {asked}"


def _approved(told: re.Match[str]) -> object:
    """Idle VMs shrink by what their monitors agree to, and by no more; some refuse, and some give no answer."""
    for verdicts in product((True, False, None), repeat=3):
        if broken := _shrunk_against(verdicts):
            return broken
    if _WITHOUT.search(told.string):
        raise Declined(
            "a VM without a monitor shrinks to what its metrics prove to be enough; with one this holds (B.8)"
        )
    return None


def _shrunk_against(verdicts: Sequence[bool | None]) -> str | None:
    """An idle VM of six units, whose monitor answers each request with the next verdict, and then nothing more."""
    story, approved, left = settled(6).happens(MonitorJoined(2)), cu(6).mem, list(verdicts)
    for _ in range(60):
        story.at(story.now + 1.0).looks()
        message = story.plans().message
        if message is not None and (left or isinstance(message, UpscaleNotification)):
            story.happens(Started(message))
            approved = _answered(story, message, approved, left)
        for action in story.acts():
            if isinstance(action, RequestPermit):
                story.answers(action.request.resources)
                continue
            if isinstance(action, PatchVm) and action.target.mem < approved:
                return f"{action.target.mem} where {approved} was approved, after {verdicts}"
            story.obeys()
    return None


def _answered(story: Story, message: MonitorMessage, approved: Bytes, left: list[bool | None]) -> Bytes:
    """The monitor answers ``message``; the memory that it approves of from then on."""
    if isinstance(message, UpscaleNotification):
        story.happens(MonitorAnswered(UpscaleConfirmation(1)))
        return message.granted.mem
    verdict = left.pop(0)
    story.happens(MonitorAnswered(None if verdict is None else DownscaleResult(1, ok=verdict, status="")))
    return message.target.mem if verdict else approved


def _one_unit_at_a_time(_: re.Match[str]) -> object:
    raise Declined("a monitor is asked for all that may go at once, and for half of what it refuses (B.8)")


_WITHOUT: Final = told(r"\b(no|without a) monitor\b")
_WAIT: Final = told(r"(scheduler|VM API|monitor|denied grow|denied shrink) (\d+(?:\.\d+)?) s")

_RULES: Final[Phrases[Callable[[re.Match[str]], object]]] = (
    (told(r"retry wait|wait after a failure"), _waits),
    (told(r"\bmonitor\b.*\b(1|one) (CU|compute unit)\b"), _one_unit_at_a_time),
    (told(r"\bmonitor\b"), _approved),
    (told(r"\btick\b.*?(?P<tick>\d+(?:\.\d+)?) s"), _asks_every_tick),
    (told(r"idempotent|same request.*same permit"), _idempotent),
    (told(r"\bpatch\b.*\b(above|beyond|exceed)\b.*\bpermit\b"), _holds_in_a_storm),
    (told(r"\b(report|request|ask)s?\b.*\bless than\b"), _holds_in_a_storm),
    (told(r"\bmultiple of\b.*\b(compute unit|CU)\b"), _holds_in_a_storm),
    (
        told(r"\b(one|at most one|two|no second)\b.*\b(patch|request)\w*\b.*\b(flight|at once|at a time)\b"),
        _holds_in_a_storm,
    ),
    (told(r"\b(sum|total)\b.*\b(permit|reserv)\w*\b.*\b(node|total)\b"), _holds_in_a_storm),
    (told(r"\bpatch\b.*\bmigrat"), _holds_in_a_storm),
)
"""Phrases that tell a rule, and what checks it; the first that matches is used."""

GROUPS: Final[Mapping[str, Check | Answer]] = {
    "permit_validation": Check(permit_validation, lambda case: case.expected == "ok"),
    "goal_mem": Check(goal_mem, ignores=_NO_CACHE),
    "ordering_invariants": Check(ordering, needs=()),
}
