"""VMs that make room at the least cost (B.14): single choices, and properties of every choice."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.units import Resources
from scheduler_plugin.ledger.accounts.claims import Claim, ClaimState
from scheduler_plugin.planner.cost import RoomGoal, cost_of, costs, least_cost
from scheduler_plugin.planner.victims import Victim
from tests.scheduler_plugin.ledger.fleet import amount, name, vm_pod

GIB = 1024**3
WATERMARK = EMPTY = amount(40)


def victim(of: str, size: Resources | float, gib: float = 1.0, load: float = 0.0, moved: int = 0) -> Victim:
    """A VM of this size, with this much memory to copy, this load, and this many migrations within the hour."""
    reserved = size if isinstance(size, Resources) else amount(size)
    claim = Claim(vm_pod(of), "n1", ClaimState.BOUND, None, reserved=reserved)
    return Victim(name(of), claim, load, int(gib * GIB), 0, moved)


def chosen(victims: list[Victim], excess: Resources, *, homeless: tuple[str, ...] = ()) -> list[str]:
    found = least_cost(victims, RoomGoal.of(excess, WATERMARK, EMPTY), lambda each: each.vm.name not in homeless)
    return [each.vm.name for each in found]


# Stories -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("victims", "goes"),
    [
        ([victim("light", 4, gib=1), victim("heavy", 4, gib=2)], ["light"]),
        ([victim("idle", 4, load=0.1), victim("busy", 4, load=3.0)], ["idle"]),
        ([victim("busy and light", 4, gib=0.5, load=0.5), victim("idle and heavy", 4, gib=8)], ["busy and light"]),
        ([victim("known", 4, gib=30, load=9.0), victim("silent", 4, gib=0.1, load=inf)], ["known"]),
        ([victim("one", 3, gib=2), *(victim(f"tiny {at}", 1, gib=0.5) for at in range(3))], ["one"]),
        ([victim("huge", 9, gib=30), victim("small a", 1.5), victim("small b", 1.5)], ["small a", "small b"]),
        ([victim("just enough", 2, gib=1.0), victim("leaves room", 4, gib=1.2)], ["leaves room"]),
        ([victim("leaves room", 6, gib=1.2), victim("leaves more", 9, gib=1.3)], ["leaves room"]),
        ([victim("small a", 1), victim("small b", 0.5)], ["small a", "small b"]),
        ([victim("has moved", 4, moved=1), victim("has not", 4, gib=4)], ["has not"]),
        ([victim("has moved twice", 4, moved=2), victim("has moved once", 4, gib=4, moved=1)], ["has moved once"]),
        ([victim("has moved", 4, moved=2), victim("tiny", 0.5)], ["has moved"]),
        ([], []),
    ],
    ids=[
        "the least to copy",
        "the least loaded",
        "memory counts more than a little load",
        "a VM that does not say its load goes last",
        "one move rather than three",
        "two small ones rather than one that is much to copy",
        "a little more room than needed is worth a little more",
        "more room than is useful is worth nothing",
        "all that help where not enough can go",
        "one that has not moved within the hour",
        "the one that has moved less often",
        "one that has moved rather than none that is enough",
        "none where none may go",
    ],
)
def test_cheapest_moves_per_gain_go(victims: list[Victim], goes: list[str]) -> None:
    assert chosen(victims, amount(2)) == goes


def test_a_vm_without_a_place_is_passed_over() -> None:
    victims = [victim("first", 3, gib=1), victim("second", 3, gib=2)]
    assert chosen(victims, amount(2), homeless=("first",)) == ["second"]


def test_often_moved_vm_has_cost() -> None:
    """Users may leave thousands of ended migrations behind."""
    assert chosen([victim("often", 4, moved=5000), victim("never", 4)], amount(4)) == ["never"]
    assert chosen([victim("often", 4, moved=5000)], amount(4)) == ["often"]


def test_only_what_is_short_counts_as_freed() -> None:
    by_memory = victim("much memory", amount(1, 8), gib=2)
    by_cpu = victim("much cpu", amount(8, 4), gib=2)
    assert chosen([by_cpu, by_memory], amount(0, 4)) == ["much memory"]
    assert chosen([by_cpu, by_memory], amount(4, 0)) == ["much cpu"]


def test_drain_moves_cheapest_first() -> None:
    victims = [victim("heavy", 1, gib=5), victim("silent", 1, load=inf), victim("light", 9, gib=1)]
    assert [each.vm.name for each in least_cost(victims, None, lambda _: True)] == ["light", "heavy", "silent"]


# What always holds ---------------------------------------------------------------------------------------------------

SIZES = st.builds(amount, st.integers(0, 8), st.integers(0, 8))
LOADS = st.one_of(st.just(inf), st.floats(0, 16))
KINDS = st.lists(st.tuples(SIZES, st.floats(0.01, 32), LOADS), max_size=7)


def victims_of(kinds: list[tuple[Resources, float, float]]) -> list[Victim]:
    return [victim(f"v{at}", size, gib, load) for at, (size, gib, load) in enumerate(kinds)]


@given(KINDS, SIZES)
def test_enough_go_and_none_in_vain(kinds: list[tuple[Resources, float, float]], excess: Resources) -> None:
    victims = victims_of(kinds)
    going = list(least_cost(victims, RoomGoal.of(excess, WATERMARK, EMPTY), lambda _: True))
    freed = Resources.sum(each.size for each in going)
    if excess.within(Resources.sum(each.size for each in victims)):
        assert excess.within(freed)
        assert not any(excess.within(freed - each.size) for each in going)


@given(KINDS, SIZES, st.randoms(use_true_random=False))
def test_choice_is_order_independent(
    kinds: list[tuple[Resources, float, float]], excess: Resources, random: object
) -> None:
    victims = victims_of(kinds)
    shuffled = sorted(victims, key=lambda _: random.random())  # type: ignore[attr-defined] # hypothesis' random
    need = RoomGoal.of(excess, WATERMARK, EMPTY)
    assert list(least_cost(shuffled, need, lambda _: True)) == list(least_cost(victims, need, lambda _: True))


@given(KINDS, SIZES)
def test_chosen_victim_is_cheapest(kinds: list[tuple[Resources, float, float]], excess: Resources) -> None:
    victims, need = victims_of(kinds), RoomGoal.of(excess, WATERMARK, EMPTY)
    going = list(least_cost(victims, need, lambda _: True))
    for each in victims:
        if excess.within(each.size):
            assert cost_of_all(going) * need.share(each.size) <= cost_of(each) * share_of_all(going, need)


def cost_of_all(going: list[Victim]) -> float:
    return sum(map(cost_of, going))


def share_of_all(going: list[Victim], need: RoomGoal) -> float:
    return need.share(Resources.sum(each.size for each in going))


@given(KINDS, SIZES, st.integers(0, 6), st.floats(0, 8), st.integers(0, 8 * GIB))
def test_higher_report_does_not_start_move(
    kinds: list[tuple[Resources, float, float]], excess: Resources, at: int, load: float, mem: int
) -> None:
    """Lower metrics mean more likely to go (S4.8)."""
    victims, need = victims_of(kinds), RoomGoal.of(excess, WATERMARK, EMPTY)
    if at >= len(victims):
        return
    before = [each.vm for each in least_cost(victims, need, lambda _: True)]
    busier = replace(victims[at], load=victims[at].load + load, to_copy=victims[at].to_copy + mem)
    after = [each.vm for each in least_cost([*victims[:at], busier, *victims[at + 1 :]], need, lambda _: True)]
    assert busier.vm in before or busier.vm not in after


@pytest.mark.parametrize(
    ("slack", "useful"), [(40, 6), (8, 5), (4, 3), (2, 2), (0, 2)], ids=["empty", "less", "tight", "no more", "full"]
)
def test_useful_room_is_limited_by_target(slack: float, useful: float) -> None:
    assert RoomGoal.of(amount(2), WATERMARK, amount(slack)) == RoomGoal(amount(2), amount(useful))


def test_waiting_pods_raise_useful_room() -> None:
    assert RoomGoal.of(amount(2), WATERMARK, EMPTY, wanted=amount(3)).useful == amount(7)


def test_move_reports_gain_cost_and_repetition() -> None:
    moves = "moving it frees 4 vCPU and 4 GiB and copies 1 GiB"
    assert costs(victim("a", 4, load=inf)) == f"{moves}; its load is unknown"
    assert costs(victim("a", 4, load=0.26)) == f"{moves}; its load is 0.3"
    moved = costs(victim("a", 4, load=0.00892, moved=1))
    assert moved == f"{moves}; it is idle; move 2 within an hour"
