"""A VM that waits for a new pod needs room for its spec, not for the size of its last guest."""

from __future__ import annotations

import pytest

from protocol.units import Resources
from scheduler_plugin.cluster.virtual_machines import read_vm, vm_facts


@pytest.mark.parametrize(
    ("phase", "counts"),
    [("Running", True), ("Scaling", True), ("Migrating", True), ("", True), ("Pending", False), ("Failed", False)],
)
def test_a_status_counts_while_a_guest_may_run(phase: str, counts: bool) -> None:
    guest = {"cpus": {"min": 1, "use": 1, "max": 4}, "memorySlots": {"min": 1, "use": 1, "max": 4}}
    status = {"phase": phase, "cpus": 4, "memorySize": "4Gi"}
    obj = {"metadata": {"namespace": "db", "name": "a"}, "spec": {"guest": guest}, "status": status}
    assert vm_facts(read_vm(obj)).actual == (Resources.parse(4, "4Gi") if counts else None)
