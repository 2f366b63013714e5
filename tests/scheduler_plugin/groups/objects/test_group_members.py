"""The VMs of a group, as they are made and as they are read."""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import Json, child, items, labels_of
from protocol.kubernetes.timestamps import parse_timestamp
from protocol.units import Seconds
from protocol.virtual_machine import parse_virtual_machine
from scheduler_plugin.groups.core.replicas.group_plan import NewMember
from scheduler_plugin.groups.core.replicas.members import DatabaseObservation, Member, Role
from scheduler_plugin.groups.objects.group_members import belongs_to, member_vm, read_member, relevant_state
from scheduler_plugin.groups.objects.vm_group import parse_vm_group
from scheduler_plugin.groups.objects.writes import owner_reference
from tests.scheduler_plugin.groups.core.replicas.group_story import STANDBY
from tests.scheduler_plugin.groups.objects.sample_group import GUEST, shop

NOW = parse_timestamp("2026-01-01T00:01:00Z") or 0.0
SHOP = parse_vm_group(shop())
REPLICA = NewMember("shop-replica-0", Role.REPLICA, 0, "10.100.128.0")


def test_primary_comes_from_template() -> None:
    vm = member_vm(SHOP, NewMember("shop-primary", Role.PRIMARY))
    assert labels_of(vm) == {
        "autoscaling.neon.tech/enabled": "true",
        "autoscaling.neon.tech/group": "shop",
        "autoscaling.neon.tech/role": "primary",
    }
    assert child(vm, "metadata", "annotations") == {"team": "shop"}
    assert child(vm, "spec") == {
        "schedulerName": "autoscale-scheduler",
        "extraNetwork": {"enable": True},
        "guest": GUEST,
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": {"autoscaling.neon.tech/group": "shop"}},
                        },
                    }
                ]
            }
        },
    }
    assert (belongs_to(vm, SHOP), belongs_to({**vm, "metadata": {}}, SHOP)) == (True, False)
    assert parse_virtual_machine(vm).enabled


def test_replica_gets_primary_and_template() -> None:
    template: Json = {
        "spec": {"guest": {**GUEST, "appendKernelCmdline": "quiet"}, "affinity": {"nodeAffinity": {"a": 1}}}
    }
    vm = member_vm(parse_vm_group(shop(replicaTemplate=template)), REPLICA)
    assert child(vm, "spec", "guest")["appendKernelCmdline"] == "quiet autoscale.primary=10.100.128.0"
    assert child(vm, "spec", "affinity", "nodeAffinity") == {"a": 1}
    assert child(member_vm(SHOP, REPLICA), "spec", "guest")["appendKernelCmdline"] == "autoscale.primary=10.100.128.0"


def found(**status: object) -> Json:
    """The replica's VM as the API has it."""
    vm = member_vm(SHOP, REPLICA)
    metadata = {**child(vm, "metadata"), "uid": "u-0", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**vm, "metadata": metadata, "status": status}


def read(vm: Json, listed: frozenset[str] = frozenset()) -> Member | None:
    return read_member(vm, SHOP, listed, DatabaseObservation(STANDBY), NOW)


def test_a_member_is_read_from_its_vm() -> None:
    vm = found(
        extraNetIP="10.100.128.5", podIP="10.0.0.7", node="node-1", conditions=[{"type": "Available", "status": "True"}]
    )
    assert read(vm, frozenset({"u-0"})) == Member(
        name="shop-replica-0",
        uid="u-0",
        role=Role.REPLICA,
        ordinal=0,
        created="2026-01-01T00:00:00Z",
        source="10.100.128.0",
        address="10.100.128.5",
        node="node-1",
        available=True,
        listed=True,
        database=STANDBY,
    )


@pytest.mark.parametrize(
    ("path", "value", "decides"),
    [
        ("metadata.uid", "u-1", True),
        ("metadata.creationTimestamp", "2026-01-02T00:00:00Z", True),
        ("metadata.deletionTimestamp", "2026-01-02T00:00:00Z", True),
        ("metadata.ownerReferences", [], True),
        ("metadata.annotations", {"autoscaling.neon.tech/draining-since": "2026-01-01T00:00:20Z"}, True),
        ("metadata.annotations", {"autoscaling.neon.tech/permit": "{}"}, False),
        ("metadata.resourceVersion", "8", False),
        ("spec.guest", {"appendKernelCmdline": "autoscale.primary=10.100.128.9"}, True),
        ("spec.guest", {**GUEST, "appendKernelCmdline": "autoscale.primary=10.100.128.0", "cpus": {"use": 3}}, False),
        ("spec.extraNetwork", {"enable": False}, True),
        ("status.extraNetIP", "10.100.128.6", True),
        ("status.podIP", "10.0.0.8", True),
        ("status.node", "node-2", True),
        ("status.phase", "Asleep", True),
        ("status.phase", "Scaling", False),
        ("status.conditions", [{"type": "Available", "status": "True"}], True),
        ("status.conditions", [{"type": "Available", "status": "False", "message": "boots"}], False),
        ("status.cpus", "3", False),
    ],
)
def test_group_depends_on_few_fields_of_vms(path: str, value: object, decides: bool) -> None:
    """Every resize of a member, and every permit, had its group read its endpoint again."""
    vm, (part, field) = found(podIP="10.0.0.7", node="node-1"), path.split(".")
    changed: Json = {**vm, part: {**child(vm, part), field: value}}
    assert (relevant_state(vm) != relevant_state(changed)) is decides
    assert decides or read(vm) == read(changed)


def test_sleeping_member_is_healthy() -> None:
    """The first connection wakes it, so that it is no reason to make another one."""
    asleep = found(phase="Waking", conditions=[{"type": "Available", "status": "False"}])
    member = read_member(asleep, SHOP, frozenset(), DatabaseObservation(None, Seconds(900.0)), NOW)
    assert member is not None
    assert (member.available, member.silent) == (True, None)


def test_vm_without_network_uses_pod_address() -> None:
    vm = found(podIP="10.0.0.7")
    vm["spec"] = {**child(vm, "spec"), "extraNetwork": {"enable": False}}
    member = read(vm)
    assert member is not None
    assert (member.address, member.available, member.listed) == ("10.0.0.7", False, False)


def test_flat_vm_waits_for_address() -> None:
    member = read(found(podIP="10.0.0.7"))
    assert member is not None
    assert member.address == ""


def test_mark_dates_the_leave() -> None:
    ages = []
    for mark in ("2026-01-01T00:00:20Z", "2026-01-01T01:00:00Z", "yesterday"):
        vm = found()
        vm["metadata"] = {**child(vm, "metadata"), "annotations": {"autoscaling.neon.tech/draining-since": mark}}
        member = read(vm)
        assert member is not None
        ages.append((member.draining, member.has_invalid_mark))
    assert ages == [(Seconds(40.0), False), (Seconds(0.0), True), (Seconds(0.0), True)]


def test_misnamed_vm_is_no_member() -> None:
    vm = found()
    vm["metadata"] = {**child(vm, "metadata"), "name": "handmade"}
    assert read(vm) is None


def test_owned_objects_do_not_block_deletion() -> None:
    (reference,) = items(member_vm(SHOP, REPLICA), "metadata", "ownerReferences")
    object_of = {"apiVersion": "autoscaling.neon.tech/v1alpha1", "kind": "VirtualMachineGroup"}
    assert reference == {**object_of, "name": "shop", "uid": SHOP.uid, "controller": True}
    found: Json = {**object_of, "metadata": {"name": "shop", "uid": SHOP.uid}}
    assert owner_reference(found) == reference
