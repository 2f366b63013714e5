"""Whatever happens in whatever order, and however late anybody hears of it: one guest runs in the end."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.neonvm.ports import PodRole
from protocol.kubernetes.objects import child, text
from tests.neonvm.migration.migration_model import MigrationModel, settle

Step = Callable[[MigrationModel], None]

WORK: dict[str, Step] = {
    "the VM is looked at": MigrationModel.look_at_vm,
    "migrations are looked at": MigrationModel.look_at_migrations,
    "pods are placed": MigrationModel.place,
    "kubelets work": MigrationModel.attend,
    "VMs are seen": lambda world: world.look("vms"),
    "migrations are seen": lambda world: world.look("migrations"),
    "pods are seen": lambda world: world.look("pods"),
}
EVENTS: dict[str, Step] = {
    "the guest arrives": MigrationModel.arrive,
    "a move is asked for": lambda world: world.ask_to_move("a"),
    "another move is asked for": lambda world: world.ask_to_move("b"),
    "the move fails": lambda world: world.fail(source_too=False),
    "both ends are lost": lambda world: world.fail(source_too=True),
    "a guest dies": lambda world: world.kill(0),
    "another guest dies": lambda world: world.kill(1),
    "a pod is deleted": lambda world: world.delete_pod(0),
    "another pod is deleted": lambda world: world.delete_pod(1),
    "the migration is deleted": lambda world: world.delete_migration("a"),
    "the runtime is restarted": MigrationModel.restart,
}
ROUND: dict[str, Step] = {"everybody does one thing": lambda world: settle(world, 1)}
END: dict[str, Step] = {"the VM is deleted": MigrationModel.delete_vm}
STEPS = {**WORK, **ROUND, **EVENTS, **END}

whatever = st.lists(st.sampled_from([*WORK, *list(ROUND) * 20, *EVENTS]), max_size=60)


def play(names: list[str]) -> MigrationModel:
    world = MigrationModel()
    settle(world, 5)
    for name in names:
        STEPS[name](world)
        assert not world.doubled, name
    return world


def finish(world: MigrationModel) -> None:
    """Time passes, nothing happens any more, and what can arrive arrives."""
    for _ in range(2):
        settle(world)
        world.arrive()
        assert not world.doubled
    world.is_overdue = True
    settle(world)
    assert not world.doubled


def assert_all_has_ended(world: MigrationModel) -> None:
    for each in world.migrations.values():
        assert text(each, "status", "phase") in {"Succeeded", "Failed"}
        assert not child(each, "metadata").get("finalizers")


@settings(max_examples=120, deadline=None)
@given(whatever)
def test_one_guest_runs_no_pod_is_left_over_and_every_migration_ends(names: list[str]) -> None:
    world = play(names)
    finish(world)
    vm = world.vms["db"]
    assert list(world.guests.values()) == [PodRole.RUNNING]
    assert list(world.pods) == list(world.guests) == [text(vm, "status", "podName")]
    assert (text(vm, "status", "phase"), world.is_held) == ("Running", False)
    assert_all_has_ended(world)


@settings(max_examples=40, deadline=None)
@given(whatever, whatever)
def test_a_vm_that_is_deleted_leaves_nothing(before: list[str], after: list[str]) -> None:
    world = play([*before, "the VM is deleted", *after])
    finish(world)
    assert (world.vms, world.pods, world.guests) == ({}, {}, {})
    assert_all_has_ended(world)


WAY = [*WORK, "a move is asked for", *list(WORK) * 8, "the guest arrives", *list(WORK) * 6]


def test_the_way_without_accidents_leads_to_the_other_node() -> None:
    world = play(WAY)
    assert text(world.migrations["a"], "status", "phase") == "Succeeded"
    finish(world)
    assert list(world.guests) == [text(world.migrations["a"], "status", "targetPodName")]


@pytest.mark.parametrize("accident", [*EVENTS, *END])
def test_every_accident_at_every_step_of_the_way(accident: str) -> None:
    for at in range(0, len(WAY) + 1, 5):  # the round has seven steps: every one of them is met
        world = play([*WAY[:at], accident, *WAY[at:]])
        finish(world)
        assert len(world.guests) == len(world.pods) == len(world.vms)
        assert_all_has_ended(world)
