"""The agents at both ends of a migration number their messages by themselves: only those of one pod are compared."""

from __future__ import annotations

from protocol.messages import AgentRequest
from protocol.units import Instant, Resources
from scheduler_plugin.ledger import Decision
from scheduler_plugin.ledger.accounts.outstanding_permits import SETTLE
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, amount, name, vm
from tests.scheduler_plugin.ledger.moving import DONE, STARTED, hear, reserved_move, target_pod

SOON = Instant(LATER + 1)


def moved_after(number: int) -> Fleet:
    """The VM has moved; the source's agent, which was restarted on the way, numbered its last message so."""
    fleet = reserved_move()
    hear(fleet, STARTED)
    hear(fleet, target_pod("n2"))
    assert fleet.grant("a", amount(2), number=number) == amount(2)
    for event in ("vm", target_pod("n2", owner=None), DONE, "uid-a"):
        hear(fleet, event)
    fleet.vms[name("a")] = vm("a", amount(2), version=9, pod=name("a-target"))
    return fleet


def asks(fleet: Fleet, wanted: Resources, number: int, now: Instant) -> Decision:
    """The agent in the target's pod; its permit is written down."""
    decision = fleet.ledger.decide("uid-t", AgentRequest(name("a-target"), wanted, None, sequence=number), now)
    fleet.did(decision.effects)
    fleet.store(decision)
    return decision


def test_a_target_whose_agent_counts_from_below_the_sources_grows_at_once() -> None:
    fleet = moved_after(1000)
    assert asks(fleet, amount(3), 7, SOON).permit == amount(3)
    assert asks(fleet, amount(4), 8, SOON).permit == amount(4)


def test_of_its_own_messages_a_double_and_a_late_one_still_change_nothing() -> None:
    fleet = moved_after(1000)
    asks(fleet, amount(3), 7, SOON)
    assert asks(fleet, amount(4), 7, SOON).permit == amount(3)
    assert asks(fleet, amount(4), 6, SOON).permit == amount(3)


def test_that_it_needs_less_is_believed_only_when_nobody_can_hold_more() -> None:
    fleet = moved_after(1000)
    asks(fleet, amount(3), 7, SOON)
    asks(fleet, amount(2), 8, SOON)
    assert fleet.on("n2") == amount(3)
    asks(fleet, amount(2), 9, Instant(SOON + SETTLE))
    assert fleet.on("n2") == amount(2)
