"""The plan of a migration whose VM sleeps: sent asleep if its runner supports that, otherwise woken first (B.18)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deploy.neonvm.migration.migration_facts import MigrationPlan
from deploy.neonvm.migration.migration_plan import plan_migration
from deploy.neonvm.ports import PodRole
from protocol.kubernetes.objects import Json
from protocol.names import ANNOTATION_PERMIT
from protocol.permits import encode_permit
from protocol.units import Resources
from tests.neonvm.migration.test_migration_plan import (
    ACTIVE,
    ADMITTED,
    CANCELLED,
    INFO,
    NOTHING,
    PLACED,
    REFUSED,
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


def permitted(cpus: str, **metadata: object) -> Json:
    """As ``CALLED``, with a permit for these CPUs and the memory of the VM."""
    annotations = {ANNOTATION_PERMIT: encode_permit(Resources.parse(cpus, "2Gi"))}
    labels = {"autoscaling.neon.tech/enabled": "true"}
    return {**CALLED, "vm": vm("Waking", annotations=annotations, labels=labels, **metadata)}


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


CALLED_OFF = ("False", "Cancelled", "the VM was needed, and can wake on its node")


def test_client_does_not_wait_for_the_disk() -> None:
    """Copying it may take minutes; the VM wakes where it is, in an instant, once its node has the room."""
    waits = facts(migration(SENT), transfer=ACTIVE, **permitted("1"))
    assert plan_migration(waits) == NOTHING
    assert plan_migration(facts(migration(SENT), transfer=ACTIVE, **permitted("2"))) == MigrationPlan(cancel=True)
    for transfer, why in ((CANCELLED, CALLED_OFF), (REFUSED, ("False", "Refused", "devices differ"))):
        ended = plan_migration(facts(migration(SENT), transfer=transfer, **permitted("2")))
        assert (status(ended), says(ended), rest(ended)) == ({"phase": "Failed"}, why, NOTHING)


def test_reason_outlives_the_progress_of_its_end() -> None:
    """A transfer that was cancelled still reports once, although it has sent nothing."""
    ended = plan_migration(facts(migration(SENT), transfer=replace(CANCELLED, info=INFO), **permitted("2")))
    assert (status(ended), says(ended)) == ({"phase": "Failed", "info": INFO}, CALLED_OFF)


def test_next_leader_ends_a_disk_copy() -> None:
    made = plan_migration(facts(migration(SENT), **permitted("2")))
    assert made == MigrationPlan(send=True, cancel=True)


def test_memory_on_its_way_is_not_called_off() -> None:
    """It arrives as soon as the VM could wake where it is."""
    arriving = replace(ACTIVE, info=INFO)
    made = plan_migration(facts(migration(SENT), transfer=arriving, **permitted("2")))
    assert made == MigrationPlan(status={"info": INFO})


def test_vm_that_can_wake_is_not_sent() -> None:
    made = plan_migration(pending(PLACED, target=TARGET, target_role=PodRole.RECEIVING, **permitted("2")))
    assert (status(made).get("phase"), made.send) == (None, False)
