"""A node that is short of room asks idle VMs to sleep, for room that its other VMs cannot give back otherwise."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from msgspec import structs

from protocol.messages import AgentRequest
from protocol.units import ZERO, Instant, MilliCpu, Resources
from scheduler_plugin.ledger.accounts.claims import SHRINK_TIMEOUT, FreedRoom
from scheduler_plugin.ledger.accounts.early_sleep import ASK_INTERVAL, MAX_CONCURRENT
from scheduler_plugin.ledger.accounts.sharing import FAST_POLL, NO_SHRINK_REQUEST, ShrinkRequest, promised
from scheduler_plugin.ledger.events import MigrationSeen, NodeSeen, PermitRequested, PodSeen, VmSeen
from scheduler_plugin.ledger.facts import RUNNING, NodeFacts
from scheduler_plugin.ledger.wake_reserve import NO_RESERVE, WakeReserve
from tests.scheduler_plugin.ledger.fleet import LATER, amount, migration, name, node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.ledger.sleeping import SleepingFleet

AROUND = vm_pod("a").requests
"""Requests of the pod of a VM, whatever the VM has."""


def reserving(reserve: WakeReserve = NO_RESERVE) -> NodeFacts:
    """Room for a hundred, a watermark at seventy; VMs are asked to shrink from 63 on, and to sleep from 70 on."""
    facts = node(total=101)
    return replace(facts, policy=replace(facts.policy, wake_reserve=reserve))


class Idlers:
    """VMs on one node, which send requests in turn."""

    def __init__(self, facts: NodeFacts | None = None, **sizes: float) -> None:
        vms = [vm(of, amount(size), pod=name(f"{of}-pod"), maximum=amount(200)) for of, size in sizes.items()]
        self.fleet = SleepingFleet(facts or reserving(), *vms, *[vm_pod(of, "n1") for of in sizes])
        self.sizes, self.number = dict(sizes), 0

    def asks(self, of: str, size: float, needs: Resources | None = None, after: float = 0.0) -> ShrinkRequest:
        """The VM's agent requests ``size`` and returns what the scheduler asks it to free; ``after`` seconds."""
        self.number += 1
        request = AgentRequest(name(f"{of}-pod"), amount(size), sequence=self.number, needs=needs)
        decision = self.fleet.ledger.apply(PermitRequested(f"uid-{of}", request), Instant(LATER + after))
        self.fleet.did(decision.effects)
        self.fleet.store(decision)
        return ShrinkRequest(decision.shrink_to, decision.ask_again)

    def idles(self, of: str, after: float = 0.0, mem: float | None = None) -> ShrinkRequest:
        """The VM may sleep; awake it needs all that it has, or of memory ``mem``."""
        size = self.sizes[of]
        return self.asks(of, size, Resources(MilliCpu(0), amount(size if mem is None else mem).mem), after)

    def sleeps(self, of: str, after: float = 0.0) -> None:
        """The VM falls asleep, and its agent gives its permit up."""
        self.fleet.falls_asleep(of, now=Instant(LATER + after))
        self.asks(of, 0, after=after)

    def promised(self, after: float = 0.0) -> Resources:
        return promised(self.fleet.ledger.nodes["n1"], Instant(LATER + after))


SLEEP = ShrinkRequest(ZERO, FAST_POLL)


def test_late_request_of_awake_vm_offers_no_sleep() -> None:
    """An agent gives up its permit, the VM wakes nevertheless, and the agent sends a request before it knows."""
    fleet = Idlers(a=40, b=60)
    assert fleet.idles("b") == SLEEP
    fleet.fleet.falls_asleep("b", now=LATER)
    fleet.fleet.wakes("b", now=LATER)
    fleet.fleet._becomes("b", LATER, phase=RUNNING, use=amount(60), actual=amount(60), wakes_with=None)
    assert fleet.asks("b", 0, needs=amount(30)).shrink_to != ZERO


def test_idle_vm_sleeps_for_a_denied_one() -> None:
    """The idle VM is asked, promises its resources and sleeps; then the denied VM gets its room."""
    fleet = Idlers(a=60, b=30)
    assert fleet.idles("b") == SLEEP, "above the watermark"
    fleet = Idlers(a=40, b=20, c=30)
    fleet.asks("a", 60)
    assert fleet.idles("b") == SLEEP
    assert fleet.promised() == amount(20) - AROUND
    fleet.sleeps("b", after=8.0)
    assert fleet.fleet.ledger.explain("uid-b", Instant(LATER + 8.0)).last_freed == FreedRoom(
        amount(20), Instant(LATER + 8.0), (name("a"),)
    )
    assert (fleet.fleet.reserved("b"), fleet.promised(8.0)) == (AROUND, ZERO)
    fleet.asks("a", 60, after=9.0)
    assert fleet.fleet.reserved("a") == amount(60)


def test_idle_vm_sleeps_for_one_that_wakes() -> None:
    fleet = Idlers(a=50, b=25, c=20)
    fleet.sleeps("c")
    fleet.asks("a", 70)
    fleet.fleet.wakes("c")
    fleet.asks("c", 20)
    assert not fleet.fleet.is_woken("c")
    assert fleet.idles("b") == SLEEP
    fleet.sleeps("b", after=8.0)
    fleet.asks("c", 20, after=9.0)
    assert fleet.fleet.is_woken("c", now=Instant(LATER + 9.0))


def test_nobody_sleeps_while_there_is_room() -> None:
    """Near the watermark the largest VM is asked to report again soon, but it sleeps only if room is short."""
    assert Idlers(a=20, b=20).idles("b") == NO_SHRINK_REQUEST
    assert Idlers(a=44, b=25).idles("b") == ShrinkRequest(None, FAST_POLL)
    assert Idlers(a=46, b=25).idles("b") == SLEEP


def test_awake_vms_give_first() -> None:
    """Neighbours' offers without sleep are enough, and so is what the VM itself has beyond its need."""
    fleet = Idlers(a=50, b=25)
    assert fleet.asks("a", 50, amount(10)).shrink_to == amount(38)
    assert fleet.idles("b") == ShrinkRequest(None, FAST_POLL)
    fleet = Idlers(a=50, b=25)
    fleet.asks("a", 50, amount(10, 50))
    assert fleet.idles("b", mem=5).shrink_to == amount(25, 13)
    assert fleet.asks("b", 25).shrink_to is None


def test_fewest_sleep_the_lightest_and_largest_first() -> None:
    fleet = Idlers(a=50, b=10, c=12, d=12)
    heavy = structs.replace(fleet.fleet.vms[name("c")], version=9, weight=20)
    fleet.fleet.vms[name("c")] = heavy
    fleet.fleet.apply(VmSeen(heavy))
    for of in "bcd":
        # All were asked long ago, and may be again ten seconds from now.
        fleet.fleet.ledger.claims[f"uid-{of}"].sleep_asked_at = Instant(LATER + 10.0 - ASK_INTERVAL)
        assert fleet.idles(of).shrink_to is None
    assert [fleet.idles(of, after=10.0).shrink_to for of in "cbd"] == [None, ZERO, ZERO], "14 are missing"


def test_promise_of_sleepless_vm_expires() -> None:
    """Nor is the VM asked again for 15 minutes; another VM is asked instead."""
    fleet = Idlers(a=49, b=25, c=20)
    for after in (0.0, 20.0):
        assert [fleet.idles(of, after=after).shrink_to for of in "bc"] == [ZERO, None]
    assert fleet.promised(29.0) == amount(25) - AROUND
    assert fleet.idles("b", after=SHRINK_TIMEOUT).shrink_to is None
    assert fleet.promised(SHRINK_TIMEOUT) == ZERO
    assert fleet.idles("c", after=SHRINK_TIMEOUT) == SLEEP
    assert fleet.idles("b", after=ASK_INTERVAL - 1).shrink_to is None
    assert fleet.idles("b", after=ASK_INTERVAL) == SLEEP


def test_vm_that_was_woken_soon_is_left_alone() -> None:
    fleet = Idlers(a=50, b=25)
    assert fleet.idles("b") == SLEEP
    fleet.sleeps("b", after=8.0)
    fleet.fleet.wakes("b", now=Instant(LATER + 60.0))
    fleet.asks("b", 25, after=60.0)
    assert fleet.fleet.is_woken("b", now=Instant(LATER + 60.0))
    assert fleet.idles("b", after=300.0).shrink_to is None
    assert fleet.idles("b", after=ASK_INTERVAL) == SLEEP


@pytest.mark.parametrize(("sleepers", "asked"), [(1, ZERO), (9, None)])
def test_no_sleep_request_just_for_wake_reserve(sleepers: int, asked: Resources | None) -> None:
    """Below the watermark, a VM is denied room only because of the reserve for sleeping VMs. Another sleeping VM could
    increase that reserve.
    """
    fleet = Idlers(reserving(WakeReserve(sleepers, Fraction(1))), a=30, b=10, c=45)
    fleet.sleeps("c")
    fleet.asks("a", 60)
    assert fleet.fleet.on("n1").within(amount(63))
    assert fleet.idles("b").shrink_to == asked


def test_requests_that_stay_free_nothing() -> None:
    fleet = Idlers(a=50, b=25)
    fleet.fleet.apply(PodSeen(replace(vm_pod("b", "n1"), requests=amount(25))))
    assert fleet.idles("b").shrink_to is None


def test_unneeded_vm_is_not_asked_again() -> None:
    """Its neighbour has shrunk: the node is nearly at its watermark, and below that no VM is asked to sleep."""
    fleet = Idlers(a=50, b=25)
    assert fleet.idles("b") == SLEEP
    fleet.fleet.resize("a", amount(44))
    fleet.asks("a", 44, after=4.0)
    assert (fleet.idles("b", after=5.0), fleet.promised(5.0)) == (NO_SHRINK_REQUEST, ZERO)


def test_few_fall_asleep_at_once() -> None:
    fleet = Idlers(None, a=60, **{f"b{number}": 5 for number in range(8)})
    fleet.asks("a", 100)
    asked = [fleet.idles(f"b{number}").shrink_to for number in range(8)]
    assert asked.count(ZERO) == MAX_CONCURRENT
    fleet.sleeps("b0", after=8.0)
    asked = [fleet.idles(f"b{number}", after=8.0).shrink_to for number in range(1, 8)]
    assert asked.count(ZERO) == MAX_CONCURRENT


def test_sleeper_keeps_its_offer_until_room_is_free() -> None:
    """Its smaller permit is not stored yet: no other VM sleeps for the same room."""
    fleet = Idlers(a=44, b=25, c=25)
    fleet.idles("b")
    fleet.fleet.falls_asleep("b", now=Instant(LATER + 8.0))
    fleet.number += 1
    request = AgentRequest(name("b-pod"), ZERO, sequence=fleet.number)
    decision = fleet.fleet.ledger.apply(PermitRequested("uid-b", request), Instant(LATER + 8.0))
    assert fleet.fleet.reserved("b") == amount(25)
    assert fleet.idles("c", after=8.0).shrink_to is None
    fleet.fleet.store(decision)
    assert fleet.idles("c", after=8.0).shrink_to is None
    fleet.asks("a", 100, after=9.0)
    assert fleet.idles("c", after=9.0).shrink_to == ZERO, "a is denied now"


def test_vm_on_its_way_out_is_not_asked() -> None:
    fleet = Idlers(a=50, b=25)
    fleet.fleet.apply(MigrationSeen(migration("b", to="n2")))
    assert fleet.idles("b").shrink_to is None


def test_cordoned_node_asks_nobody() -> None:
    fleet = Idlers(a=50, b=25)
    fleet.fleet.apply(NodeSeen(replace(reserving(), is_open=False)))
    assert fleet.idles("b").shrink_to is None


def test_pod_without_bounds_asks_nobody() -> None:
    """No sleeping VM could free room for such a pod."""
    fleet = Idlers(a=50, b=25)
    fleet.fleet.apply(PodSeen(replace(plain_pod("x", amount(1), "n1"), unreadable="no", is_bounded=False)))
    assert fleet.idles("b").shrink_to is None
