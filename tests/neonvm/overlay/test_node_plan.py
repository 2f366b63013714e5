"""One node's part of the flat network: what is made, where frames go, and who may have which address."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.overlay.node_plan import (
    NodePlace,
    forwarding,
    made_of,
    peers,
    plugged_in,
    rightful_address,
    tap_name,
)
from protocol.kubernetes.objects import Json

HERE = NodePlace("n1", "10.0.0.1", 1500)
EVERYBODY = "00:00:00:00:00:00"


def node(name: str, *addresses: str, kind: str = "InternalIP") -> Json:
    found = [{"type": kind, "address": each} for each in addresses]
    return {"metadata": {"name": name}, "status": {"addresses": found}}


def test_the_bridge_and_the_tunnel_are_made_once_and_set_each_time() -> None:
    lines = made_of(HERE, ["lo", "eth0"])
    assert lines == [
        "link add neonvm0 type bridge mcast_snooping 0",
        "link add neonvm-vxlan type vxlan id 4097 dstport 8479 local 10.0.0.1",
        "link set neonvm-vxlan mtu 1450 master neonvm0 addrgenmode none up",
        "link set neonvm0 mtu 1450 addrgenmode none up",
    ]
    assert made_of(HERE, ["neonvm0", "neonvm-vxlan"]) == lines[2:]


def test_a_tap_is_plugged_into_the_bridge_under_a_name_of_its_own() -> None:
    assert plugged_in("nv1", 1450) == ["link set nv1 mtu 1450 master neonvm0 addrgenmode none up"]
    assert (len(tap_name("uid-1")), tap_name("uid-1") == tap_name("uid-2")) == (15, False)


def test_the_peers_are_the_other_nodes_internal_addresses() -> None:
    nodes = [
        node("n1", "10.0.0.1"),
        node("n2", "10.0.0.2", "fd00::2"),
        node("n3", "x"),
        node("n4", "1.2.3.4", kind="ExternalIP"),
    ]
    assert peers(nodes, "n1") == {"10.0.0.2"}


@given(st.sets(st.sampled_from("abcd")), st.sets(st.sampled_from("abcd")))
def test_frames_for_everybody_go_to_the_present_nodes_alone(before: set[str], wanted: set[str]) -> None:
    present = [{"mac": EVERYBODY, "dst": each} for each in before] + [{"mac": "52:54:00:64:80:01", "dst": "z"}]
    has = set(before)
    for line in forwarding(present, frozenset(wanted)):
        _, verb, mac, *_, peer = line.split()
        assert mac == EVERYBODY
        (has.add if verb == "append" else has.discard)(peer)
    assert has == wanted


def pod(kind: str = "VirtualMachine", uid: str = "v1") -> Json:
    return {"metadata": {"ownerReferences": [{"kind": kind, "uid": uid}]}}


VM: Json = {"metadata": {"uid": "v1"}, "status": {"extraNetIP": "10.100.128.7"}}


@pytest.mark.parametrize(
    ("of", "vm", "claim_of", "expected"),
    [
        (pod(), VM, "v1", "10.100.128.7"),
        (pod("VirtualMachineMigration", "m1"), VM, "v1", "10.100.128.7"),
        (pod(), VM, "v2", ""),
        (pod(uid="v2"), VM, "v1", ""),
        (pod("ReplicaSet"), VM, "v1", ""),
        (pod(), {"metadata": {"uid": "v1"}}, "v1", ""),
        (pod(), {"metadata": {"uid": "v1"}, "status": {"extraNetIP": "nonsense"}}, "v1", ""),
        ({}, {}, "", ""),
    ],
)
def test_a_pod_gets_the_address_that_its_vm_has_claimed(of: Json, vm: Json, claim_of: str, expected: str) -> None:
    assert rightful_address(of, vm, claim_of) == expected
