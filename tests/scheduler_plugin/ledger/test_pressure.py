"""Pressure of a node, and the relief by migrations in progress (S4.8, S4.9)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.units import ZERO, Bytes, MilliCpu, Resources
from scheduler_plugin.ledger.accounts.node_account import Pressure
from scheduler_plugin.ledger.events import MigrationGone, MigrationSeen, NodeSeen, PodGone
from scheduler_plugin.placement.verdict import Room
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, amount, migration, name, node, plain_pod, vm, vm_pod

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "neon_vectors.json").read_bytes())
CASES = next(group["cases"] for group in VECTORS["groups"] if group["id"] == "too_much_pressure")


def room(reserved: Resources, watermark: Resources, total: Resources) -> Room:
    return Room("n1", total, reserved, total.minus_or_zero(reserved), watermark, True)


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case["in"]["cpu"]["buffer"]], ids=lambda case: case["desc"]
)
def test_worked_cases_of_the_original(case: dict[str, dict[str, dict[str, int]]]) -> None:
    cpu, mem = case["in"]["cpu"], case["in"]["mem"]

    def both(what: str) -> Resources:
        return Resources(MilliCpu(cpu[what]), Bytes(mem[what]))

    full = room(both("reserved"), both("watermark"), both("reserved").at_least(both("watermark")))
    assert Pressure.of(full, both("pressure"), both("accounted")).has_excess is bool(case["expect"]["too_much"])


def test_pressure_is_named_by_where_it_comes_from() -> None:
    fleet = Fleet(node(total=11), vm("a", amount(2)), vm_pod("a", "n1"), plain_pod("b", amount(6), "n1"))
    fleet.grant("a", amount(7, 3), number=1)
    watermark = fleet.ledger.rooms["n1"].watermark
    assert watermark == amount(7)
    assert fleet.ledger.nodes["n1"].pressure == Pressure(
        logical=amount(3, 2), capacity=amount(3, 0), migrating=ZERO, slack=ZERO
    )
    assert fleet.ledger.nodes["n1"].pressure.excess == amount(6, 2)


def test_fitting_needs_are_no_pressure() -> None:
    fleet = Fleet(node(total=11), vm("a", amount(2)), vm_pod("a", "n1"), plain_pod("b", amount(8), "n1"))
    fleet.grant("a", amount(5), number=1)
    assert fleet.ledger.nodes["n1"].pressure.has_excess
    fleet.apply(PodGone("uid-b"))
    assert fleet.ledger.nodes["n1"].unmet == amount(3)
    assert not fleet.ledger.nodes["n1"].pressure.has_excess


def test_watermark_at_total_has_pressure() -> None:
    full = room(amount(4), amount(4), amount(4))
    assert Pressure.of(full, amount(1), ZERO).has_excess
    assert not Pressure.of(full, ZERO, ZERO).has_excess


def test_leaving_vm_counts_as_relieved() -> None:
    fleet = Fleet(node(total=11), vm("a", amount(3)), vm("b", amount(6)), vm_pod("a", "n1"), vm_pod("b", "n1"))
    assert fleet.ledger.nodes["n1"].pressure.excess == amount(2)
    fleet.apply(MigrationSeen(migration("a")), LATER)
    book = fleet.ledger.nodes["n1"]
    assert (book.migrating, book.pressure.has_excess) == (amount(3), False)
    for number in (1, 2):
        decision = fleet.ask("a", amount(4), number=number)
        assert (decision.permit, decision.migrate) == (amount(3), True)
    assert (book.unmet, book.migrating) == (amount(1), amount(4))
    fleet.apply(MigrationGone(name("a-1")))
    assert book.migrating == ZERO
    assert fleet.ask("a", amount(4), number=3).migrate is False


def test_gone_migrating_pod_frees_all() -> None:
    fleet = Fleet(node(total=5), vm("a", amount(3)), vm_pod("a", "n1"))
    fleet.grant("a", amount(9), number=1)
    fleet.apply(MigrationSeen(migration("a")), LATER)
    fleet.apply(PodGone("uid-a"))
    book = fleet.ledger.nodes["n1"]
    assert (book.reserved, book.unmet, book.migrating) == (ZERO, ZERO, ZERO)


def test_a_changed_policy_changes_the_pressure_at_once() -> None:
    fleet = Fleet(node(total=11), plain_pod("b", amount(7), "n1"))
    assert not fleet.ledger.nodes["n1"].pressure.has_excess
    fleet.apply(NodeSeen(node(total=10)))
    assert fleet.ledger.nodes["n1"].pressure.has_excess
