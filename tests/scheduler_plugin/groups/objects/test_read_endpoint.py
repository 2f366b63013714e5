"""The read endpoint: a headless Service whose slice lists who serves, and who still has clients."""

from __future__ import annotations

from dataclasses import replace

from protocol.kubernetes.endpoint_slices import ready_addresses
from protocol.kubernetes.objects import child, items
from protocol.units import Seconds
from scheduler_plugin.groups.core.replicas.group_plan import plan_group
from scheduler_plugin.groups.objects.group_members import (
    differs,
    endpoint_slice,
    listed_uids,
    read_service,
)
from scheduler_plugin.groups.objects.vm_group import parse_vm_group
from tests.scheduler_plugin.groups.core.replicas.group_story import PRIMARY, SHOP, replica
from tests.scheduler_plugin.groups.objects.sample_group import shop

GROUP = parse_vm_group(shop())


def test_the_service_is_headless_and_selects_nothing() -> None:
    service = read_service(GROUP)
    assert child(service, "metadata")["name"] == "shop-read"
    assert service["spec"] == {
        "clusterIP": "None",
        "type": "ClusterIP",
        "ports": [{"name": "postgres", "port": 5432, "protocol": "TCP"}],
    }


def test_slice_lists_serving_and_draining() -> None:
    draining = replica(1, draining=Seconds(2.0))
    plan = plan_group(replace(SHOP, replicas=1), [PRIMARY, replica(0), draining, replica(2, available=False)], True)
    found = endpoint_slice(GROUP, plan)
    assert child(found, "metadata", "labels")["kubernetes.io/service-name"] == "shop-read"
    assert [(each["addresses"], each["conditions"]) for each in items(found, "endpoints")] == [
        (["10.100.128.1"], {"ready": True, "serving": True, "terminating": False}),
        (["10.100.128.2"], {"ready": False, "serving": True, "terminating": True}),
    ]
    assert listed_uids(found) == {"u-0"}
    assert ready_addresses(found) == [("10.100.128.1", 5432)]
    assert items(found, "endpoints")[0]["targetRef"] == {
        "kind": "VirtualMachine",
        "namespace": "default",
        "name": "shop-replica-0",
        "uid": "u-0",
    }


def test_replica_without_an_address_is_not_listed() -> None:
    """The API would refuse the whole slice, and the group would make no progress."""
    without = replica(1, draining=Seconds(2.0), address="")
    plan = plan_group(replace(SHOP, replicas=1), [PRIMARY, replica(0), without], True)
    found = endpoint_slice(GROUP, plan)
    assert [each["addresses"] for each in items(found, "endpoints")] == [["10.100.128.1"]]


def test_unchanged_slice_is_not_written() -> None:
    one = endpoint_slice(GROUP, plan_group(SHOP, [PRIMARY, replica(0)], True))
    two = endpoint_slice(GROUP, plan_group(SHOP, [PRIMARY, replica(0), replica(1)], True))
    assert (differs({**one, "metadata": {}}, one), differs(one, two)) == (False, True)
