"""The plan of a migration whose VM sleeps: sent asleep if its runner supports that, otherwise woken first (B.18)."""

from __future__ import annotations

import pytest

from deploy.neonvm.migration.migration_plan import plan_migration
from deploy.neonvm.ports import PodRole
from protocol.kubernetes.objects import Json
from tests.neonvm.migration.test_migration_plan import (
    ADMITTED,
    NOTHING,
    PLACED,
    SENT,
    TARGET,
    facts,
    fresh,
    migration,
    pending,
    rest,
    says,
    status,
    vm,
)

SLEEPS: Json = {"vm": vm("Asleep"), "source_role": PodRole.ASLEEP, "is_quiet": False, "moves_asleep": True}
CALLED: Json = {**SLEEPS, "vm": vm("Waking"), "source_role": PodRole.WAKING}


@pytest.mark.parametrize("known", [SLEEPS, CALLED])
def test_sleeper_is_admitted(known: Json) -> None:
    assert status(plan_migration(fresh(**known))) == ADMITTED


@pytest.mark.parametrize(
    "known",
    [
        {**SLEEPS, "moves_asleep": False},
        {**CALLED, "moves_asleep": False},
        {**CALLED, "vm": vm("Running")},
        {**SLEEPS, "source_role": PodRole.RUNNING},
    ],
    ids=["older runner", "older runner of one that wakes", "woken by its permit", "not known to be awake"],
)
def test_vm_that_cannot_be_sent_asleep_wakes_first(known: Json) -> None:
    made = plan_migration(fresh(**known))
    assert (status(made), rest(made)) == ({}, NOTHING)
    assert says(made)[:2] == ("Unknown", "Waiting")


@pytest.mark.parametrize("known", [SLEEPS, CALLED])
def test_sleeper_is_sent_as_it_is(known: Json) -> None:
    """It is not frozen first, because a sleeping VM is not resized anyway."""
    made = plan_migration(pending(PLACED, target=TARGET, target_role=PodRole.RECEIVING, **known))
    assert (ADMITTED | status(made), made.send) == (SENT, True)


def test_one_that_wakes_meanwhile_is_held_first() -> None:
    awake = {**SLEEPS, "vm": vm("Running"), "source_role": PodRole.RUNNING}
    assert not plan_migration(pending(PLACED, target=TARGET, target_role=PodRole.RECEIVING, **awake)).send


def test_move_of_sleeper_is_taken_up() -> None:
    """Another leader resumes it from any state."""
    assert plan_migration(facts(migration(SENT), **SLEEPS)).send
