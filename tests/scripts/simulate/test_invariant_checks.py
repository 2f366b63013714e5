"""Every kind of overcommitment is detected, and reported with its time."""

from __future__ import annotations

from scheduler_plugin.ledger.events import NodeSeen
from scheduler_plugin.ledger.facts import NodeFacts
from scripts.autoscale.simulate.invariant_checks import InvariantChecks
from scripts.autoscale.simulate.vm_table import UNIT
from tests.scripts.simulate.simulation_fixture import SimulationFixture

BOTH = ("node-0", "node-1")


def checked(fixture: SimulationFixture) -> InvariantChecks:
    """The checks of a fixture on which all is well; an hour has 240 steps."""
    checks = InvariantChecks(fixture.cluster, fixture.fleet, fixture.vms)
    for step in (0, 1):
        checks.after_step(step, BOTH, fixture.vms)
    assert checks.problems == []
    return checks


def crowd() -> SimulationFixture:
    return SimulationFixture([30, 30], [20], order="least-loaded")


def test_guest_above_its_permit_is_found() -> None:
    fixture = crowd()
    checks, greedy = checked(fixture), fixture.vms[2]
    greedy.use = UNIT * 21
    checks.after_step(2, (), [greedy])
    assert len(checks.problems) == 1
    assert checks.problems[0].startswith("30 s: pod vm-2-0: ")


def test_guests_beyond_their_node_are_found() -> None:
    fixture = crowd()
    checks, moved = checked(fixture), fixture.vms[2]
    moved.node = "node-0"
    checks.after_step(2, (), [moved])
    assert checks.problems == ["30 s: the guests on node-0 exceed the node"]


def test_overcommitted_node_in_ledger_is_found() -> None:
    fixture = crowd()
    checks = checked(fixture)
    fixture.cluster.ledger.apply(NodeSeen(NodeFacts("node-0", UNIT * 61, fixture.fleet.policy)), fixture.now)
    checks.after_step(2, ("node-0",), [])
    assert len(checks.problems) == 1
    assert checks.problems[0].startswith("30 s: node-0: over its total by ")


def test_reservation_below_its_vm_is_found() -> None:
    fixture = crowd()
    checks, book = checked(fixture), fixture.cluster.ledger.nodes["node-0"]
    book.claims["vm-0-0"].reserved = UNIT * 29
    checks.after_step(2, ("node-0",), [fixture.vms[0]])
    assert any("pod vm-0-0: reserves " in problem for problem in checks.problems)
    assert any("node node-0: reserved is " in problem for problem in checks.problems)


def test_what_happens_unnoticed_is_found_within_the_hour() -> None:
    fixture = crowd()
    checks = checked(fixture)
    fixture.vms[2].use = UNIT * 21
    for step in range(2, 241):
        assert checks.problems == []
        checks.after_step(step, (), [])
    assert len(checks.problems) == 1
    assert checks.problems[0].startswith("3600 s: pod vm-2-0: ")
