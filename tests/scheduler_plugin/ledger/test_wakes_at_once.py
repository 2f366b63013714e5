"""A node wakes only this many VMs at once, even if it has room for more (B.18)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.guest.sleep import WAKING
from protocol.units import ZERO, Instant
from scheduler_plugin.ledger.accounts.claims import WAKE_TIMEOUT
from scheduler_plugin.ledger.accounts.wake_order import active_wakes, wakes_at_once
from scheduler_plugin.ledger.events import NodeSeen
from scheduler_plugin.ledger.facts import NodeFacts
from scheduler_plugin.ledger.invariants import violations
from tests.scheduler_plugin.ledger.fleet import LATER, amount, name, node, vm
from tests.scheduler_plugin.ledger.sleeping import SleepingFleet, sleeper, sleeping_fleet


def waking(most: int | None, total: float = 101) -> NodeFacts:
    """A node with room for all, which wakes ``most`` at once."""
    facts = node(total=total)
    return replace(facts, policy=replace(facts.policy, wakes_at_once=most))


def herd(most: int, *sizes: int) -> SleepingFleet:
    """VMs ``a``, ``b`` and so on, all of which must wake."""
    return sleeping_fleet(waking(most), *(sleeper(chr(97 + at), amount(size), WAKING) for at, size in enumerate(sizes)))


def woken(fleet: SleepingFleet, *names: str, now: Instant = LATER) -> str:
    """The VMs of ``names`` that get their permit, in the order of their requests."""
    return "".join(of for of in names if fleet.asks_to_wake(of, now=now).permit.any)


@pytest.mark.parametrize(
    ("most", "total", "at_once"), [(None, 33, 64), (None, 33.9, 65), (None, 2, 8), (1, 33, 1), (50, 2, 50)]
)
def test_number_follows_the_cpu_of_the_node(most: int | None, total: float, at_once: int) -> None:
    fleet = sleeping_fleet(waking(most, total))
    assert wakes_at_once(fleet.ledger.nodes["n1"]) == at_once


def test_others_wait_until_a_guest_runs() -> None:
    """The phase is Running before the memory has been read; only the end of the read makes room for the next wake."""
    fleet = herd(2, 1, 1, 1)
    assert woken(fleet, *"abc") == "ab"
    assert fleet.is_woken("a", reads=True)
    assert woken(fleet, "c") == ""
    assert fleet.ledger.explain("uid-c", LATER).sleep == (
        "waking: waiting for a permit for 1 cpu, 1Gi: node n1 wakes at most 2 VMs at once, and 2 wakes are under way"
    )
    fleet.runs("a")
    assert woken(fleet, "c") == "c"


def test_smallest_goes_first() -> None:
    """All have been denied. When a wake ends, the smaller VMs go before the larger ones."""
    fleet = herd(1, 1, 4, 3, 2)
    assert woken(fleet, *"abcd") == "a"
    fleet.is_woken("a")
    assert woken(fleet, *"bcd") == "d"
    fleet.is_woken("d")
    assert woken(fleet, *"bc") == "c"


def test_small_vms_do_not_starve_a_large_one() -> None:
    """A tenant's two small VMs sleep and wake in turn, each as slowly as it may: a large one had no turn for ever."""
    fleet, now, order = herd(1, 1, 1, 4), LATER, ""
    for hostile, other in ("ab", "ba", "ab"):
        order += woken(fleet, hostile, "c", now=now)
        fleet.is_woken(hostile, reads=True, now=now)
        now = Instant(now + WAKE_TIMEOUT)
        # Both are denied before its turn ends.
        woken(fleet, other, "c", now=Instant(now - 1))
        fleet.falls_asleep(hostile, now=now)
        fleet.gives_up(hostile, now=now)
    assert order == "abc"


def test_repeated_request_is_no_other_wake() -> None:
    """An agent asks again before its permit is stored, and after."""
    fleet = herd(1, 1, 1)
    assert fleet.ask("a", amount(1)).permit == amount(1)
    assert woken(fleet, "a", "a", "b") == "aa"


def test_permit_that_was_given_up_bars_nobody() -> None:
    """The VM was woken, and sleeps again, so nothing is being read."""
    fleet = herd(1, 1, 1)
    woken(fleet, "a")
    fleet.is_woken("a")
    fleet.falls_asleep("a")
    assert woken(fleet, "b") == ""
    fleet.gives_up("a")
    assert woken(fleet, "b") == "b"


def test_stored_permit_is_not_denied() -> None:
    """Its controller may be waking it already, so it is granted even above the limit."""
    fleet = sleeping_fleet(
        waking(1), sleeper("a", amount(1), WAKING), sleeper("b", amount(1), WAKING, permit=amount(1))
    )
    assert woken(fleet, "a", "b") == "ab"
    assert active_wakes(fleet.ledger.nodes["n1"], LATER) == 2


def test_hanging_wake_stops_counting() -> None:
    fleet = herd(1, 1, 1)
    assert woken(fleet, "a", "b") == "a"
    fleet.is_woken("a", reads=True)
    assert woken(fleet, "b", now=Instant(LATER + WAKE_TIMEOUT - 1)) == ""
    assert woken(fleet, "b", now=Instant(LATER + WAKE_TIMEOUT)) == "b"


def test_no_move_for_vm_waiting_for_turn() -> None:
    """There is room for it, which growth leaves to it."""
    running = vm("c", amount(1), actual=amount(1), permit=amount(1), pod=name("c-pod"))
    vms = (sleeper("a", amount(3), WAKING), sleeper("b", amount(3), WAKING), running)
    fleet = sleeping_fleet(waking(1, total=11), *vms)
    assert woken(fleet, "a", "b") == "a"
    book = fleet.ledger.nodes["n1"]
    assert (book.unmet, book.is_strained, book.pressure.has_excess) == (amount(3), False, False)
    assert fleet.grant("c", amount(9)) == amount(4) - fleet.reserved("b")


def test_settings_change_the_number() -> None:
    fleet = herd(1, 1, 1, 1)
    assert woken(fleet, *"abc") == "a"
    fleet.apply(NodeSeen(waking(3)))
    assert woken(fleet, *"bc") == "bc"


@given(st.data())
def test_whole_herd_wakes(data: st.DataObject) -> None:
    """In any order of requests and boots: never more than three at once, and all in the end."""
    fleet = herd(3, *data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=7)))
    waits, reads, book, now = [of.name for of in fleet.vms], list[str](), fleet.ledger.nodes["n1"], LATER
    while waits:
        now = Instant(now + 1)
        if reads:
            fleet.runs(reads.pop(), now=now)
        for of in data.draw(st.permutations(waits)):
            if fleet.asks_to_wake(of, now=now).permit is not ZERO and fleet.is_woken(of, reads=True, now=now):
                waits.remove(of)
                reads.append(of)
        assert active_wakes(book, now) == len(reads) <= 3
        assert len(reads) == 3 or not waits
    assert violations(fleet.ledger) == []
