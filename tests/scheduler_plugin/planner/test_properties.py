"""Properties of every fleet: reservations and limits hold, and no more VMs move than needed."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.units import Resources
from scheduler_plugin.ledger.accounts.claims import Claim, ClaimState
from scheduler_plugin.planner.cost import helps, select_enough
from scheduler_plugin.planner.plan import MigrationPolicy
from scheduler_plugin.planner.victims import Victim
from tests.examples import examples
from tests.scheduler_plugin.ledger.fleet import amount, name, vm_pod
from tests.scheduler_plugin.planner.planner_fixture import PlannerFixture, node

SIZES = st.builds(amount, st.integers(0, 8), st.integers(0, 8))


def victim(number: int, size: Resources) -> Victim:
    claim = Claim(vm_pod(f"v{number}"), "n1", ClaimState.BOUND, None, reserved=size)
    return Victim(name(f"v{number}"), claim, inf, 0, number, 0)


@given(st.lists(SIZES, max_size=8), SIZES)
def test_chosen_set_is_sufficient_and_minimal(sizes: list[Resources], excess: Resources) -> None:
    victims = [victim(number, size) for number, size in enumerate(sizes)]
    chosen = select_enough(victims, excess, lambda _: True)
    relieved = Resources.sum(each.size for each in chosen)
    assert [each for each in victims if each in chosen] == chosen
    if excess.within(Resources.sum(sizes)):
        assert excess.within(relieved)
        for each in chosen:
            assert not excess.within(relieved - each.size), "one could stay"
    else:
        short = excess.minus_or_zero(relieved)
        assert not any(helps(each, short) for each in victims if each not in chosen), "one more could help"


FLEETS = st.lists(
    st.tuples(
        st.integers(4, 20), st.booleans(), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 30)), max_size=6)
    ),
    min_size=1,
    max_size=6,
)
POLICIES = st.builds(
    MigrationPolicy,
    out_per_node=st.integers(0, 3),
    in_per_node=st.integers(0, 3),
    per_cluster=st.one_of(st.integers(0, 5), st.fractions(Fraction(1, 100), 1)),
    drain_cordoned=st.booleans(),
)


@settings(max_examples=examples(30, 60))
@given(FLEETS, POLICIES)
def test_plans_are_feasible_without_new_pressure(
    fleet: list[tuple[int, bool, list[tuple[int, int]]]], policy: MigrationPolicy
) -> None:
    fixture = PlannerFixture(
        *(node(f"n{at}", total, is_open=is_open) for at, (total, is_open, _) in enumerate(fleet)), policy=policy
    )
    for at, (_, _, vms) in enumerate(fleet):
        for number, (size, load) in enumerate(vms):
            fixture.add(f"v{at}-{number}", f"n{at}", size, load=load / 10)
    strained = set(fixture.ledger.strained)
    plan = fixture.settled()
    for move in plan.moves:
        fixture.carry_out(move)
    targets, sources = Counter(move.target for move in plan.moves), Counter(move.source for move in plan.moves)
    assert len({move.vm for move in plan.moves}) == len(plan.moves) <= policy.at_once(len(fixture.ledger.rooms))
    assert max(targets.values(), default=0) <= policy.in_per_node
    assert max(sources.values(), default=0) <= policy.out_per_node
    assert sources.keys() <= strained
    for target in targets:
        room = fixture.ledger.rooms[target]
        assert target not in strained
        assert room.is_open
        assert room.reserved.within(room.watermark)
    assert not {stuck.node for stuck in plan.stuck} & sources.keys()
    for cleared in fixture.settled().stuck:
        assert cleared.node in strained
