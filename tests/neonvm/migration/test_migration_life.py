"""In any order of events, even if they are seen late, exactly one guest runs in the end."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.neonvm.ports import PodRole
from protocol.kubernetes.objects import child, text
from tests.examples import examples
from tests.neonvm.migration.migration_model import MigrationModel, settle

Step = Callable[[MigrationModel], None]

WORK: dict[str, Step] = {
    "the VM is looked at": MigrationModel.look_at_vm,
    "migrations are looked at": MigrationModel.look_at_migrations,
    "pods are placed": MigrationModel.place,
    "kubelets work": MigrationModel.attend,
    "VMs are seen": lambda model: model.look("vms"),
    "migrations are seen": lambda model: model.look("migrations"),
    "pods are seen": lambda model: model.look("pods"),
}
EVENTS: dict[str, Step] = {
    "the guest arrives": MigrationModel.arrive,
    "a move is asked for": lambda model: model.ask_to_move("a"),
    "another move is asked for": lambda model: model.ask_to_move("b"),
    "the move fails": lambda model: model.fail(source_too=False),
    "both ends are lost": lambda model: model.fail(source_too=True),
    "a guest dies": lambda model: model.kill(0),
    "another guest dies": lambda model: model.kill(1),
    "a pod is deleted": lambda model: model.delete_pod(0),
    "another pod is deleted": lambda model: model.delete_pod(1),
    "the migration is deleted": lambda model: model.delete_migration("a"),
    "the runtime is restarted": MigrationModel.restart,
}
ROUND: dict[str, Step] = {"everybody does one thing": lambda model: settle(model, 1)}
END: dict[str, Step] = {"the VM is deleted": MigrationModel.delete_vm}
STEPS = {**WORK, **ROUND, **EVENTS, **END}

whatever = st.lists(st.sampled_from([*WORK, *list(ROUND) * 20, *EVENTS]), max_size=60)


def play(names: list[str]) -> MigrationModel:
    model = MigrationModel()
    settle(model, 5)
    for name in names:
        STEPS[name](model)
        assert not model.doubled, name
    return model


def finish(model: MigrationModel) -> None:
    """Time passes, nothing more happens, and everything that can arrive arrives."""
    for _ in range(2):
        settle(model)
        model.arrive()
        assert not model.doubled
    model.is_overdue = True
    settle(model)
    assert not model.doubled


def assert_all_has_ended(model: MigrationModel) -> None:
    for each in model.migrations.values():
        assert text(each, "status", "phase") in {"Succeeded", "Failed"}
        assert not child(each, "metadata").get("finalizers")


@settings(max_examples=examples(30, 120))
@given(whatever)
def test_one_guest_no_leftovers_all_end(names: list[str]) -> None:
    model = play(names)
    finish(model)
    vm = model.vms["db"]
    assert list(model.guests.values()) == [PodRole.RUNNING]
    assert list(model.pods) == list(model.guests) == [text(vm, "status", "podName")]
    assert (text(vm, "status", "phase"), model.is_held) == ("Running", False)
    assert_all_has_ended(model)


@settings(max_examples=examples(15, 40))
@given(whatever, whatever)
def test_a_vm_that_is_deleted_leaves_nothing(before: list[str], after: list[str]) -> None:
    model = play([*before, "the VM is deleted", *after])
    finish(model)
    assert (model.vms, model.pods, model.guests) == ({}, {}, {})
    assert_all_has_ended(model)


WAY = [*WORK, "a move is asked for", *list(WORK) * 8, "the guest arrives", *list(WORK) * 6]


def test_happy_path_reaches_other_node() -> None:
    model = play(WAY)
    assert text(model.migrations["a"], "status", "phase") == "Succeeded"
    finish(model)
    assert list(model.guests) == [text(model.migrations["a"], "status", "targetPodName")]


@pytest.mark.parametrize("accident", [*EVENTS, *END])
def test_every_accident_at_every_step_of_the_way(accident: str) -> None:
    for at in range(0, len(WAY) + 1, 5):  # the round has seven steps: every one of them is met
        model = play([*WAY[:at], accident, *WAY[at:]])
        finish(model)
        assert len(model.guests) == len(model.pods) == len(model.vms)
        assert_all_has_ended(model)
