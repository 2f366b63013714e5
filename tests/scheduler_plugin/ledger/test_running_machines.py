"""The running machine bounds a guest's reservation, even if its spec changes later."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from protocol.kubernetes.objects import Json
from scheduler_plugin.cluster.virtual_machines import read_vm, vm_facts
from tests.scheduler_plugin.ledger.fleet import Fleet, amount, name, node, vm, vm_pod

RAISED: Json = {
    "metadata": {
        "namespace": "db",
        "name": "a",
        "uid": "a-first",
        "resourceVersion": "1",
        "labels": {"autoscaling.neon.tech/enabled": "true"},
    },
    "spec": {"guest": {"cpus": {"min": 1, "max": 8, "use": 1}, "memorySlots": {"min": 1, "max": 8, "use": 1}}},
    "status": {
        "phase": "Running",
        "podName": "a-pod",
        "cpus": 1,
        "memorySize": "1Gi",
        "machine": {"maxCpus": "4", "minMemory": "1Gi", "maxMemory": "2Gi"},
    },
}


@pytest.mark.parametrize("use", [1, 8], ids=["by its agent", "by hand"])
def test_reservation_is_capped_by_machine(use: int) -> None:
    """The maximum is raised while the guest runs; then its agent, or a user, requests all of it."""
    guest = {"cpus": {"min": 1, "max": 8, "use": use}, "memorySlots": {"min": 1, "max": 8, "use": use}}
    facts = vm_facts(read_vm({**RAISED, "spec": {"guest": guest}}))
    fleet = Fleet(node(total=21), facts, vm_pod("a", "n1"))
    assert fleet.grant("a", amount(8)) == amount(4, 2)
    assert fleet.reserved("a") == amount(4, 2)


@pytest.mark.parametrize(
    ("pod", "migration", "reserved"),
    [("a-pod", None, 4), ("a-next", None, 8), ("a-next", "a-1", 4)],
    ids=["its pod", "the pod after a restart", "the target of a move"],
)
def test_new_pod_reserves_what_the_spec_asks(pod: str, migration: str | None, reserved: int) -> None:
    """The next guest boots with the current spec. Its pod may be seen before the VM's status names it."""
    facts = msgspec.structs.replace(vm("a", amount(4), pod=name("a-pod")), after_restart=amount(8))
    found = replace(vm_pod("a", "n1"), name=name(pod), migration=name(migration) if migration else None)
    assert Fleet(node(total=21), facts, found).reserved("a") == amount(reserved)
