"""The agent's view of a VM's object: its order to sleep, its sleep, and what keeps it awake."""

from __future__ import annotations

import pytest

from agent.core.vm import view
from protocol.guest.sleep import SleepReport, SleepState
from protocol.names import ANNOTATION_SLEEP, LABEL_KEEP_AWAKE, LABEL_ROLE
from protocol.units import ZERO, Resources
from protocol.virtual_machine import parse_virtual_machine


def test_view_bounds_the_order_and_empties_a_sleeper() -> None:
    metadata = {"namespace": "a", "name": "b", "annotations": {ANNOTATION_SLEEP: "x" * 129}}
    guest = {"cpus": {"min": 1}, "memorySlots": {"min": 1}}
    status = {"phase": "Waking", "cpus": 1, "memorySize": "1Gi", "sleep": {"order": "a", "state": "Waking"}}
    found = view(parse_virtual_machine({"metadata": metadata, "spec": {"guest": guest}, "status": status}), "p")
    assert (found.order, found.actual, found.use) == ("", ZERO, Resources.parse(1, "1Gi"))
    assert (found.is_waking, found.sleeps, found.resizable) == (True, True, False)
    assert found.sleep == SleepReport("a", SleepState.WAKING)


@pytest.mark.parametrize(
    ("phase", "state", "use", "actual"),
    [("Asleep", "Asleep", 3, 0), ("Waking", "Waking", 3, 0), ("Running", "Waking", 1, 3), ("Running", "Awake", 1, 1)],
)
def test_sleeper_wakes_with_what_it_had(phase: str, state: str, use: int, actual: int) -> None:
    """The size in the spec was lowered during sleep."""
    guest = {"cpus": {"min": 1}, "memorySlots": {"min": 1}}
    status = {"phase": phase, "sleep": {"state": state, "cpus": "3", "memory": "1Gi"}}
    vm = {"metadata": {"namespace": "a", "name": "b"}, "spec": {"guest": guest}, "status": status}
    found = view(parse_virtual_machine(vm), "p")
    assert (found.use.cpu.as_cores, found.actual.cpu.as_cores) == (use, actual)


@pytest.mark.parametrize(("phase", "holds"), [("Running", 4), ("Asleep", 0), ("Waking", 1)])
def test_growth_in_progress_is_held(phase: str, holds: int) -> None:
    """A resize that has not ended, although less was ordered since."""
    guest = {"cpus": {"min": 1}, "memorySlots": {"min": 1}}
    growing = {"cpus": "4", "memorySize": "1Gi"}
    status = {"phase": phase, "cpus": 1, "memorySize": "1Gi", "growingTo": growing}
    found = view(
        parse_virtual_machine(
            {"metadata": {"namespace": "a", "name": "b"}, "spec": {"guest": guest}, "status": status}
        ),
        "p",
    )
    assert found.holds.cpu.as_cores == holds


@pytest.mark.parametrize(
    ("labels", "because"),
    [
        ({}, "its controller does not support sleep"),
        ({LABEL_KEEP_AWAKE: "false", LABEL_ROLE: "primary"}, "its controller does not support sleep"),
        ({LABEL_KEEP_AWAKE: "true", LABEL_ROLE: "replica"}, f"its label {LABEL_KEEP_AWAKE} keeps it awake"),
        ({LABEL_ROLE: "replica"}, "it is a standby"),
    ],
)
def test_labels_keep_vm_awake(labels: dict[str, str], because: str) -> None:
    guest = {"cpus": {"min": 1}, "memorySlots": {"min": 1}}
    found = parse_virtual_machine(
        {"metadata": {"namespace": "a", "name": "b", "labels": labels}, "spec": {"guest": guest}}
    )
    assert view(found, "p").never_sleeps == because
