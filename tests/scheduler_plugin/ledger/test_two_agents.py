"""The agents at both ends of a migration number their messages independently: only numbers from one pod are
compared.
"""

from __future__ import annotations

from protocol.messages import AgentRequest
from protocol.units import Instant, Resources
from scheduler_plugin.ledger.accounts.permit_state import SETTLE
from scheduler_plugin.ledger.events import PermitRequested
from scheduler_plugin.ledger.outcomes import PermitDecision
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


def asks(fleet: Fleet, wanted: Resources, number: int, now: Instant) -> PermitDecision:
    """The agent in the target's pod sends a request, and its permit is stored."""
    decision = fleet.ledger.apply(
        PermitRequested("uid-t", AgentRequest(name("a-target"), wanted, None, sequence=number)), now
    )
    fleet.did(decision.effects)
    fleet.store(decision)
    return decision


def test_target_agent_with_lower_sequence_grows() -> None:
    fleet = moved_after(1000)
    assert asks(fleet, amount(3), 7, SOON).permit == amount(3)
    assert asks(fleet, amount(4), 8, SOON).permit == amount(4)


def test_own_duplicate_and_late_messages_are_ignored() -> None:
    fleet = moved_after(1000)
    asks(fleet, amount(3), 7, SOON)
    assert asks(fleet, amount(4), 7, SOON).permit == amount(3)
    assert asks(fleet, amount(4), 6, SOON).permit == amount(3)


def test_decrease_waits_until_nobody_holds_more() -> None:
    fleet = moved_after(1000)
    asks(fleet, amount(3), 7, SOON)
    asks(fleet, amount(2), 8, SOON)
    assert fleet.on("n2") == amount(3)
    asks(fleet, amount(2), 9, Instant(SOON + SETTLE))
    assert fleet.on("n2") == amount(2)
