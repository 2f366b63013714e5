"""The plan: addresses and routes of nodes, and the objects that they begin with."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from deploy.local.kubernetes.plan.cluster_plan import (
    API_SERVICE,
    CONTROL_HOST,
    DNS_SERVICE,
    MAX_NODES,
    POD_RANGE,
    SERVICE_RANGE,
    NodePlan,
    missing_nodes,
    node_object,
    unavailable,
)
from protocol.kubernetes.objects import Json
from tests.local.kubernetes.sample_plan import FIRST, MACHINE, PLAN, SECOND

NODES = st.integers(1, MAX_NODES).map(lambda number: NodePlan(f"node-{number}", number, MACHINE, {}, ()))


def with_condition(name: str, condition: str, status: str) -> Json:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": condition, "status": status}]}}


def test_nodes_route_to_each_others_pods() -> None:
    to_first = "route add 10.244.1.0/24 via 10.100.0.11 dev br0"
    to_second = "route add 10.244.2.0/24 via 10.100.0.12 dev br0"
    assert (PLAN.routes(FIRST), PLAN.routes(SECOND)) == ([to_second], [to_first])
    assert PLAN.routes(None) == [to_first, to_second]


@given(NODES, NODES)
def test_nodes_have_distinct_addresses_and_subnets(one: NodePlan, other: NodePlan) -> None:
    same = one.number == other.number
    assert (one.address == other.address) == same
    assert ip_network(one.pod_subnet).overlaps(ip_network(other.pod_subnet)) == same
    assert ip_network(one.pod_subnet).subnet_of(ip_network(POD_RANGE))  # type: ignore[arg-type]
    assert one.address != CONTROL_HOST


def test_the_addresses_of_services_lie_in_their_range() -> None:
    assert all(ip_address(each) in ip_network(SERVICE_RANGE) for each in (API_SERVICE, DNS_SERVICE))


def test_node_registers_labels_taints_subnet() -> None:
    assert node_object(SECOND) == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "node-2",
            "labels": {"kubernetes.io/hostname": "node-2", "kubernetes.io/os": "linux", "zone": "b"},
        },
        "spec": {
            "podCIDR": "10.244.2.0/24",
            "podCIDRs": ["10.244.2.0/24"],
            "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
        },
    }


def test_pods_use_cluster_cgroup() -> None:
    assert (PLAN.cgroup, PLAN.node_cgroup(SECOND)) == ("autoscale.shop", "autoscale.shop/node-2")


def test_unready_or_absent_node_is_missing() -> None:
    assert missing_nodes(PLAN, [with_condition("node-1", "Ready", "True")]) == ["node-2"]
    assert missing_nodes(PLAN, [with_condition("node-1", "Ready", "Unknown")]) == ["node-1", "node-2"]


def test_objects_without_the_condition_are_not_ready() -> None:
    objects = [with_condition("dns", "Available", "False"), with_condition("api", "Available", "True"), {}]
    assert unavailable([{"metadata": {"name": "a"}}, *objects[:2]]) == ["a", "dns"]
