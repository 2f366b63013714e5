"""The VMs that a group creates and deletes, from the present state alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from protocol.guest.database import DatabaseState
from protocol.units import Seconds
from scheduler_plugin.groups.core.replicas.group_plan import plan_group
from scheduler_plugin.groups.core.replicas.members import Member, Role, primary_of, replicas_of
from tests.examples import examples
from tests.scheduler_plugin.groups.core.replicas.group_story import PRIMARY, SHOP, STANDBY, replica, summary


def planned(*members: Member, replicas: int = 2, taken: frozenset[str] = frozenset()) -> dict[str, list[str]]:
    return summary(plan_group(replace(SHOP, replicas=replicas), members, had_primary=True, taken=taken))


def test_replicas_wait_for_primary_address() -> None:
    first = plan_group(SHOP, [], had_primary=False)
    assert summary(first) == {"create": ["primary"]}
    assert planned(replace(PRIMARY, address="")) == {}
    made = plan_group(SHOP, [PRIMARY], had_primary=True).create
    assert [(each.name, each.source) for each in made] == [
        ("shop-replica-0", PRIMARY.address),
        ("shop-replica-1", PRIMARY.address),
    ]


def test_lost_primary_is_not_recreated() -> None:
    lost = plan_group(
        SHOP, [replica(0), replica(1), replica(2, draining=Seconds(700.0), listed=False)], had_primary=True
    )
    assert summary(lost) == {"serving": ["replica-0", "replica-1"], "delete": ["replica-2"]}
    assert lost.fault == (
        "VM shop-primary is gone, and a new one would be an empty database: delete the group to start over"
    )
    assert plan_group(SHOP, [], had_primary=True).fault == lost.fault
    assert plan_group(SHOP, [replace(PRIMARY, leaving=True)], had_primary=True).fault == lost.fault


def test_names_that_belong_to_others_are_not_used() -> None:
    taken = frozenset({"shop-primary", "shop-replica-0"})
    refused = plan_group(SHOP, [], had_primary=False, taken=taken)
    assert summary(refused) == {}
    assert refused.fault == "a VirtualMachine shop-primary exists that does not belong to this group"
    assert planned(PRIMARY, taken=taken) == {"create": ["replica-1", "replica-2"]}


def test_missing_replicas_take_the_lowest_free_numbers() -> None:
    assert planned(PRIMARY, replica(1), replicas=3) == {"create": ["replica-0", "replica-2"], "serving": ["replica-1"]}
    assert planned(PRIMARY, replica(0, leaving=True), replicas=1) == {"create": ["replica-1"]}


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({}, "replica-2"),
        ({"available": False}, "replica-0"),
        ({"database": structs.replace(STANDBY, lag=Seconds(60.0))}, "replica-0"),
        ({"database": structs.replace(STANDBY, sessions=1)}, "replica-2"),
    ],
)
def test_scale_in_order(changes: dict[str, object], first: str) -> None:
    members = (PRIMARY, replica(0, **changes), replica(1), replica(2))
    assert planned(*members)["drain"] == [first]


def test_sessions_decide_before_age() -> None:
    busy = DatabaseState(is_standby=True, streaming=True, lag=Seconds(0.0), sessions=4)
    assert planned(PRIMARY, replica(0), replica(1), replica(2, database=busy))["drain"] == ["replica-1"]


def test_drained_replica_leaves_endpoint_first() -> None:
    members = (PRIMARY, replica(0), replica(1))
    assert planned(*members, replicas=1) == {"drain": ["replica-1"], "serving": ["replica-0"]}
    drains = replica(1, draining=Seconds(6.0), listed=False)
    assert planned(PRIMARY, replica(0), drains, replicas=1) == {"serving": ["replica-0"], "delete": ["replica-1"]}
    busy = replica(1, draining=Seconds(6.0), database=structs.replace(STANDBY, sessions=1))
    waits = plan_group(replace(SHOP, replicas=1), [PRIMARY, replica(0), busy], had_primary=True)
    assert (summary(waits), waits.requeue_after) == ({"serving": ["replica-0"]}, Seconds(1.0))


def test_only_running_databases_are_polled() -> None:
    starts = {"listed": False, "database": None}
    cases = {
        "starts": replica(1, available=False, **starts),
        "accepts connections": replica(1, **starts),
        "is deleted": replica(1, leaving=True, **starts),
        "serves": replica(1),
    }
    plans = {case: plan_group(SHOP, [PRIMARY, replica(0), member], had_primary=True) for case, member in cases.items()}
    assert [case for case, plan in plans.items() if plan.requeue_after is not None] == ["accepts connections"]


def test_draining_replica_returns_first() -> None:
    drains = replica(1, draining=Seconds(20.0), database=structs.replace(STANDBY, sessions=2))
    ended = replica(2, draining=Seconds(20.0), available=False)
    assert planned(PRIMARY, replica(0), drains, ended, replicas=2) == {
        "stay": ["replica-1"],
        "serving": ["replica-0"],
        "delete": ["replica-2"],
    }
    assert planned(PRIMARY, replica(0), drains, replicas=3)["create"] == ["replica-2"]


def test_a_replica_of_another_primary_is_replaced() -> None:
    stale = replica(0, source="10.100.128.77")
    assert planned(PRIMARY, stale, replica(1)) == {
        "create": ["replica-2"],
        "drain": ["replica-0"],
        "serving": ["replica-1"],
    }
    draining = replace(stale, draining=Seconds(1.0))
    assert planned(PRIMARY, draining, replica(1)) == {"create": ["replica-2"], "serving": ["replica-1"]}


MEMBERS = st.lists(
    st.builds(
        replica,
        st.integers(0, 5),
        available=st.booleans(),
        leaving=st.booleans(),
        draining=st.sampled_from([None, Seconds(0.0), Seconds(40.0), Seconds(900.0)]),
        source=st.sampled_from([PRIMARY.address, "10.0.0.9"]),
        database=st.sampled_from(
            [None, STANDBY, structs.replace(STANDBY, sessions=3), DatabaseState(is_standby=False)]
        ),
    ),
    max_size=6,
    unique_by=lambda member: member.ordinal,
)


@settings(max_examples=examples(20, 150))
@given(MEMBERS, st.integers(0, 6), st.randoms(use_true_random=False))
def test_any_group_converges_and_keeps_primary(members: list[Member], wanted: int, chance: object) -> None:
    spec = replace(SHOP, replicas=wanted)
    everyone = [PRIMARY, *members]
    plan = plan_group(spec, everyone, had_primary=True)
    shuffled = sorted(everyone, key=lambda _: chance.random())  # type: ignore[attr-defined]  # a random.Random
    assert plan_group(spec, shuffled, had_primary=True) == plan
    going = {each.member.name for each in (*plan.drain, *plan.delete)}
    assert PRIMARY.name not in going
    assert not {each.name for each in plan.serving} & going
    staying = [m for m in members if not m.leaving and m.draining is None and m.name not in going]
    assert len(staying) + len(plan.undrain) + len(plan.create) == wanted
    assert len({each.name for each in plan.create} | {each.name for each in members}) == len(plan.create) + len(members)


def test_roles_are_distinguished() -> None:
    members = [replica(3), PRIMARY, replica(1)]
    assert (primary_of(members), [each.ordinal for each in replicas_of(members)]) == (PRIMARY, [1, 3])
    assert Role.REPLICA.value == "replica"


def test_a_mark_of_tomorrow_is_set_again() -> None:
    """A replica whose mark lay ahead had been draining for no time at all, for as long as it lay ahead."""
    has_invalid_mark = replica(1, draining=Seconds(0.0), has_invalid_mark=True)
    plan = plan_group(replace(SHOP, replicas=1), [PRIMARY, replica(0), has_invalid_mark], had_primary=True)
    assert [(each.member.name, each.reason) for each in plan.drain] == [
        ("shop-replica-1", "its draining mark has no valid time")
    ]
    wanted = plan_group(replace(SHOP, replicas=2), [PRIMARY, replica(0), has_invalid_mark], had_primary=True)
    assert ([each.name for each in wanted.undrain], wanted.drain) == (["shop-replica-1"], ())
    leaving = plan_group(
        replace(SHOP, replicas=1), [PRIMARY, replica(0), replace(has_invalid_mark, leaving=True)], had_primary=True
    )
    assert leaving.drain == ()
