"""Two agents of one VM, as during a change of the agents' form: one is served, the other is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from protocol.messages import AgentRequest
from protocol.units import Instant, Resources
from scheduler_plugin.ledger.accounts.permit_state import SETTLE, SILENT
from scheduler_plugin.ledger.events import PermitRequested, PodGone, PodSeen, TimePassed, VmSeen
from scheduler_plugin.ledger.outcomes import OtherAgentError
from tests.scheduler_plugin.ledger.fleet import LATER, NOW, Fleet, amount, name, node, plain_pod, vm, vm_pod

SIDECAR, NODE_AGENT = "uid-a", "uid-agent"
AFTER = Instant(LATER + SILENT)


def fleet_of_two() -> Fleet:
    """``a`` has a sidecar, and its node has an agent, too; there is room for 9 more."""
    pods = (vm_pod("a", "n1"), plain_pod("agent", amount(0), "n1"))
    return Fleet(node(total=11), vm("a", amount(2), permit=amount(2)), *pods)


def asks(
    fleet: Fleet,
    agent: str,
    wish: float,
    number: int | None,
    *,
    last: Resources | None = None,
    now: Instant = LATER,
) -> Resources:
    """A whole round of one of the agents."""
    request = AgentRequest(name("a-pod"), amount(wish), last, sequence=number)
    decision = fleet.ledger.apply(PermitRequested("uid-a", request, agent), now)
    fleet.did(decision.effects)
    fleet.store(decision)
    return decision.permit


def test_second_agent_is_refused() -> None:
    fleet = fleet_of_two()
    assert asks(fleet, SIDECAR, 8, 1) == amount(8)
    with pytest.raises(
        OtherAgentError,
        match="the agent in pod db/a-pod manages VM db/a: run one agent per VM, or wait 1 s",
    ):
        asks(fleet, NODE_AGENT, 2, 10**9, now=Instant(AFTER - 1))
    assert fleet.reserved("a") == amount(8)
    assert asks(fleet, SIDECAR, 7, 2, last=amount(8)) == amount(7)
    assert fleet.reserved("a") == amount(7), "its own sequence still counts"


def test_silent_agents_permit_stays_held() -> None:
    """It may only be cut off from the scheduler."""
    fleet = fleet_of_two()
    asks(fleet, NODE_AGENT, 8, 1)
    for number, now in ((5, AFTER), (6, Instant(AFTER + SETTLE)), (7, Instant(AFTER + 2 * SETTLE))):
        asks(fleet, SIDECAR, 2, number, last=amount(2), now=now)
        assert fleet.reserved("a") == amount(8)
    fleet.apply(PodGone(NODE_AGENT))
    fleet.apply(TimePassed(), AFTER)
    assert asks(fleet, SIDECAR, 2, 8, last=amount(2), now=Instant(AFTER + 3 * SETTLE)) == amount(2)
    assert fleet.reserved("a") == amount(2)


def test_replaced_agent_pod_is_succeeded_at_once() -> None:
    fleet = fleet_of_two()
    asks(fleet, NODE_AGENT, 8, 10)
    fleet.apply(PodGone(NODE_AGENT))
    fleet.apply(PodSeen(plain_pod("next", amount(0), "n1")))
    assert asks(fleet, "uid-next", 2, 3) == amount(2)
    assert fleet.reserved("a") == amount(8), "its numbers prove nothing yet"
    assert asks(fleet, "uid-next", 2, 4, now=Instant(LATER + SETTLE)) == amount(2)
    assert fleet.reserved("a") == amount(2)


def test_refused_agent_that_holds_less_frees_its_part() -> None:
    fleet = fleet_of_two()
    asks(fleet, NODE_AGENT, 8, 1)
    asks(fleet, SIDECAR, 2, 1, last=amount(2), now=AFTER)
    settled = Instant(AFTER + SETTLE)
    asks(fleet, SIDECAR, 2, 2, last=amount(2), now=settled)
    for number, last, reserved in ((1, 3, 8), (None, 3, 8), (2, 4, 4), (3, None, 2)):
        holds = None if last is None else amount(last)
        with pytest.raises(OtherAgentError):
            asks(fleet, NODE_AGENT, 9, number, last=holds, now=settled)
        asks(fleet, SIDECAR, 2, 3 + (number or 0), last=amount(2), now=settled)
        assert fleet.reserved("a") == amount(reserved), (number, last)


def test_refused_agent_without_numbers_is_believed_in_time() -> None:
    fleet = fleet_of_two()
    asks(fleet, NODE_AGENT, 8, None)
    asks(fleet, SIDECAR, 2, 1, last=amount(2), now=AFTER)
    asks(fleet, SIDECAR, 2, 2, last=amount(2), now=Instant(AFTER + SETTLE))
    for wait, last, reserved in ((1, 4, 8), (2, 3, 8), (SETTLE, 3, 8), (SETTLE + 1, 3, 4), (SETTLE + 2, 9, 4)):
        now = Instant(AFTER + SETTLE + wait)
        with pytest.raises(OtherAgentError):
            asks(fleet, NODE_AGENT, 8, None, last=amount(last), now=now)
        asks(fleet, SIDECAR, 2, 2 + int(wait), last=amount(2), now=now)
        assert fleet.reserved("a") == amount(reserved), wait


def test_refused_agents_dead_process_frees_nothing() -> None:
    """The last message of a process that has died arrives after the first one of its successor."""
    fleet = fleet_of_two()
    asks(fleet, NODE_AGENT, 8, 1)
    asks(fleet, SIDECAR, 2, 1, last=amount(2), now=AFTER)
    settled = Instant(AFTER + SETTLE)
    asks(fleet, SIDECAR, 2, 2, last=amount(2), now=settled)
    with pytest.raises(OtherAgentError):
        asks(fleet, NODE_AGENT, 9, 10**9, last=amount(2), now=settled)
    asks(fleet, SIDECAR, 2, 3, last=amount(2), now=settled)
    assert fleet.reserved("a") == amount(8)


def restarted(fleet: Fleet, *holders: str, on: str = "uid-a") -> Fleet:
    """The next scheduler over the same objects, which name the agents that may hold the permit."""
    known = replace(fleet.vms[name("a")], holders=(on, *holders) if holders else ())
    return Fleet(node(total=11), known, vm_pod("a", "n1"), plain_pod("agent", amount(0), "n1"), now=AFTER)


def test_written_permit_names_its_holders() -> None:
    fleet = fleet_of_two()
    request = AgentRequest(name("a-pod"), amount(8), None, sequence=1)
    order = fleet.ledger.apply(PermitRequested("uid-a", request, NODE_AGENT), LATER).persist
    assert order is not None
    assert order.holders == ("uid-a", NODE_AGENT)
    fleet.ledger.apply(PermitRequested("uid-a", request, SIDECAR), AFTER)
    order = fleet.ledger.apply(
        PermitRequested("uid-a", replace(request, resources=amount(9), sequence=2), SIDECAR), AFTER
    ).persist
    assert order is not None
    assert order.holders == ("uid-a", SIDECAR, NODE_AGENT)


def test_holder_comes_first_after_a_restart() -> None:
    fleet = fleet_of_two()
    asks(fleet, SIDECAR, 8, 1)
    rebuilt = restarted(fleet, SIDECAR)
    with pytest.raises(OtherAgentError, match="or wait 45 s"):
        asks(rebuilt, NODE_AGENT, 2, 1, last=amount(2), now=AFTER)
    later = Instant(AFTER + SILENT)
    asks(rebuilt, NODE_AGENT, 2, 2, last=amount(2), now=later)
    asks(rebuilt, NODE_AGENT, 2, 3, last=amount(2), now=Instant(later + SETTLE))
    assert rebuilt.reserved("a") == amount(8), "the sidecar may only be cut off"


def test_agent_that_took_over_holds_after_restart() -> None:
    """The one before it, whom the object named first, asks for less."""
    fleet = fleet_of_two()
    asks(fleet, SIDECAR, 8, 1)
    asks(fleet, NODE_AGENT, 8, 1, last=amount(8), now=AFTER)
    pods = (vm_pod("a", "n1"), plain_pod("agent", amount(0), "n1"))
    rebuilt = Fleet(node(total=11), *fleet.vms.values(), *pods, now=AFTER)
    later = Instant(AFTER + SILENT + SETTLE)
    for number, now in ((2, later), (3, Instant(later + SETTLE))):
        asks(rebuilt, SIDECAR, 2, number, last=amount(2), now=now)
    assert rebuilt.reserved("a") == amount(8)


def test_write_for_the_agent_before_names_nobody_else() -> None:
    """A permit whose write was ordered before an agent took over does not name that agent."""
    fleet, request = fleet_of_two(), AgentRequest(name("a-pod"), amount(8), None)
    before = fleet.ledger.apply(PermitRequested("uid-a", replace(request, sequence=1), SIDECAR), LATER)
    fleet.ledger.apply(PermitRequested("uid-a", replace(request, sequence=2), NODE_AGENT), AFTER)
    fleet.store(before)
    again = fleet.ledger.apply(PermitRequested("uid-a", replace(request, sequence=3), NODE_AGENT), AFTER)
    assert again.persist is not None
    assert (again.persist.before_answer, again.persist.holders) == (True, ("uid-a", NODE_AGENT, SIDECAR))
    fleet.store(again)
    assert fleet.ledger.apply(PermitRequested("uid-a", replace(request, sequence=4), NODE_AGENT), AFTER).persist is None


def test_holders_in_other_pod_hold_nothing() -> None:
    """The VM was started again while no scheduler ran."""
    fleet = fleet_of_two()
    asks(fleet, SIDECAR, 8, 1)
    rebuilt = restarted(fleet, NODE_AGENT, "uid-other", on="uid-before")
    asks(rebuilt, SIDECAR, 2, 1, last=amount(2), now=AFTER)
    asks(rebuilt, SIDECAR, 2, 2, last=amount(2), now=Instant(AFTER + SETTLE))
    assert rebuilt.reserved("a") == amount(2)


def test_holder_is_believed_after_a_restart() -> None:
    fleet = fleet_of_two()
    asks(fleet, SIDECAR, 8, 1)
    rebuilt = restarted(fleet, SIDECAR)
    asks(rebuilt, SIDECAR, 2, None, last=amount(8), now=Instant(AFTER + SETTLE))
    assert rebuilt.reserved("a") == amount(2)


def test_displaced_agent_holds_after_restart() -> None:
    fleet = fleet_of_two()
    asks(fleet, SIDECAR, 8, 1)
    rebuilt = restarted(fleet, NODE_AGENT, SIDECAR)
    for number, now in ((2, AFTER), (3, Instant(AFTER + SETTLE))):
        asks(rebuilt, NODE_AGENT, 2, number, last=amount(2), now=now)
        assert rebuilt.reserved("a") == amount(8)


def test_holder_without_pod_is_succeeded_at_once() -> None:
    fleet = fleet_of_two()
    asks(fleet, NODE_AGENT, 8, 1)
    rebuilt = restarted(fleet, "uid-gone")
    assert asks(rebuilt, SIDECAR, 8, 1, last=amount(2), now=AFTER) == amount(8)


def test_first_agent_after_restart_keeps_others_hold() -> None:
    """The permit was written by a release that does not name its holders."""
    fleet = fleet_of_two()
    asks(fleet, SIDECAR, 8, 1)
    rebuilt = restarted(fleet)
    asks(rebuilt, NODE_AGENT, 2, 1, last=amount(2), now=AFTER)
    with pytest.raises(OtherAgentError):
        asks(rebuilt, SIDECAR, 8, 2, last=amount(8), now=AFTER)
    asks(rebuilt, NODE_AGENT, 2, 2, last=amount(2), now=Instant(AFTER + SETTLE))
    assert rebuilt.reserved("a") == amount(8)


def test_agent_missing_opt_out_holds_size() -> None:
    fleet = fleet_of_two()
    asks(fleet, SIDECAR, 8, 1)
    for has_agent, permit, version in ((False, 8, 8), (False, 2, 9), (True, 2, 10)):
        seen, now = vm("a", amount(2), permit=amount(permit), version=version), Instant(LATER + version * SETTLE)
        fleet.apply(VmSeen(replace(seen, has_agent=has_agent)), now)
        fleet.vms[name("a")] = seen
    assert fleet.reserved("a") == amount(2)
    later = Instant(LATER + 12 * SETTLE)
    asks(fleet, NODE_AGENT, 1, 1, last=amount(1), now=later)
    asks(fleet, NODE_AGENT, 1, 2, last=amount(1), now=Instant(later + SETTLE))
    assert fleet.ledger.vms[name("a")].held == amount(2)


def test_refused_agent_takes_over_its_hold() -> None:
    fleet = fleet_of_two()
    asks(fleet, NODE_AGENT, 8, 1)
    asks(fleet, SIDECAR, 2, 1, last=amount(2), now=AFTER)
    back = Instant(AFTER + SILENT)
    assert asks(fleet, NODE_AGENT, 8, 2, last=amount(8), now=back) == amount(8)
    assert fleet.reserved("a") == amount(8)


def test_opted_out_vm_has_no_first_agent() -> None:
    fleet = fleet_of_two()
    asks(fleet, NODE_AGENT, 2, 1, now=NOW)
    fleet.apply(PodGone(NODE_AGENT))
    assert fleet.ledger.vms[name("a")].others == {}
