"""A VM that is unreadable, entirely or in part, counts at its maximum."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import names
from protocol.guest.sleep import ASLEEP, WAKING
from protocol.messages import ObjectName
from protocol.units import ZERO, Resources
from protocol.virtual_machine import InvalidObjectError, parse_virtual_machine
from scheduler_plugin.cluster.virtual_machines import read_vm, vm_at_most, vm_facts
from scheduler_plugin.ledger.facts import RUNNING, VmFacts
from tests.scheduler_plugin.objects import Obj, vm


def broken(**guest: Any) -> Obj:
    """A VM of 1 to 8 CPUs and 1 to 16 slots of 1Gi, with something else in its ``spec.guest``."""
    obj = vm("db", 2, 4)
    obj["metadata"]["resourceVersion"] = "7"
    obj["spec"]["guest"] |= guest
    obj["status"] |= {"cpus": 3, "memorySize": "5Gi"}
    return obj


def at_most(obj: Obj) -> VmFacts:
    with pytest.raises(InvalidObjectError):
        parse_virtual_machine(obj)
    return vm_facts(vm_at_most(obj, "because"))


@pytest.mark.parametrize(
    ("guest", "use", "is_bounded"),
    [
        ({"cpus": {"min": 4, "max": 2, "use": 1}}, Resources.parse(4, "16Gi"), True),
        ({"memorySlots": {"min": 1, "max": 600, "use": 1}}, Resources.parse(8, "600Gi"), True),
        ({"cpus": {"min": 4, "max": "lots", "use": 1}}, Resources.parse(3, "16Gi"), False),
        ({"cpus": "lots"}, Resources.parse(3, "16Gi"), False),
        ({"memorySlotSize": "100Mi"}, Resources.parse(8, "5Gi"), True),
        ({"memorySlotSize": True}, Resources.parse(8, "5Gi"), False),
        ({"memorySlots": {"min": 1, "max": "1e999999999"}}, Resources.parse(8, "5Gi"), False),
        ({"cpus": {"min": "-1"}, "memorySlots": {}}, Resources.parse(3, "5Gi"), False),
    ],
)
def test_unreadable_vm_counts_at_largest_size(guest: Obj, use: Resources, is_bounded: bool) -> None:
    facts = at_most(broken(**guest))
    told = (facts.use, facts.is_bounded, facts.unreadable, facts.stays_because)
    assert told == (use, is_bounded, "because", "not readable")
    assert (facts.name.name, facts.uid, facts.version, facts.pod and facts.pod.name) == ("db", "vm-db", 7, "db-pod")


@pytest.mark.parametrize(
    ("annotated", "permit"),
    [('{"vCPUs":"7","mem":"9Gi"}', Resources.parse(7, "9Gi")), ("garbage", Resources.parse(4, "16Gi"))],
)
def test_permit_of_unreadable_vm_counts(annotated: str, permit: Resources) -> None:
    obj = broken(cpus={"min": 4, "max": 2, "use": 1})
    obj["metadata"]["annotations"] = {"autoscaling.neon.tech/permit": annotated}
    assert at_most(obj).permit == permit


def test_unreadable_permit_counts_as_maximum() -> None:
    obj = vm("db", 2, 4)
    obj["metadata"]["annotations"] = {"autoscaling.neon.tech/permit": '{"vCPUs":"1e1000000000000000000","mem":1}'}
    facts = vm_facts(read_vm(obj))
    assert (facts.use, facts.permit) == (Resources.parse(2, "4Gi"), Resources.parse(8, "16Gi"))


def test_unreadable_status_counts_as_maximum() -> None:
    obj = vm("db", 2, 4)
    obj["status"] |= {"cpus": [], "memorySize": "1Gi"}
    assert vm_facts(read_vm(obj)).actual == Resources.parse(8, "16Gi")


@pytest.mark.parametrize("phase", [ASLEEP, WAKING])
def test_sleeping_vm_uses_nothing(phase: str) -> None:
    obj = vm("db", 2, 4)
    obj["status"] |= {"phase": phase, "cpus": None, "memorySize": None}
    facts = vm_facts(read_vm(obj))
    size = Resources.parse(2, "4Gi")
    assert (facts.use, facts.actual, facts.wakes_with) == (ZERO, None, size)
    assert facts.may_be_woken == (size if phase == WAKING else ZERO)
    assert facts.runs_in(ObjectName("default", "db-pod"))


@pytest.mark.parametrize(
    ("phase", "state", "is_waking"), [(RUNNING, WAKING, True), (RUNNING, "Awake", False), (WAKING, WAKING, False)]
)
def test_vm_is_waking_until_its_memory_is_read(phase: str, state: str, *, is_waking: bool) -> None:
    """Its phase says before that that it runs."""
    obj = vm("db", 2, 4)
    obj["status"] |= {"phase": phase, "sleep": {"state": state}}
    assert vm_facts(read_vm(obj)).is_waking is is_waking


@pytest.mark.parametrize(
    ("phase", "state", "enabled", "cpus", "wakes_with"),
    [
        (ASLEEP, ASLEEP, True, 0, 3),
        (WAKING, WAKING, True, 0, 3),
        (ASLEEP, ASLEEP, False, 3, None),
        (RUNNING, WAKING, True, 3, None),
        (RUNNING, "Awake", True, 2, None),
    ],
)
def test_guest_wakes_with_what_it_had(
    phase: str, state: str, *, enabled: bool, cpus: int, wakes_with: int | None
) -> None:
    """The size in the spec was lowered while it slept; that counts once the guest has followed."""
    obj = vm("db", 2, 4)
    obj["metadata"]["labels"] = {names.LABEL_ENABLED: "true"} if enabled else {}
    slept = {"state": state, "cpus": "3", "memory": "2Gi"}
    obj["status"] |= {"phase": phase, "cpus": None, "memorySize": None, "sleep": slept}
    facts = vm_facts(read_vm(obj))
    expected = None if wakes_with is None else Resources.parse(wakes_with, "4Gi")
    assert (facts.use, facts.wakes_with) == (Resources.parse(cpus, "4Gi" if cpus else 0), expected)


def test_old_size_of_a_sleeping_vm_is_ignored() -> None:
    obj = vm("db", 2, 4)
    obj["status"] |= {"phase": ASLEEP, "cpus": 2, "memorySize": "4Gi"}
    assert vm_facts(read_vm(obj)).actual is None


def test_sleeping_vm_without_agent_counts_as_ever() -> None:
    """No agent would request a permit before it wakes."""
    obj = vm("db", 2, 4)
    obj["metadata"]["labels"] = {}
    obj["status"] |= {"phase": ASLEEP, "cpus": None, "memorySize": None}
    facts = vm_facts(read_vm(obj))
    assert (facts.use, facts.wakes_with) == (Resources.parse(2, "4Gi"), None)


def test_bounds_above_the_spec_are_ignored_and_named() -> None:
    obj = vm("db", 6, 12)
    bounds = {"min": {"cpu": 1, "mem": "1Gi"}, "max": {"cpu": 64, "mem": "16Gi"}}
    obj["metadata"]["annotations"] = {"autoscaling.neon.tech/bounds": json.dumps(bounds)}
    found = read_vm(obj)
    assert "both within 250m cpu, 1Gi to 8 cpu, 16Gi as in spec.guest" in found.problems[0]
    assert (vm_facts(found).use, vm_facts(found).maximum) == (Resources.parse(6, "12Gi"), Resources.parse(8, "16Gi"))


garbage = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
)


@given(garbage, garbage, garbage)
def test_anything_is_a_vm_at_most(metadata: object, cpus: object, status: object) -> None:
    found = vm_facts(vm_at_most({"metadata": metadata, "spec": {"guest": {"cpus": cpus}}, "status": status}, "because"))
    assert found.unreadable == "because"


@pytest.mark.parametrize(
    ("growing", "actual"),
    [
        ({}, Resources.parse(3, "5Gi")),
        ({"growingTo": {"cpus": "6", "memorySize": "4Gi"}}, Resources.parse(6, "5Gi")),
        ({"growingTo": {"cpus": "6", "memorySize": "4Gi"}, "cpus": None}, Resources.parse(6, "4Gi")),
        ({"growingTo": {"cpus": "lots", "memorySize": "4Gi"}}, Resources.parse(8, "16Gi")),
    ],
)
def test_guest_counts_at_size_it_may_reach(growing: Obj, actual: Resources) -> None:
    """Its agent may have lowered ``use`` since, but the resize has not ended."""
    obj = broken()
    obj["status"] |= growing
    assert vm_facts(read_vm(obj)).actual == actual


def test_unreadable_vm_may_still_grow() -> None:
    obj = broken(memorySlotSize="100Mi")
    obj["status"] |= {"growingTo": {"cpus": "9", "memorySize": "6Gi"}}
    assert at_most(obj).use == Resources.parse(9, "6Gi")
