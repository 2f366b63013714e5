"""Lazy and cached queries give the same plan as querying every VM about every node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.ranking.config import RankingConfig
from scheduler_plugin.constraints.cost import CostLimit
from scheduler_plugin.constraints.model import (
    NodeTerm,
    NodeTraits,
    PodConstraints,
    PodTerm,
    PodTraits,
    Requirement,
    Taint,
    Toleration,
)
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.planner.cost import costs, least_cost
from scheduler_plugin.planner.drain import DrainPlan, SkipReason
from scheduler_plugin.planner.eligible_nodes import EligibleNodes
from scheduler_plugin.planner.plan import MigrationPolicy, RoomNeed, StuckNode, need_inputs
from scheduler_plugin.planner.refused_targets import RefusedTargets
from scheduler_plugin.planner.targets import ActiveMigrations, TargetRule, Targets
from scheduler_plugin.planner.victims import MoveDelays, PlanningTime, Victim
from tests.examples import examples
from tests.scheduler_plugin.ledger.fleet import LATER, name
from tests.scheduler_plugin.planner.planner_fixture import WALL, PlannerFixture, node

TRAITS = (NodeTraits({"zone": "a"}), NodeTraits({"zone": "b"}), NodeTraits({}, (Taint("gpu", "", "NoSchedule"),)))
APP = (Requirement("app", "In", ("db",)),)
KINDS: tuple[tuple[dict[str, Any], PodTraits], ...] = (
    ({}, PodTraits()),
    ({"constraints": PodConstraints(node_terms=(NodeTerm((Requirement("zone", "In", ("b",)),)),))}, PodTraits()),
    ({"constraints": PodConstraints(anti_affinity=(PodTerm("zone", APP),))}, PodTraits({"app": "db"})),
    ({"stays_because": "not autoscaled"}, PodTraits()),
)
VMS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3), st.sampled_from(KINDS)), max_size=6)
FLEETS = st.lists(st.tuples(st.integers(4, 20), st.booleans(), st.sampled_from(TRAITS), VMS), min_size=1, max_size=5)
POLICIES = st.builds(
    MigrationPolicy, out_per_node=st.integers(1, 3), in_per_node=st.integers(1, 2), per_cluster=st.integers(1, 5)
)


class PlainTargets(Targets):
    """Checks every node for every VM."""

    def has_target(self, victim: Victim) -> bool:
        return next(self._accepting(victim, victim.size), None) is not None

    def obstacles(self, victims: Iterable[Victim]) -> Counter[str]:
        for victim in victims:
            large = [room.node for room in self._nodes_with_room(victim.size)]
            if large:
                hindrance = self._eligible.obstacles(victim.claim, victim.vm)
                found = (hindrance(name) for name in large)
                return Counter(f"{victim.vm.name}: {why}" for why in found if why is not None)
        return Counter()


class EagerDrainPlan(DrainPlan):
    """First computes which VMs have a target at all."""

    def relieve(
        self, need: RoomNeed, traffic: ActiveMigrations, targets: Targets, left_alone: SkipReason
    ) -> StuckNode | None:
        node, allowed = need.account.name, traffic.may_leave(need.account.name, self._policy)
        if not allowed:
            return None
        share = need.target_reserve
        targets.restrict(share)
        victims, others = self._victims(need, left_alone, targets)
        housed = [victim for victim in victims if targets.has_target(victim)]
        moved = 0
        for victim in least_cost(housed, need.goal(targets.slack), lambda _: True):
            target = targets.take(node, victim) if moved < allowed else None
            if target is not None:
                why = need.reason if need.excess is None else f"{need.reason}; {costs(victim)}"
                self.moves.append(Move(victim.vm, victim.claim.pod.uid, node, target, why, need.cause))
                moved += 1
        if moved:
            return None
        reasons = {} if housed else targets.obstacles(victims)
        why = "".join(f"; {reason} ({count} nodes)" for reason, count in sorted(reasons.items()))
        if victims and not housed:
            mark = f"{float(1 - share):.0%} of its watermark" if share else "its watermark"
            return StuckNode(node, f"no node has room below {mark} for any of {len(victims)} movable VMs{why}")
        if victims:
            return StuckNode(node, f"none of {len(victims)} movable VMs would relieve it")
        kept = ", ".join(f"{count} {each}" for each, count in sorted(others.items()))
        return StuckNode(node, f"no VM may move: {kept}" if kept else "no VM is on it")


def planned(
    fixture: PlannerFixture, refused: RefusedTargets, plan: type[DrainPlan], targets: type[Targets]
) -> tuple[list[Move], list[StuckNode | None]]:
    """The plan of one round for all nodes under pressure."""
    ledger, policy, now = fixture.ledger, fixture.policy, PlanningTime(LATER, WALL)
    drain, traffic = plan(ledger, policy, now, least_cost), ActiveMigrations.of(ledger, policy)
    places = EligibleNodes(ledger, fixture.constraint_context, refused, CostLimit(), LATER)
    chosen = targets(ledger, traffic, policy, places, TargetRule(RankingConfig(), min))
    return drain.moves, [drain.relieve(need, traffic, chosen, lambda _: None) for need in needs(ledger)]


def needs(ledger: Ledger) -> list[RoomNeed]:
    books = [ledger.nodes[each] for each in sorted(ledger.strained)]
    return [
        RoomNeed(
            book,
            need_inputs(book),
            book.pressure.excess if book.room.is_open else None,
            LATER,
            None,
        )
        for book in books
    ]


@settings(max_examples=examples(20, 150), deadline=None)
@given(FLEETS, POLICIES, st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(0, 4)), max_size=4))
def test_fast_plan_matches_exhaustive_one(
    fleet: list[tuple[int, bool, NodeTraits, list[tuple[int, int, tuple[dict[str, Any], PodTraits]]]]],
    policy: MigrationPolicy,
    refusals: list[tuple[int, int, int]],
) -> None:
    nodes = [node(f"n{at}", total, is_open=is_open) for at, (total, is_open, _, _) in enumerate(fleet)]
    fixture = PlannerFixture(*(replace(each, traits=fleet[at][2]) for at, each in enumerate(nodes)), policy=policy)  # type: ignore[type-var]
    for at, (_, _, _, vms) in enumerate(fleet):
        for number, (size, load, (facts, traits)) in enumerate(vms):
            fixture.add(f"v{at}-{number}", f"n{at}", size, load=load / 2, facts=facts, pod={"traits": traits})
    refused = RefusedTargets()
    for at, number, target in refusals:
        refused.note(fixture.ledger, (name(f"v{at}-{number}"), f"n{target}"), "full", LATER, MoveDelays())
    expected = planned(fixture, refused, EagerDrainPlan, PlainTargets)
    assert planned(fixture, refused, DrainPlan, Targets) == expected


def test_refused_size_may_lack_room_later() -> None:
    """n0 comes first, when only the tainted n3 has room for 6; n1's VM moves to n3; then n2 needs room for 6 again."""
    gpu: dict[str, object] = {"constraints": PodConstraints((Toleration(operator="Exists"),))}
    fixture = PlannerFixture(*(node(f"n{at}", 8) for at in range(3)), replace(node("n3", 11), traits=TRAITS[2]))  # type: ignore[type-var]
    fixture.policy = MigrationPolicy(in_per_node=9, per_cluster=9)
    for of, on, size, facts in (("a", "n0", 6, {}), ("b", "n1", 6, gpu), ("c", "n2", 6, {}), ("d", "n2", 1, {})):
        fixture.add(of, on, size, facts=facts)
    expected = planned(fixture, RefusedTargets(), EagerDrainPlan, PlainTargets)
    assert [move.vm.name for move in expected[0]] == ["b"]
    assert planned(fixture, RefusedTargets(), DrainPlan, Targets) == expected
