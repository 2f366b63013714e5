"""The explanation of a VM's size for users."""

from __future__ import annotations

import pytest

from protocol.messages import AgentRequest, Metrics
from protocol.units import ZERO, Instant
from scheduler_plugin.ledger.accounts.node_account import Pressure
from scheduler_plugin.ledger.events import MigrationSeen, MoveRequested, PermitRequested
from scheduler_plugin.ledger.explain import ClaimExplanation
from scheduler_plugin.ledger.moves import Creation, Move
from scheduler_plugin.ledger.outcomes import UnknownPodError
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, amount, migration, name, node, plain_pod, vm, vm_pod


def test_denial_names_node_and_time() -> None:
    fleet = Fleet(node(), vm("a", amount(2), actual=amount(1)), vm_pod("a", "n1"), plain_pod("others", amount(6), "n1"))
    request = AgentRequest(name("a-pod"), amount(4, 2), metrics=Metrics(3.5), sequence=1)
    fleet.ledger.apply(PermitRequested("uid-a", request), LATER)
    fleet.ask("a", amount(4, 2), number=2, now=Instant(LATER + 10))
    assert fleet.ledger.explain("uid-a", Instant(LATER + 12)) == ClaimExplanation(
        floors={
            "permit the agent may hold": amount(2),
            "permit being written": amount(3, 2),
            "permit the API may hold": amount(3, 2),
            "spec.guest use": amount(2),
            "current size of the guest": amount(1),
            "requests of the pod": vm_pod("a").requests,
        },
        denied_for=12.0,  # type: ignore[arg-type] # Seconds is a float at run time
        denied_by="node n1 has 0 cpu, 1Gi free of 9 cpu, 9Gi; 1 cpu, 0 more needed",
        promised=ZERO,
        last_freed=None,
    )
    claim, room = fleet.ledger.claims["uid-a"], fleet.ledger.rooms["n1"]
    assert (claim.reserved, claim.unmet, claim.metrics) == (amount(3, 2), amount(1, 0), Metrics(3.5))
    assert fleet.ledger.nodes["n1"].pressure == Pressure(
        logical=room.reserved.minus_or_zero(room.watermark), capacity=amount(1, 0), migrating=ZERO, slack=ZERO
    )


def test_a_satisfied_vm_is_denied_nothing() -> None:
    fleet = Fleet(node(), vm("a", amount(2)), vm_pod("a", "n1"))
    fleet.grant("a", amount(3), number=1)
    told = fleet.ledger.explain("uid-a", LATER)
    assert (fleet.ledger.vms[name("a")].is_stored, fleet.ledger.claims["uid-a"].unmet) == (True, ZERO)
    assert (told.denied_for, told.denied_by) == (None, None)


def test_migrating_vm_is_told_in_answer() -> None:
    fleet = Fleet(node(), vm("a", amount(2)), vm_pod("a", "n1"))
    fleet.apply(MigrationSeen(migration("a")), LATER)
    fleet.grant("a", amount(3), number=1)
    told = fleet.ledger.explain("uid-a", Instant(LATER + 5))
    assert told.denied_by == "the VM is being migrated and cannot grow until that ends"
    assert fleet.ledger.claims["uid-a"].is_migrating


def test_ordered_move_names_reason_and_target() -> None:
    fleet = Fleet(node(), node("n2"), vm("a", amount(2), pod=name("a-pod")), vm_pod("a", "n1"))
    fleet.ledger.apply(MoveRequested(Move(name("a"), "uid-a", "n1", "n2", "node n1 is cordoned"), name("a-1")), LATER)
    ordered = fleet.ledger.migrations[name("a-1")]
    assert (ordered.creation, ordered.source, ordered.destination, ordered.reason) == (
        Creation.ORDERED,
        "n1",
        "n2",
        "node n1 is cordoned",
    )
    assert fleet.ledger.claims["reservation of db/a-1"].reserved == amount(2)


def test_a_pod_without_a_vm_counts_its_requests() -> None:
    fleet = Fleet(node(), plain_pod("b", amount(2), "n1"), vm_pod("c", "n1"))
    assert fleet.ledger.claims["uid-b"].vm is None
    assert fleet.ledger.explain("uid-b", LATER).floors == {"requests of the pod": amount(2)}
    assert fleet.ledger.explain("uid-c", LATER).floors == {"requests of the pod": vm_pod("a").requests}


def test_nobody_is_explained_who_is_not_there() -> None:
    with pytest.raises(UnknownPodError, match="no pod with UID uid-x holds a claim"):
        Fleet(node()).ledger.explain("uid-x", LATER)
