"""VMs are sent to nodes that accept them, and not again to nodes that recently refused them."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from msgspec import structs

from protocol.messages import ObjectName
from scheduler_plugin.constraints.checker import ConstraintContext
from scheduler_plugin.constraints.model import (
    NodeTerm,
    NodeTraits,
    PodConstraints,
    PodTerm,
    PodTraits,
    Requirement,
    Taint,
    Toleration,
    Weighted,
)
from scheduler_plugin.ledger.events import MigrationGone, NodeSeen, PodGone, PodSeen, VmSeen
from scheduler_plugin.ledger.facts import MigrationPhase
from scheduler_plugin.planner.plan import Cancel, MigrationPolicy, MovePlan, StuckNode
from scheduler_plugin.planner.victims import MoveDelays
from tests.scheduler_plugin.ledger.fleet import migration, name
from tests.scheduler_plugin.ledger.moving import target_pod
from tests.scheduler_plugin.planner.planner_fixture import PlannerFixture, node

CONTROL_PLANE = NodeTraits({"zone": "a"}, (Taint("node-role.kubernetes.io/control-plane", "", "NoSchedule"),))
ZONE_A, ZONE_B = NodeTraits({"zone": "a"}), NodeTraits({"zone": "b"})
IN_B = NodeTerm((Requirement("zone", "In", ("b",)),))
APP = (Requirement("app", "In", ("db",)),)
UIDS = count()
MANY = MigrationPolicy(per_cluster=9, out_per_node=9, in_per_node=9)


def fleet_of(policy: MigrationPolicy | None = None, **traits: NodeTraits) -> PlannerFixture:
    """n1 has 10. The other nodes have 20, are empty, and have these ``traits``."""
    fixture = PlannerFixture(node("n1"), *(node(each, 20) for each in traits), policy=policy)
    for each, known in traits.items():
        facts = fixture.ledger.nodes[each].facts
        assert facts is not None
        fixture.fleet.apply(NodeSeen(replace(facts, traits=known)))
    return fixture


def moved(fixture: PlannerFixture, facts: dict[str, Any] | None = None, **traits: Any) -> dict[str, str] | str:
    """Target of the VM ``a``, or why it stays."""
    fixture.add("a", "n1", 8, facts=facts, pod={"traits": PodTraits(**traits)})
    plan = fixture.settled()
    return {move.vm.name: move.target for move in plan.moves} if plan.moves else plan.stuck[0].why


STAYS = "no node has room below 90% of its watermark for any of 1 movable VMs; a: "


def test_tainted_control_plane_is_skipped() -> None:
    assert moved(fleet_of(n2=CONTROL_PLANE, n3=ZONE_B)) == {"a": "n3"}


def test_unplaceable_vm_is_explained() -> None:
    fixture = fleet_of(n2=CONTROL_PLANE, n3=NodeTraits(faults=("not ready",)))
    taint = "node(s) had untolerated taint node-role.kubernetes.io/control-plane:NoSchedule (1 nodes)"
    assert moved(fixture) == f"{STAYS}{taint}; a: the node is not ready (1 nodes)"


@pytest.mark.parametrize("by", ["vm", "pod"])
def test_vm_or_pod_toleration_opens_node(by: str) -> None:
    tolerations = (Toleration(operator="Exists"),)
    facts = {"constraints": PodConstraints(tolerations)} if by == "vm" else None
    traits = {"tolerations": tolerations} if by == "pod" else {}
    assert moved(fleet_of(n2=CONTROL_PLANE), facts, **traits) == {"a": "n2"}


def test_vm_follows_its_volumes() -> None:
    fixture = fleet_of(n2=ZONE_A, n3=ZONE_B)
    fixture.constraint_context = ConstraintContext(
        claims={ObjectName("db", "data"): "pv-1", ObjectName("db", "other"): "pv-2"},
        volumes={ObjectName("", "pv-1"): (IN_B,)},
    )
    assert moved(fixture, volumes=("data", "other", "unknown")) == {"a": "n3"}


def test_namespaces_match_by_labels() -> None:
    far = PodTerm("zone", APP, namespace_selector=(Requirement("team", "In", ("a",)),))
    fixture = fleet_of(n2=ZONE_A, n3=ZONE_B)
    fixture.constraint_context = ConstraintContext({ObjectName("", "db"): {"team": "a"}})
    fixture.add("b", "n2", 1, pod={"traits": PodTraits({"app": "db"})})
    assert moved(fixture, {"constraints": PodConstraints(anti_affinity=(far,))}) == {"a": "n3"}


def test_a_preference_orders_the_nodes_that_have_room() -> None:
    wants_b = {"constraints": PodConstraints(preferred_nodes=(Weighted(1, IN_B),))}
    fixture = fleet_of(n2=ZONE_A, n3=ZONE_B)
    fixture.add("b", "n3", 7)
    assert moved(fixture, wants_b) == {"a": "n2"}, "n3 would be above its watermark"
    roomy = fleet_of(n2=ZONE_A, n3=ZONE_B)
    roomy.add("b", "n3", 4)
    assert moved(roomy, wants_b) == {"a": "n3"}, "though it is the fuller one"


def test_anti_affinity_holds_within_round() -> None:
    apart: dict[str, object] = {"constraints": PodConstraints(anti_affinity=(PodTerm("zone", APP),))}
    fixture = fleet_of(MANY, n2=ZONE_A, n3=ZONE_B)
    for of in ("a", "b"):
        fixture.add(of, "n1", 3, facts=apart, pod={"traits": PodTraits({"app": "db"})})
    fixture.add("big", "n1", 7, facts={"stays_because": "not autoscaled"})
    assert sorted(fixture.moves().values()) == ["n2", "n3"]


def test_incoming_vm_room_counts() -> None:
    fixture = fleet_of(MANY, n2=ZONE_A, n3=ZONE_B)
    apart: dict[str, object] = {"constraints": PodConstraints(anti_affinity=(PodTerm("zone", APP),))}
    for of in ("a", "b"):
        fixture.add(of, "n1", 4, facts=apart, pod={"traits": PodTraits({"app": "db"})})
    (first,) = fixture.settled().moves
    fixture.carry_out(first)
    fixture.add("c", "n1", 4, load=9.0)
    (second,) = fixture.moves().values()
    assert {first.target, second} == {"n2", "n3"}


# What is learned ------------------------------------------------------------------------------------------------------


def refused_move(fixture: PlannerFixture, why: str = "0/2 nodes are available") -> str:
    """A move is ordered, and kube-scheduler refuses its target pod. Returns the node."""
    (move,) = fixture.settled().moves
    fixture.carry_out(move)
    pod = target_pod(uid=f"uid-t{next(UIDS)}")
    fixture.fleet.apply(PodSeen(replace(pod, unschedulable=why)))
    return move.target


def waiting_uid(fixture: PlannerFixture) -> str:
    target = fixture.ledger.migrations[ours(fixture)].waiting_target
    assert target is not None
    return target.uid


def ours(fixture: PlannerFixture) -> ObjectName:
    (each,) = fixture.ledger.migrations
    return each


def test_refused_target_is_replaced() -> None:
    fixture = fleet_of(n2=ZONE_A, n3=ZONE_B)
    fixture.add("a", "n1", 8)
    first = refused_move(fixture)
    assert fixture.plan().cancels == (), "its first word may be too early"
    (cancel,) = fixture.plan(after=2).cancels
    why = f"kube-scheduler does not place it on node {first}: 0/2 nodes are available"
    assert cancel == Cancel(ours(fixture), why)
    assert fixture.plan(after=1).cancels == (cancel,), "said until it is done, learned once"
    failed = migration("a", MigrationPhase.FAILED)
    fixture.migration(replace(failed, target=first, is_terminating=True))
    fixture.plan(after=1)
    assert [each.failures for each in fixture.planner.refused.of(name("a")).values()] == [1]
    fixture.fleet.apply(MigrationGone(cancel.migration))
    assert {first, *fixture.moves().values()} == {"n2", "n3"}


def test_unplaced_target_times_out() -> None:
    fixture = fleet_of(n2=ZONE_A)
    fixture.add("a", "n1", 8)
    refused_move(fixture, why="")
    assert (fixture.plan().cancels, fixture.plan(after=9).cancels) == ((), ())
    (cancel,) = fixture.plan(after=1).cancels
    assert cancel.why == "kube-scheduler does not place it on node n2: its target pod has waited for 10 s"


def test_time_counts_only_while_pods_are_seen() -> None:
    fixture = fleet_of(n2=ZONE_A)
    fixture.add("a", "n1", 8)
    refused_move(fixture)
    fixture.plan()
    fixture.constraint_context = ConstraintContext(is_current=False)
    assert fixture.plan(after=60).cancels == ()
    fixture.constraint_context = ConstraintContext()
    assert (fixture.plan().cancels, len(fixture.plan(after=2).cancels)) == ((), 1)


def test_placed_or_gone_target_is_kept() -> None:
    fixture = fleet_of(n2=ZONE_A)
    fixture.add("a", "n1", 8)
    refused_move(fixture)
    fixture.plan()
    uid = waiting_uid(fixture)
    fixture.fleet.apply(PodSeen(target_pod(uid=uid)))
    assert fixture.plan(after=2).cancels == ()
    fixture.fleet.apply(PodGone(uid))
    assert fixture.plan(after=20).cancels == ()
    fixture.fleet.apply(PodSeen(target_pod("n2", uid="uid-second")))
    assert fixture.plan(after=20).cancels == ()


def failed_again(fixture: PlannerFixture) -> None:
    """Another attempt for the pair, which is refused and abandoned."""
    refused_move(fixture)
    fixture.plan()
    (cancel,) = fixture.plan(after=2).cancels
    fixture.fleet.apply(PodGone(waiting_uid(fixture)))
    fixture.fleet.apply(MigrationGone(cancel.migration))


def test_refused_pair_backs_off_and_expires() -> None:
    fixture = fleet_of(MigrationPolicy(settle=10.0, delays=MoveDelays(backoff=60.0, max_backoff=100.0)), n2=ZONE_A)  # type: ignore[arg-type] # Seconds
    fixture.add("a", "n1", 8)
    failed_again(fixture)
    stuck = f"{STAYS}was recently refused there: 0/2 nodes are available (1 nodes)"
    assert fixture.settled() == MovePlan(stuck=(StuckNode("n1", stuck),))
    assert (fixture.plan(after=48).moves, len(fixture.plan(after=2).moves)) == ((), 1)
    failed_again(fixture)
    assert [each.failures for each in fixture.planner.refused.of(name("a")).values()] == [2]
    assert (fixture.settled().moves, fixture.plan(after=88).moves, len(fixture.plan(after=3).moves)) == ((), (), 1)
    fixture.plan(after=200)
    assert len(fixture.planner.refused) == 0


def test_manual_migration_teaches_nothing() -> None:
    fixture = fleet_of(n2=ZONE_A)
    fixture.add("a", "n1", 8)
    fixture.migration(replace(migration("a", MigrationPhase.PENDING, is_ours=False), target="n2"))
    fixture.plan()
    fixture.migration(replace(migration("a", MigrationPhase.FAILED, is_ours=False), target="n2", version=9))
    fixture.plan(after=1)
    assert len(fixture.planner.refused) == 0


@pytest.mark.parametrize("changed", ["node", "vm"])
def test_changed_node_or_vm_resets_refusal(changed: str) -> None:
    fixture = fleet_of(n2=ZONE_A)
    fixture.add("a", "n1", 8)
    failed_again(fixture)
    assert fixture.moves() == {}
    if changed == "node":
        facts = fixture.ledger.nodes["n2"].facts
        assert facts is not None
        fixture.fleet.apply(NodeSeen(replace(facts, traits=ZONE_B)))
    else:
        known = fixture.ledger.vms[name("a")].facts
        assert known is not None
        demands = PodConstraints((Toleration(operator="Exists"),))
        fixture.fleet.apply(VmSeen(structs.replace(known, version=200, constraints=demands)), fixture.now)
    assert fixture.moves() == {"a": "n2"}


def test_unplaced_failure_is_learned() -> None:
    fixture = fleet_of(n2=ZONE_A)
    fixture.add("a", "n1", 8)
    (move,) = fixture.settled().moves
    fixture.carry_out(move)
    fixture.plan()
    facts = replace(migration("a", MigrationPhase.FAILED), target="n2", ended_at=0.0)
    fixture.migration(facts)
    fixture.plan(after=1)
    refused = fixture.planner.refused.of(name("a"))
    assert {node: each.why for node, each in refused.items()} == {"n2": "no node was found for its target pod"}


# Who is moved by the scheduler itself ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opt_in", "wish", "expected"),
    [
        (False, None, {"a": "n2"}),
        (False, False, "no VM may move: 1 kept in place by a label or annotation"),
        (True, None, "no VM may move: 1 not opted in"),
        (True, True, {"a": "n2"}),
    ],
)
def test_settings_choose_opt_in_or_out(opt_in: bool, wish: bool | None, expected: dict[str, str] | str) -> None:
    fixture = fleet_of(MigrationPolicy(opt_in=opt_in), n2=ZONE_A)
    assert moved(fixture, {"auto_migration": wish}) == expected
