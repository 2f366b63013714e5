"""The part of a request that an agent gets (S4.5-S4.7), including examples of the original."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import AgentRequest, Metrics
from protocol.units import ZERO, ComputeUnit, Resources
from scheduler_plugin.ledger.events import BindRequested, MigrationSeen, NodeSeen, PermitRequested, PodSeen, VmSeen
from scheduler_plugin.ledger.facts import NodeFacts
from scheduler_plugin.ledger.invariants import overcommitted, violations
from scheduler_plugin.ledger.outcomes import NotReadyError, UnknownPodError
from tests.scheduler_plugin.ledger.fleet import (
    LATER,
    NOW,
    UNIT,
    Fleet,
    amount,
    migration,
    name,
    node,
    plain_pod,
    policy,
    vm,
    vm_pod,
)

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "neon_vectors.json").read_bytes())
SEED_CASES = next(group["cases"] for group in VECTORS["groups"] if group["id"] == "seed_plugin_request")


def fleet_with(free: float, has: float, *, permit: Resources | None = None, maximum: Resources | None = None) -> Fleet:
    """A VM with ``has`` CPUs and GiB on a node with ``free`` of each left."""
    others = plain_pod("others", amount(20 - has - free), "n1")
    return Fleet(node(total=21), others, vm("a", amount(has), permit=permit, maximum=maximum), vm_pod("a", "n1"))


@pytest.mark.parametrize("case", SEED_CASES, ids=lambda case: case["desc"])
def test_the_seed_rule(case: dict[str, dict[str, dict[str, int]]]) -> None:
    given_, expected = case["in"], case["expect"]
    on_node, of_pod = given_["node"], given_["pod"]
    fleet = Fleet(node(total=on_node["total"]), vm("a", amount(of_pod["reserved"])), vm_pod("a", "n1"))
    if of_pod["pressure"]:
        fill = on_node["total"] - on_node["system"] - of_pod["reserved"]
        fleet.apply(PodSeen(plain_pod("others", amount(fill), "n1")))
        fleet.grant("a", amount(of_pod["reserved"] + of_pod["pressure"]), now=NOW)
    others = on_node["reserved"] - of_pod["reserved"]
    fleet.apply(PodSeen(plain_pod("others", amount(others), "n1")))
    assert fleet.ledger.nodes["n1"].unmet == amount(of_pod["pressure"])
    if given_["starting_migration"]:
        fleet.apply(MigrationSeen(migration("a")), NOW)
    decision = fleet.ask("a", amount(int(str(given_["requested"]))), number=1)
    fleet.store(decision)
    fleet.resize("a", decision.permit.at_most(amount(of_pod["reserved"])))
    assert decision.permit == amount(int(str(expected["permit"])))
    assert decision.migrate is bool(given_["starting_migration"])
    claim, book = fleet.ledger.claims["uid-a"], fleet.ledger.nodes["n1"]
    assert (claim.reserved, claim.unmet) == (amount(expected["pod"]["reserved"]), amount(expected["pod"]["pressure"]))
    assert (book.reserved, book.unmet) == (amount(expected["node"]["reserved"]), amount(expected["node"]["pressure"]))


def test_cpu_and_memory_are_decided_independently() -> None:
    others = plain_pod("others", amount(4, 18), "n1")
    fleet = Fleet(node(total=21), others, vm("a", amount(1)), vm_pod("a", "n1"))
    assert fleet.grant("a", amount(6, 6)) == amount(6, 2)
    assert fleet.ledger.claims["uid-a"].unmet == amount(0, 4)


def test_mixed_increase_and_decrease() -> None:
    fleet = fleet_with(free=3, has=4)
    fleet.grant("a", amount(4), number=1)
    fleet.resize("a", amount(4, 2))
    assert fleet.grant("a", amount(9, 2), number=2) == amount(7, 2)
    assert fleet.reserved("a") == amount(7, 2)


def test_permit_never_exceeds_bound() -> None:
    fleet = fleet_with(free=10, has=2, maximum=amount(5))
    assert fleet.grant("a", amount(8)) == amount(5)
    assert fleet.ledger.claims["uid-a"].unmet == ZERO


def test_lowered_bound_keeps_present_size() -> None:
    fleet = fleet_with(free=10, has=4, maximum=amount(3))
    assert fleet.grant("a", amount(4)) == amount(4)


def test_answer_carries_current_compute_unit() -> None:
    fleet = fleet_with(free=1, has=1)
    assert fleet.ask("a", amount(1)).compute_unit == UNIT
    changed = ComputeUnit.parse(1, "4Gi")
    new = policy()
    fleet.apply(NodeSeen(NodeFacts("n1", amount(20), type(new)(changed, new.cpu, new.mem))))
    assert fleet.ask("a", amount(1)).compute_unit == changed


def test_the_last_metrics_are_kept() -> None:
    fleet = fleet_with(free=1, has=1)
    fleet.ledger.apply(PermitRequested("uid-a", AgentRequest(name("a-pod"), amount(1), metrics=Metrics(0.5))), LATER)
    fleet.ledger.apply(PermitRequested("uid-a", AgentRequest(name("a-pod"), amount(1))), LATER)
    assert fleet.ledger.claims["uid-a"].metrics == Metrics(0.5)


# lastPermit ---------------------------------------------------------------------------------------------------------


def test_last_permit_is_floor_without_stored_one() -> None:
    fleet = fleet_with(free=0, has=3)
    decision = fleet.ask("a", amount(6), last_permit=amount(4))
    assert decision.permit == amount(4)
    assert (fleet.reserved("a"), fleet.ledger.claims["uid-a"].unmet) == (amount(4), amount(2))
    assert overcommitted(fleet.ledger) == {"n1": amount(1)}


def test_last_permit_counts_once() -> None:
    fleet = fleet_with(free=0, has=3)
    fleet.store(fleet.ask("a", amount(4), last_permit=amount(4)))
    assert fleet.ask("a", amount(9), last_permit=amount(9)).permit == amount(4)


def test_last_permit_above_the_bound_is_not_believed() -> None:
    fleet = fleet_with(free=0, has=3, maximum=amount(5))
    assert fleet.ask("a", amount(9), last_permit=amount(9)).permit == amount(5)


def test_last_permit_grants_only_what_is_requested() -> None:
    fleet = fleet_with(free=0, has=3)
    assert fleet.ask("a", amount(3), last_permit=amount(9)).permit == amount(3)
    assert fleet.reserved("a") == amount(3)


def test_a_persisted_permit_knows_better_than_the_agent() -> None:
    fleet = fleet_with(free=0, has=3, permit=amount(3))
    assert fleet.ask("a", amount(9), last_permit=amount(9)).permit == amount(3)
    assert overcommitted(fleet.ledger) == {}


def test_freshly_placed_vm_has_no_permit() -> None:
    fleet = Fleet(node(total=4))
    fleet.apply(VmSeen(vm("a", amount(3))), NOW)
    fleet.ledger.apply(BindRequested(vm_pod("a"), "n1"), LATER)
    assert fleet.ask("a", amount(9), last_permit=amount(9)).permit == amount(3)


# Who may ask --------------------------------------------------------------------------------------------------------


def test_unknown_pod_is_reported() -> None:
    fleet = Fleet(node(), plain_pod("plain", amount(1), "n1"))
    with pytest.raises(UnknownPodError, match="no pod with UID uid-a holds a claim"):
        fleet.ask("a", amount(1))
    with pytest.raises(UnknownPodError, match="pod db/plain runs no VM"):
        fleet.ask("plain", amount(1))


def test_unknown_vm_or_node_waits() -> None:
    fleet = Fleet(vm_pod("a", "n1"))
    with pytest.raises(NotReadyError, match="VirtualMachine db/a of pod db/a-pod is not known yet"):
        fleet.ask("a", amount(1))
    fleet.apply(VmSeen(vm("a", amount(1))), NOW)
    with pytest.raises(NotReadyError, match="node n1 of pod db/a-pod is not known yet"):
        fleet.ask("a", amount(1))
    assert fleet.on("n1") == amount(1)


def test_only_running_pod_speaks_for_vm() -> None:
    fleet = Fleet(node(), vm("a", amount(1), pod=name("a-other")), vm_pod("a", "n1"))
    with pytest.raises(NotReadyError, match="VirtualMachine db/a runs in pod db/a-other, not in db/a-pod"):
        fleet.ask("a", amount(2))


def test_two_pod_vm_needs_both_nodes() -> None:
    target = vm_pod("a", "n2", "target")
    fleet = Fleet(node("n1", 10), node("n2", 5), vm("a", amount(2)), vm_pod("a", "n1"), target)
    assert fleet.grant("a", amount(8)) == amount(4)
    assert (fleet.on("n1"), fleet.on("n2")) == (amount(4), amount(4))


def test_two_pods_on_node_share_free_room() -> None:
    fleet = Fleet(node("n1", 10), vm("a", amount(2)), vm_pod("a", "n1"), vm_pod("a", "n1", "second"))
    assert fleet.grant("a", amount(8)) == amount(4.5)
    assert fleet.on("n1") == amount(9)


# Properties ---------------------------------------------------------------------------------------------------------

SIZES = st.integers(1, 12)


@given(free=st.integers(0, 8), has=SIZES, wanted=st.tuples(SIZES, SIZES), number=st.none() | st.just(1))
def test_current_is_within_permit_is_within_requested(
    free: int, has: int, wanted: tuple[int, int], number: int | None
) -> None:
    fleet = fleet_with(free=free, has=has)
    asked = amount(*wanted)
    decision = fleet.ask("a", asked, number=number)
    assert decision.permit.within(asked)
    assert asked.at_most(amount(has)).within(decision.permit)
    assert decision.permit.within(fleet.reserved("a"))
    assert fleet.ask("a", asked, number=number) == decision
    assert overcommitted(fleet.ledger) == {}
    assert violations(fleet.ledger) == []
