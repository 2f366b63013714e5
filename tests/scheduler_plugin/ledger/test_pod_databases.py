"""A postgres in an ordinary pod has an account as a VM has, without a stored permit and without ever moving (B.7)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from protocol.pod_database import PodDatabase, ResizeObjection
from protocol.units import ZERO, Instant, Resources
from protocol.virtual_machine import Bounds
from scheduler_plugin.ledger.accounts.permit_state import SETTLE
from scheduler_plugin.ledger.events import NodeSeen, PodGone, PodSeen, TimePassed, VmGone, VmSeen
from scheduler_plugin.ledger.facts import PodFacts, VmFacts
from scheduler_plugin.planner.plan import StuckNode
from scheduler_plugin.planner.victims import stays_because
from scheduler_plugin.texts import explanations
from tests.scheduler_plugin.ledger.fleet import LATER, NOW, Fleet, amount, name, node, vm, vm_pod
from tests.scheduler_plugin.planner.planner_fixture import PlannerFixture
from tests.scheduler_plugin.planner.planner_fixture import node as planner_node

AROUND = amount(0.5)


def database(of: str, use: Resources, version: int = 1, refused: str = "") -> VmFacts:
    return VmFacts(
        name(f"pod/{of}"),
        f"uid-{of}",
        version,
        amount(20),
        use,
        use,
        pod=name(f"{of}-pod"),
        stays_because=explanations.ORDINARY_POD,
        is_pod=True,
        refused=refused,
    )


def pod(of: str, use: Resources, on: str | None = "n1", objection: ResizeObjection | None = None) -> PodFacts:
    """The pod of a database; its UID is ``uid-NAME``."""
    read = PodDatabase(
        name=name(f"pod/{of}"),
        uid=f"uid-{of}",
        resource_version="1",
        labels={},
        annotations={},
        bounds=Bounds(ZERO, amount(20)),
        use=use,
        actual=use,
        slot_size=amount(1).mem,
        pod_name=f"{of}-pod",
        node=on,
        pod_ip=None,
        phase="Running",
        enabled=True,
        permit=None,
        objection=objection,
    )
    return PodFacts(
        read.uid,
        name(f"{of}-pod"),
        use + AROUND,
        read.name,
        on,
        vm_uid=read.uid,
        overhead=AROUND,
        scheduler="default-scheduler",
        make_room=True,
        database=read,
    )


def fleet(now: Instant = NOW) -> Fleet:
    """A node of 10 to reserve with a database of 2 and a VM of 3."""
    made = Fleet(node(total=11), now=now)
    for event in (VmSeen(database("pg", amount(2))), PodSeen(pod("pg", amount(2)))):
        made.apply(event)
    made.vms[name("v")] = vm("v", amount(3))
    made.apply(VmSeen(made.vms[name("v")]))
    made.apply(PodSeen(vm_pod("v", "n1")))
    return made


def test_nothing_is_ever_stored() -> None:
    """Not when it grows or shrinks, when its requests are edited, or when its pod is deleted."""
    story = fleet()
    assert [story.ask("pg", amount(size), number=number).persist for number, size in ((1, 4), (2, 3))] == [None, None]
    account = story.ledger.vms[name("pod/pg")]
    assert (account.is_stored, account.permit, story.reserved("pg")) == (True, amount(3), amount(3.5))
    for event in (
        VmSeen(database("pg", amount(1), version=2)),
        PodSeen(pod("pg", amount(1))),
        TimePassed(),
        PodGone("uid-pg"),
        TimePassed(),
        VmGone(name("pod/pg")),
    ):
        assert story.apply(event, Instant(LATER + 2 * SETTLE)) == ()
    assert (name("pod/pg") in story.ledger.vms, story.on("n1")) == (False, amount(3))


def test_database_and_vm_share_room() -> None:
    story = fleet()
    assert story.grant("v", amount(6)) == amount(6)
    assert story.ask("pg", amount(9)).permit == amount(3.5)
    assert story.ledger.nodes["n1"].unmet == amount(5.5)


@pytest.mark.parametrize(("last", "later"), [(None, 5), (amount(4), 5), (amount(6), 3.5)])
def test_node_is_full_until_agents_are_heard(last: Resources | None, later: float) -> None:
    """A scheduler that starts does not know the permit of the pod's agent. Once it does, the VM gets the rest."""
    story = Fleet(
        node(total=11), database("pg", amount(2)), pod("pg", amount(2)), vm("v", amount(3)), vm_pod("v", "n1")
    )
    assert story.grant("v", amount(5), now=NOW) == amount(3)
    wanted = amount(2) if last is None else last
    assert story.ask("pg", wanted, last_permit=last, now=NOW).permit == wanted
    assert story.grant("v", amount(5), now=NOW) == amount(later)


def test_last_permit_is_honoured_beyond_the_node() -> None:
    """Only the agent knows it, and may use it at any time."""
    story = Fleet(node(total=11), database("pg", amount(2)), pod("pg", amount(2)))
    story.apply(NodeSeen(node(total=4)))
    assert story.ask("pg", amount(6), last_permit=amount(5), now=NOW).permit == amount(5)
    assert story.on("n1") == amount(5.5)


def test_agent_that_is_never_heard_holds_nothing() -> None:
    story = Fleet(
        node(total=11), database("pg", amount(2)), pod("pg", amount(2)), vm("v", amount(3)), vm_pod("v", "n1")
    )
    assert story.ledger.nodes["n1"].room.free == ZERO
    story.apply(TimePassed(), Instant(NOW + SETTLE - 1))
    assert story.ledger.nodes["n1"].room.free == ZERO
    story.apply(TimePassed(), Instant(NOW + SETTLE))
    assert story.ledger.nodes["n1"].room.free == amount(4.5)


def test_pods_that_opt_in_later_hold_up_nobody() -> None:
    """Labelling pods that no agent serves does not fill a node, nor does recreating one again and again."""
    story = fleet()
    free = story.ledger.nodes["n1"].room.free
    for made in range(3):
        story.apply(VmSeen(structs.replace(database("x", amount(1)), uid=f"uid-x-{made}")))
        story.apply(PodSeen(replace(pod("x", amount(1)), uid=f"uid-x-{made}", vm_uid=f"uid-x-{made}")))
        assert story.ledger.nodes["n1"].room.free == free.minus_or_zero(amount(1.5))
        story.apply(PodGone(f"uid-x-{made}"))
        story.apply(VmGone(name("pod/x")))
    assert story.ledger.nodes["n1"].room.free == free


def test_permit_outlives_the_container() -> None:
    starts = structs.replace(database("pg", amount(2)), phase="Pending")
    story = Fleet(node(total=11), starts, pod("pg", amount(2)))
    assert story.ledger.nodes["n1"].room.free == ZERO


def test_last_permit_outlives_lowered_bounds() -> None:
    """After a fail-over its agent may keep using its last permit until it receives the response."""
    lowered = structs.replace(database("pg", amount(2)), maximum=amount(3))
    story = Fleet(node(total=11), lowered, pod("pg", amount(2)))
    assert story.ask("pg", amount(6), number=1, last_permit=amount(5)).permit == amount(3)
    assert story.reserved("pg") == amount(5) + AROUND
    story.ask("pg", amount(6), number=2, last_permit=amount(3))
    assert story.reserved("pg") == amount(3) + AROUND
    assert story.ask("pg", amount(90), number=3, last_permit=amount(90)).permit == amount(3)


def test_pod_without_a_node_holds_up_nobody() -> None:
    story = Fleet(node(total=11), database("pg", amount(2)), pod("pg", amount(2), on=None))
    assert story.ledger.nodes["n1"].room.free == amount(10)


def test_refused_database_is_to_hold_still() -> None:
    """Another program that sizes the pod may react to a smaller size with a restart."""
    story = fleet()
    assert story.ask("pg", amount(2), number=1).migrate is False
    story.apply(VmSeen(database("pg", amount(2), 2, "a VPA")))
    held = story.ask("pg", amount(2), number=2)
    assert (held.permit, held.migrate) == (amount(2), True)
    story.apply(VmSeen(database("pg", amount(2), 3)))
    assert story.ask("pg", amount(2), number=3).migrate is False


@pytest.mark.parametrize(
    ("objection", "refused", "problem"),
    [
        (None, "", ""),
        (
            ResizeObjection("Infeasible", "static"),
            "",
            "the kubelet has not granted the pod's requests: Infeasible: static",
        ),
        (ResizeObjection("Infeasible", "static"), "a VPA", "a VPA"),
    ],
)
def test_explanation_says_what_keeps_a_database_small(
    objection: ResizeObjection | None, refused: str, problem: str
) -> None:
    story = fleet()
    story.apply(VmSeen(database("pg", amount(2), 2, refused)))
    story.apply(PodSeen(pod("pg", amount(2), objection=objection)))
    explained = story.ledger.explain("uid-pg", LATER)
    assert (explained.requests, explained.requests_problem) == (None, problem)
    assert explained.floors == {
        "requests of the container": amount(2.5),
        "actual resources of the container": amount(2.5),
        "requests of the pod": amount(2.5),
    }


@pytest.mark.parametrize("knows_vm", [True, False])
def test_unknown_database_has_no_problem(knows_vm: bool) -> None:
    story = Fleet(node(total=11), pod("pg", amount(2)))
    if knows_vm:
        story.apply(VmSeen(database("pg", amount(2))))
    assert story.ledger.explain("uid-pg", LATER).requests_problem == ""
    assert story.ledger.claims["uid-pg"].runs_vm is not knows_vm


def test_deferred_resize_presses_vms() -> None:
    """Of 11 allocatable the database has 2.5 and its neighbour 1.5, which never leave: all 4 that it waits for fit."""
    story = fleet()
    story.apply(VmSeen(database("other", amount(1))))
    story.apply(PodSeen(pod("other", amount(1))))
    story.apply(PodSeen(replace(vm_pod("v", "n1"), requests=amount(3))))
    story.apply(VmSeen(database("pg", amount(6), 2)))
    for waits, asked in ((4, amount(4)), (5, amount(5)), (9, ZERO)):
        story.apply(PodSeen(replace(pod("pg", amount(2 + waits)), deferred=amount(waits))))
        assert story.ledger.nodes["n1"].movable_deferred == asked


def test_databases_make_no_room() -> None:
    story = Fleet(node(total=5))
    for of in ("a", "b"):
        story.apply(VmSeen(database(of, amount(1))))
        story.apply(PodSeen(pod(of, amount(1))))
    story.apply(PodSeen(replace(pod("a", amount(4)), deferred=amount(3))))
    assert story.ledger.nodes["n1"].movable_deferred == ZERO


def test_pods_of_any_scheduler_are_scaled() -> None:
    story = fleet()
    assert story.ledger.scaled_vms(LATER) == (0, 2)
    story.ask("pg", amount(2))
    assert story.ledger.scaled_vms(LATER) == (1, 1)


@pytest.mark.parametrize("choice", [None, False, True])
def test_database_never_moves(choice: bool | None) -> None:
    facts = structs.replace(database("pg", amount(2)), auto_migration=choice)
    assert [stays_because(facts, opt_in=opt_in) for opt_in in (True, False)] == [explanations.ORDINARY_POD] * 2


def planned(waits: float) -> PlannerFixture:
    """n1 has room for 10: a VM of 4, and a database that waits for more than its 2.5; n2 is empty."""
    fixture = PlannerFixture(planner_node("n1"), planner_node("n2"))
    fixture.add("v", "n1", 4, pod={"requests": amount(4)})
    fixture.fleet.apply(VmSeen(database("pg", amount(2 + waits))))
    fixture.fleet.apply(PodSeen(replace(pod("pg", amount(2 + waits)), deferred=amount(waits))))
    return fixture


def test_vm_moves_for_deferred_resize() -> None:
    assert (planned(0).moves(), planned(6).moves()) == ({}, {"v": "n2"})


def test_drain_leaves_databases_to_eviction() -> None:
    fixture = planned(0)
    fixture.fleet.apply(NodeSeen(node("n1", 11, is_open=False)))
    assert fixture.moves() == {"v": "n2"}
    fixture.fleet.apply(PodGone("uid-v"))
    assert (fixture.moves(), fixture.plan().stuck) == ({}, (StuckNode("n1", "no VM is on it"),))
