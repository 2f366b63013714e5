"""Room that a node keeps for its sleeping VMs, and the order in which many of them wake (B.18)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.guest.sleep import WAKING
from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.accounts.sharing import PATIENCE
from scheduler_plugin.ledger.accounts.waking import WakeNeed, WakingVm, due_before, room_for_waking
from scheduler_plugin.ledger.binding import PreemptionCandidate, nodes_after_preemption
from scheduler_plugin.ledger.events import BindRequested, NodeSeen
from scheduler_plugin.ledger.facts import NodeFacts
from scheduler_plugin.ledger.invariants import violations
from scheduler_plugin.ledger.outcomes import Effect
from scheduler_plugin.ledger.wake_reserve import WakeReserve
from scheduler_plugin.placement.verdict import FITS
from tests.scheduler_plugin.ledger.fleet import LATER, amount, name, node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.ledger.sleeping import SleepingFleet, sleeper, sleeping_fleet

sizes = st.integers(0, 9).map(amount)


def keeping(sleepers: int, total: float = 21, share: str = "0.5") -> NodeFacts:
    """A node of which pods may reserve one less than ``total``, and the reserve for waking is set."""
    facts = node(total=total)
    return replace(facts, policy=replace(facts.policy, wake_reserve=WakeReserve(sleepers, Fraction(share))))


@pytest.mark.parametrize(("sleepers", "kept"), [(0, 0), (1, 4), (2, 7), (3, 8), (9, 8)])
def test_reserve_is_that_of_the_largest_sleepers(sleepers: int, kept: float) -> None:
    vms = [sleeper("a", amount(3)), sleeper("b", amount(4)), sleeper("c", amount(1))]
    room = sleeping_fleet(keeping(sleepers), *vms).ledger.rooms["n1"]
    assert (room.for_waking, room.unreserved - room.free) == (amount(kept), amount(kept))


def test_reserve_is_bounded_by_its_share() -> None:
    """A large VM that sleeps must not keep its node empty."""
    fleet = sleeping_fleet(keeping(1, share="0.1"), sleeper("a", amount(15)))
    assert fleet.ledger.rooms["n1"].for_waking == amount(2)


def test_reserve_is_kept_from_growth_and_new_pods() -> None:
    running = vm("b", amount(1), actual=amount(1), permit=amount(1), pod=name("b-pod"))
    fleet = sleeping_fleet(keeping(1), running, sleeper("a", amount(4)), beside=(plain_pod("x", amount(12), "n1"),))
    new = plain_pod("new", amount(3))
    assert fleet.ledger.filter(new, ["n1"]).fits == []
    assert fleet.ledger.apply(BindRequested(new, "n1"), LATER).verdict is not FITS
    assert fleet.grant("b", amount(9)).cpu == amount(3.9).cpu
    assert fleet.ledger.explain("uid-b", LATER).denied_by == (
        "node n1 has 0 cpu, 0 free of 20 cpu, 20Gi; 5100m cpu, 5Gi more needed; 4 cpu, 4Gi is reserved"
        " for its sleeping VMs"
    )


def test_waking_vm_takes_the_reserve() -> None:
    fleet = sleeping_fleet(keeping(1), sleeper("a", amount(4)), beside=(plain_pod("x", amount(16), "n1"),))
    assert fleet.ledger.rooms["n1"].free == ZERO
    fleet.wakes("a")
    assert fleet.asks_to_wake("a").permit == amount(4)
    assert fleet.ledger.rooms["n1"].for_waking == ZERO


def test_reserve_changes_with_the_settings() -> None:
    fleet = sleeping_fleet(keeping(1), sleeper("a", amount(4)))
    fleet.apply(NodeSeen(keeping(0)))
    assert fleet.ledger.rooms["n1"].for_waking == ZERO


def test_sleeper_keeps_nothing_beside_its_own_permit() -> None:
    """Until the permit is given up, its room is reserved anyway."""
    fleet = sleeping_fleet(keeping(1), sleeper("a", amount(4), permit=amount(4)))
    assert fleet.ledger.rooms["n1"].for_waking == ZERO


def test_preemption_leaves_the_reserve_alone() -> None:
    fleet = sleeping_fleet(keeping(1), sleeper("a", amount(4)), beside=(plain_pod("x", amount(10), "n1"),))
    ledger, candidate = fleet.ledger, PreemptionCandidate("n1", {"uid-x"})
    assert nodes_after_preemption(ledger.rooms, ledger.claims, amount(15), [candidate]) == ["n1"]
    assert nodes_after_preemption(ledger.rooms, ledger.claims, amount(16), [candidate]) == []


def test_small_wakes_before_large() -> None:
    """Both wait. Room for one becomes free, and the larger one asks first."""
    vms = [sleeper("a", amount(4), WAKING), sleeper("b", amount(2), WAKING)]
    fleet = sleeping_fleet(keeping(0, total=11), *vms, beside=(plain_pod("x", amount(9), "n1"),))
    assert [fleet.asks_to_wake(of).permit for of in "ab"] == [ZERO, ZERO]
    fleet.apply(NodeSeen(keeping(0, total=14)))
    assert [fleet.asks_to_wake(of).permit for of in "ab"] == [ZERO, amount(2)]


def test_one_that_does_not_fit_holds_up_nobody() -> None:
    """The smaller VM lacks memory that a larger one does not need; the larger one wakes."""
    vms = [sleeper("a", amount(4, 1), WAKING), sleeper("b", amount(1, 3), WAKING)]
    fleet = sleeping_fleet(keeping(0, total=11), *vms, beside=(plain_pod("x", amount(8, 8), "n1"),))
    assert [fleet.asks_to_wake(of).permit for of in "ab"] == [ZERO, ZERO]
    fleet.apply(NodeSeen(replace(keeping(0), allocatable=amount(14, 11))))
    assert fleet.asks_to_wake("a").permit == amount(4, 1)


class Herd(SleepingFleet):
    """A fleet that is so large that it is checked once per round."""

    def did(self, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        return effects


def test_growth_waits_no_longer_than_a_move_takes() -> None:
    """No room is freed for a VM that needs nearly all of its node and stays there, so its neighbours may grow again."""
    running = vm("b", amount(1), actual=amount(1), permit=amount(1), pod=name("b-pod"))
    large = sleeper("a", amount(18), WAKING)
    fleet = sleeping_fleet(keeping(1, share="0.25"), running, large, beside=(plain_pod("x", amount(5), "n1"),))
    assert fleet.asks_to_wake("a").permit == ZERO
    assert fleet.grant("b", amount(4)) == amount(1)
    soon, later = Instant(LATER + PATIENCE - 1), Instant(LATER + PATIENCE)
    assert (fleet.asks_to_wake("a", now=soon).permit, fleet.grant("b", amount(4), now=soon)) == (ZERO, amount(1))
    assert (fleet.asks_to_wake("a", now=later).permit, fleet.grant("b", amount(4), now=later)) == (ZERO, amount(4))
    book = fleet.ledger.nodes["n1"]
    assert (book.room.for_waking, book.unmet) == (amount(5), amount(18))
    fleet.apply(NodeSeen(keeping(1, total=30)), later)
    assert fleet.asks_to_wake("a", now=later).permit == amount(18)
    assert book.room.for_waking == ZERO


def test_edited_size_does_not_delay_growth() -> None:
    """An owner who asks for more than the node, or an agent that requests nothing for a moment, must not keep its room
    for another 15 minutes.
    """
    running = vm("b", amount(1), actual=amount(1), permit=amount(1), pod=name("b-pod"))
    large = sleeper("a", amount(18), WAKING)
    fleet = sleeping_fleet(keeping(1, share="0.25"), running, large, beside=(plain_pod("x", amount(5), "n1"),))
    fleet.asks_to_wake("a")
    for minutes, size in ((14.0, 90), (14.5, 18)):
        fleet._becomes("a", Instant(LATER + 60.0 * minutes), wakes_with=amount(size))
        assert fleet.asks_to_wake("a", now=Instant(LATER + 60.0 * minutes)).permit == ZERO
    fleet.gives_up("a", now=Instant(LATER + 60.0 * 14.7))
    later = Instant(LATER + PATIENCE)
    assert (fleet.asks_to_wake("a", now=later).permit, fleet.grant("b", amount(4), now=later)) == (ZERO, amount(4))


def test_herd_wakes_as_far_as_there_is_room() -> None:
    """200 VMs are woken at once: most wake, none has only a part, and the rest follow as room becomes free."""
    vms = [sleeper(f"v{number:03}", amount(1 + number % 3), WAKING) for number in range(200)]
    fleet = Herd(keeping(1, total=241), *vms, *(vm_pod(facts.name.name, "n1") for facts in vms))
    waiting, rounds = [facts.name.name for facts in vms], 0
    while waiting:
        rounds += 1
        now = Instant(LATER + rounds)
        granted = {of: fleet.asks_to_wake(of, number=2 * rounds, now=now).permit for of in waiting}
        assert all(permit in (ZERO, fleet.vms[name(of)].wakes_with) for of, permit in granted.items())
        woken = [of for of in waiting if granted[of].any]
        assert woken, "nobody wakes although there is room for one"
        assert fleet.on("n1").within(amount(240))
        left = fleet.ledger.rooms["n1"].unreserved
        assert not any(fleet.vms[name(of)].wakes_with.within(left) for of in waiting if of not in woken)  # type: ignore[union-attr]
        for of in woken:
            assert fleet.is_woken(of, now=now)
        waiting = [of for of in waiting if of not in woken]
        assert violations(fleet.ledger) == []
        # Those that are awake have nothing to do, and sleep again.
        for of in woken:
            fleet.falls_asleep(of, now=now)
            fleet.gives_up(of, number=2 * rounds + 1, now=now)
    assert rounds == 2


turns = st.lists(st.tuples(sizes, st.integers(0, 3), st.sampled_from((1, 10, 100))), max_size=6)


@given(waits=turns.filter(bool), left=sizes)
def test_those_before_never_take_more_than_there_is(waits: list[tuple[Resources, int, int]], left: Resources) -> None:
    """And one of those that fit is always served: the first by turn."""
    sleepers = [WakingVm(str(uid), wish, Instant(since), weight) for uid, (wish, since, weight) in enumerate(waits)]
    due = {
        one.uid: due_before(one, [other for other in sleepers if other is not one], left, amount(9)) for one in sleepers
    }
    assert all(before.room.within(left) for before in due.values())
    fitting = [one for one in sleepers if one.missing.within(left)]
    if fitting:
        first = min(fitting, key=lambda one: one.rank(amount(9)))
        assert (due[first.uid].room + first.missing).within(left)


@given(needs=st.lists(st.builds(WakeNeed, sizes, sizes), max_size=5), sleepers=st.integers(0, 3))
def test_what_was_denied_is_always_kept(needs: list[WakeNeed], sleepers: int) -> None:
    kept = room_for_waking(needs, WakeReserve(sleepers), amount(12))
    assert Resources.sum(need.denied for need in needs).within(kept)
