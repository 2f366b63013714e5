"""VMs move for pressure that has lasted, and for a denial once it has cost about as much as a move."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from protocol.units import Bytes, Instant, MilliCpu, Resources, Seconds
from scheduler_plugin.ledger.accounts.denials import HALF_LIFE
from scheduler_plugin.ledger.events import NodeSeen, PodGone, PodSeen, VmSeen
from scheduler_plugin.ledger.moves import MoveCause
from scheduler_plugin.planner.plan import LastingExcess, MigrationPolicy, MovePlan
from tests.scheduler_plugin.ledger.fleet import amount, name, plain_pod, vm_pod
from tests.scheduler_plugin.planner.planner_fixture import PlannerFixture, node, pressed

ABOVE = "node n1 is {0} vCPU and {0} GiB above its watermark"
AMOUNTS = st.integers(0, 9)


def first_move(fixture: PlannerFixture) -> tuple[float, str, str]:
    """The seconds after which a VM moves, the VM and the reason, with one planning round per second."""
    began, plan = fixture.now, fixture.plan()
    while not plan.moves:
        assert fixture.now < began + 600
        plan = fixture.plan(after=1.0)
    return fixture.now - began, plan.moves[0].vm.name, plan.moves[0].reason.split(";")[0]


def come(fixture: PlannerFixture, pod: str = "extra") -> None:
    """A new pod on n1 raises the pressure by 2."""
    fixture.fleet.apply(PodSeen(plain_pod(pod, amount(2), "n1")))


def go(fixture: PlannerFixture, pod: str) -> None:
    """It goes again."""
    fixture.fleet.apply(PodGone(f"uid-{pod}"))


# Pressure ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 30), AMOUNTS, AMOUNTS), min_size=1), st.integers(1, 60))
def test_lasting_excess_is_least_of_its_span(changes: list[tuple[int, int, int]], span: int) -> None:
    """Each amount holds until the next one; one that held within the span counts."""
    lasting, now = LastingExcess(Seconds(float(span))), 0
    instants, amounts = [], []
    for after, cpu, mem in changes:
        now += after
        instants.append(now)
        amounts.append((cpu, mem))
        ends = [until for _, until in pairwise(instants)] + [now]
        held = [one for one, until in zip(amounts, ends, strict=True) if until >= now - span]
        least = Resources(MilliCpu(min(cpu for cpu, _ in held)), Bytes(min(mem for _, mem in held)))
        assert lasting.observe(Resources(MilliCpu(cpu), Bytes(mem)), Instant(float(now))) == least


@given(st.lists(st.tuples(st.floats(0.0, 3.0), AMOUNTS), min_size=1))
def test_excess_never_counts_for_more_than_its_least(changes: list[tuple[float, int]]) -> None:
    """Also if looks follow each other more closely than the window can tell apart."""
    lasting, now, least = LastingExcess(Seconds(1000.0)), 0.0, 9
    for after, cpu in changes:
        now, least = now + after, min(least, cpu)
        assert lasting.observe(Resources(MilliCpu(cpu), Bytes(0)), Instant(now)).cpu.value <= least


def test_only_the_lasting_part_of_pressure_moves_vms() -> None:
    """n1 is always 1 above its watermark, and 3 half of the time."""
    fixture = pressed(policy=MigrationPolicy())
    for pod in ("first", "second"):
        come(fixture, pod)
        assert fixture.plan() == MovePlan()
        assert fixture.plan(after=30) == MovePlan()
        go(fixture, pod)
        assert fixture.plan() == MovePlan()
        assert fixture.plan(after=29) == MovePlan()
    assert fixture.ledger.nodes["n1"].pressure.excess == amount(1)
    come(fixture)
    assert fixture.ledger.nodes["n1"].pressure.excess == amount(3)
    assert first_move(fixture) == (2.0, "c", ABOVE.format(1))


def test_more_moves_once_more_has_lasted() -> None:
    fixture = pressed(policy=MigrationPolicy())
    fixture.plan()
    fixture.plan(after=1)
    come(fixture)
    assert first_move(fixture) == (119.0, "c", ABOVE.format(1))
    assert fixture.plan(after=1).moves[0].reason.startswith(ABOVE.format(1))
    assert fixture.plan(after=1).moves[0].reason.startswith(ABOVE.format(3))


def test_pressure_that_was_gone_begins_again() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"), policy=MigrationPolicy())
    for of in ("a", "b"):
        fixture.add(of, "n1", 3)
    for pod in ("first", "second", "third"):
        come(fixture, pod)
        assert fixture.ledger.nodes["n1"].pressure.excess == amount(1)
        assert fixture.plan() == MovePlan()
        assert fixture.plan(after=119) == MovePlan()
        go(fixture, pod)
        assert fixture.plan() == MovePlan()


def test_no_settling_moves_at_the_first_look() -> None:
    fixture = pressed(policy=MigrationPolicy(settle=Seconds(0.0)))
    assert first_move(fixture) == (0.0, "b", ABOVE.format(1))


@pytest.mark.parametrize(("settle", "seconds"), [(10.0, 10.0), (300.0, 300.0), (0.0, 0.0)])
def test_changed_settling_counts_from_then_on(settle: float, seconds: float) -> None:
    fixture = pressed(policy=MigrationPolicy())
    assert fixture.plan() == MovePlan()
    assert fixture.plan(after=100) == MovePlan()
    fixture.policy = MigrationPolicy(settle=Seconds(settle))
    assert first_move(fixture) == (seconds, "b", ABOVE.format(1))


def test_settling_that_is_switched_on_holds() -> None:
    fixture = pressed(policy=MigrationPolicy(settle=Seconds(0.0)))
    assert len(fixture.plan().moves) == 1
    fixture.policy = MigrationPolicy()
    assert first_move(fixture) == (120.0, "b", ABOVE.format(1))


def test_excess_lasts_while_moves_are_disabled() -> None:
    """The excess has been 1 for long, and peaks just before VMs may move."""
    fixture = pressed(policy=MigrationPolicy(enabled=False))
    fixture.plan()
    assert fixture.plan(after=200) == MovePlan()
    come(fixture)
    fixture.policy = MigrationPolicy()
    assert first_move(fixture) == (0.0, "c", ABOVE.format(1))


def test_time_cordoned_does_not_count_as_pressure() -> None:
    fixture = pressed(policy=MigrationPolicy(per_cluster=0))
    fixture.fleet.apply(NodeSeen(node("n1", is_open=False)))  # type: ignore[arg-type] # node() makes nodes
    fixture.plan()
    fixture.plan(after=200)
    fixture.fleet.apply(NodeSeen(node("n1")))  # type: ignore[arg-type]
    fixture.policy = MigrationPolicy()
    assert first_move(fixture) == (120.0, "b", ABOVE.format(1))


# Denials -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lacking", "settle_denied", "seconds"),
    [
        (amount(0.25), 90.0, 90.0),
        (amount(1), 90.0, 90.0),
        (amount(2), 90.0, 45.0),
        (amount(1, 8), 90.0, 45.0),
        (amount(0, 12), 90.0, 30.0),
        (amount(29), 90.0, 90.0 / 29),
        (amount(31), 90.0, 3.0),
        (amount(1000), 90.0, 3.0),
        (amount(2), 4.0, 3.0),
        (amount(2), 2.0, 2.0),
        (amount(0.25), 0.0, 0.0),
    ],
)
def test_denial_settles_by_what_the_vm_lacks(lacking: Resources, settle_denied: float, seconds: float) -> None:
    """One vCPU or 4 GiB. No VM moves for a denial before agents have repeated their requests, unless the settings say
    so.
    """
    assert MigrationPolicy(settle_denied=Seconds(settle_denied)).denial_settles(lacking) == seconds


def denying(lacking: float, policy: MigrationPolicy) -> PlannerFixture:
    """The VM ``b`` on n1, which has no free room, is denied this much."""
    fixture = PlannerFixture(node("n1", 40), node("n2", 60), policy=policy)
    fixture.add("a", "n1", 20, load=1.0)
    fixture.add("b", "n1", 18, load=9.0, facts={"maximum": amount(100)})
    fixture.tell("b", amount(20 + lacking))
    return fixture


@pytest.mark.parametrize(("lacking", "seconds"), [(0.5, 90.0), (1, 90.0), (3, 30.0), (60, 3.0)])
def test_small_denial_waits_longer_than_large_one(lacking: float, seconds: float) -> None:
    fixture = denying(lacking, MigrationPolicy(settle=Seconds(600.0)))
    wait, vm, why = first_move(fixture)
    assert (wait, vm, why.endswith("and denies VMs")) == (seconds, "a", True)


def test_denial_moves_at_once_without_minimum_duration() -> None:
    fixture = denying(1, MigrationPolicy(settle_denied=Seconds(0.0)))
    assert first_move(fixture) == (0.0, "a", "node n1 lacks 1 vCPU and 1 GiB and denies VMs")


def test_only_long_denials_move_vms() -> None:
    """``c`` is denied another 1 a second before ``b`` has been denied for 90 s."""
    fixture = denying(1, MigrationPolicy(settle=Seconds(600.0)))
    fixture.add("c", "n1", 0)
    fixture.plan()
    fixture.plan(after=89)
    fixture.tell("c", amount(1))
    assert first_move(fixture) == (1.0, "a", "node n1 lacks 1 vCPU and 1 GiB and denies VMs")


@pytest.mark.parametrize(
    ("target", "wait", "why"),
    [(12.0, 1.0, ABOVE.format(1)), (9.0, 45.0, "node n1 lacks 2 vCPU and 2 GiB and denies VMs")],
)
def test_short_denial_does_not_hide_watermark_pressure(target: float, wait: float, why: str) -> None:
    """n1 is 1 above its watermark for 120 s; in the last of them ``b`` is denied 2.

    The smaller target has room for a VM, but not for a tenth of n1's watermark beside: it takes one only for a denial.
    """
    fixture = PlannerFixture(node("n1"), node("n2", target), policy=MigrationPolicy())
    fixture.add("a", "n1", 4, load=1.0)
    fixture.add("b", "n1", 4, load=9.0)
    fixture.add("there", "n2", 2)
    assert fixture.plan() == MovePlan()
    assert fixture.plan(after=119) == MovePlan()
    fixture.tell("b", amount(8))
    assert first_move(fixture) == (wait, "a", why)


def test_pod_waits_less_than_vm() -> None:
    """At the same second, the VM ``b`` is denied 2 and a pod's resize waits for 1: room is made for the pod only."""
    fixture = PlannerFixture(node("n1"), node("n2"), policy=MigrationPolicy())
    for of, size in (("a", 3), ("b", 2)):
        fixture.add(of, "n1", size, pod={"requests": amount(size)})
    pod = plain_pod("web", amount(6), "n1")
    fixture.fleet.apply(PodSeen(replace(pod, deferred=amount(4), make_room=True)))
    fixture.tell("b", amount(4))
    assert fixture.ledger.nodes["n1"].pressure.capacity == amount(3)
    assert first_move(fixture) == (3.0, "b", "node n1 lacks 1 vCPU and 1 GiB and denies VMs")


def full_node() -> PlannerFixture:
    """n1 is full, and only denials move VMs."""
    fixture = PlannerFixture(node("n1"), node("n2"), policy=MigrationPolicy(settle=Seconds(1e6)))
    fixture.add("a", "n1", 4)
    fixture.add("b", "n1", 6)
    return fixture


def denied_again(fixture: PlannerFixture) -> MovePlan:
    """``a`` is denied one vCPU for 80 s of every ten minutes. Returns the plan at the end of the next denial."""
    fixture.now = Instant(fixture.now + 520)
    fixture.tell("a", amount(5))
    fixture.plan()
    plan = fixture.plan(after=80)
    fixture.tell("a", amount(4))
    return plan


def past(fixture: PlannerFixture) -> float:
    """The cost of the past denials of ``a``."""
    return fixture.ledger.claims["uid-a"].denial_cost.past


def test_short_denials_that_repeat_add_up() -> None:
    """Each costs 80 of the 90 vCPU-seconds, and a quarter of that still counts at the next one."""
    fixture = full_node()
    assert denied_again(fixture) == MovePlan()
    (move,) = denied_again(fixture).moves
    assert (move.vm.name, move.cause) == ("a", MoveCause.DENIED_VM)


def test_move_pays_for_past_denials() -> None:
    fixture = full_node()
    denied_again(fixture)
    assert past(fixture) == 20.0
    fixture.tell("a", amount(5))
    (move,) = fixture.plan(after=80).moves
    fixture.carry_out(move)
    assert past(fixture) == 0.0


def test_new_vm_has_no_past_denials() -> None:
    fixture = full_node()
    denied_again(fixture)
    other = structs.replace(fixture.fleet.vms[name("a")], uid="a-second", version=1, pod=None)
    fixture.fleet.apply(PodSeen(replace(vm_pod("a", "n1"), vm_uid="a-second")))
    fixture.fleet.apply(VmSeen(other))
    assert past(fixture) == 0.0


def test_old_denials_are_forgotten() -> None:
    fixture = full_node()
    for _ in range(5):
        assert denied_again(fixture) == MovePlan()
        fixture.now = Instant(fixture.now + 4 * HALF_LIFE)
