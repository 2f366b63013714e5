"""The machine in which a guest runs limits the sizes of its VirtualMachine, also after its spec was edited."""

from __future__ import annotations

import json

import pytest

from protocol.names import ANNOTATION_BOUNDS
from protocol.running_machine import RunningMachine
from protocol.units import MilliCpu, Resources
from protocol.virtual_machine import Bounds, parse_virtual_machine
from tests.protocol.whole_vm import GI, with_value

MACHINE = {"maxCpus": 2, "minMemory": "1Gi", "maxMemory": "4Gi"}


@pytest.mark.parametrize(
    ("guest", "low", "high", "use", "after_restart"),
    [
        (
            {"cpus": {"min": 1, "max": 8, "use": 8}, "memorySlots": {"min": 2, "max": 32, "use": 16}},
            ("1", "1Gi"),
            ("2", "4Gi"),
            ("2", "4Gi"),
            ("8", "8Gi"),
        ),
        (
            {"cpus": {"min": "250m", "max": 1, "use": 1}, "memorySlots": {"min": 3, "max": 6, "use": 4}},
            ("250m", "1536Mi"),
            ("1", "3Gi"),
            ("1", "2Gi"),
            None,
        ),
        (
            {"cpus": {"min": 4, "max": 8}, "memorySlots": {"min": 1, "max": 1}},
            ("2", "1Gi"),
            ("2", "1Gi"),
            ("2", "1Gi"),
            ("4", "512Mi"),
        ),
        (
            {"memorySlotSize": "768Mi", "memorySlots": {"min": 1, "max": 8, "use": 2}},
            ("1", "1536Mi"),
            ("1", "3840Mi"),
            ("1", "1536Mi"),
            None,
        ),
        (
            {"memorySlotSize": "8Gi", "memorySlots": {"min": 1, "max": 8, "use": 1}},
            ("1", "4Gi"),
            ("1", "4Gi"),
            ("1", "4Gi"),
            ("1", "8Gi"),
        ),
    ],
    ids=["raised", "narrowed", "beside the machine", "other slots", "slots that never fit"],
)
def test_sizes_are_those_the_running_machine_can_take(
    guest: dict[str, object],
    low: tuple[str, str],
    high: tuple[str, str],
    use: tuple[str, str],
    after_restart: tuple[str, str] | None,
) -> None:
    """An edited spec applies at the next start: no size is reserved or ordered that the running guest cannot have."""
    edited = {**with_value("status/machine", MACHINE), "spec": {"guest": {"memorySlotSize": "512Mi", **guest}}}
    vm = parse_virtual_machine(edited)
    assert vm.bounds == Bounds(Resources.parse(*low), Resources.parse(*high))
    assert (vm.use, vm.problems) == (Resources.parse(*use), ())
    assert vm.after_restart == (after_restart and Resources.parse(*after_restart))
    assert vm.machine == RunningMachine(MilliCpu(2000), GI, GI * 4)


@pytest.mark.parametrize("phase", ["Asleep", "Waking"])
def test_sleeping_vm_keeps_its_machine(phase: str) -> None:
    """Its status has no size; its machine still limits the size with which it wakes."""
    vm = with_value(
        "status", {"phase": phase, "podName": "pg-x7", "cpus": None, "memorySize": None, "machine": MACHINE}
    )
    asleep = parse_virtual_machine(vm)
    assert (asleep.phase, asleep.actual, asleep.problems) == (phase, None, ())
    assert asleep.use == Resources.parse("500m", "2Gi")
    assert asleep.machine == RunningMachine(MilliCpu(2000), GI, GI * 4)


def test_annotated_bounds_are_clipped_too() -> None:
    vm = with_value("status/machine", MACHINE)
    text = json.dumps({"min": {"cpu": 1, "mem": "512Mi"}, "max": {"cpu": 4, "mem": "8Gi"}})
    vm["metadata"] = {"namespace": "default", "name": "pg", "annotations": {ANNOTATION_BOUNDS: text}}
    assert parse_virtual_machine(vm).bounds == Bounds(Resources.parse(1, "1Gi"), Resources.parse(2, "4Gi"))


@pytest.mark.parametrize(
    ("machine", "problem"),
    [
        ({"maxCpus": 2, "minMemory": "1Gi"}, "status.machine.maxMemory: expected a quantity, got None"),
        ({**MACHINE, "maxCpus": True}, "status.machine.maxCpus: expected a quantity, got True"),
        ({**MACHINE, "maxCpus": -1}, "status.machine.maxCpus: expected a quantity of zero or more, got -1"),
        ({**MACHINE, "maxCpus": 0}, "status.machine: expected maxCpus > 0 and minMemory <= maxMemory > 0"),
        ({**MACHINE, "minMemory": "5Gi"}, "status.machine: expected maxCpus > 0 and minMemory <= maxMemory > 0"),
        ({**MACHINE, "minMemory": 0, "maxMemory": 0}, "status.machine: expected maxCpus > 0"),
    ],
)
def test_machine_that_cannot_be_read_is_a_problem(machine: object, problem: str) -> None:
    vm = parse_virtual_machine(with_value("status/machine", machine))
    assert (vm.machine, vm.bounds.max, len(vm.problems)) == (None, Resources.parse(4, "8Gi"), 1)
    assert vm.problems[0].startswith(problem)


@pytest.mark.parametrize("machine", [None, {}, "large"])
def test_status_without_a_machine_leaves_the_spec(machine: object) -> None:
    vm = parse_virtual_machine(with_value("status/machine", machine))
    assert (vm.machine, vm.bounds.max, vm.problems, vm.after_restart) == (None, Resources.parse(4, "8Gi"), (), None)
