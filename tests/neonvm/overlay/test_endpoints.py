"""Addresses of the flat network, and the pods and nodes that may use them."""

from __future__ import annotations

import pytest

from deploy.neonvm.overlay.endpoints import (
    LABEL_CLIENT,
    Endpoint,
    FlatObjects,
    allowed_address,
    client_claim,
    endpoints,
    trimmed,
)
from deploy.neonvm.remote.address_choice import claim
from protocol.kubernetes.objects import Json, child, name_of
from protocol.messages import ObjectName

ADDRESS = "10.111.0.7"
VM: Json = {
    "metadata": {"namespace": "shop", "name": "db", "uid": "v1"},
    "status": {"extraNetIP": ADDRESS, "podName": "db-1", "node": "a"},
}
MOVE: Json = {
    "metadata": {"namespace": "shop", "name": "move", "uid": "m1"},
    "spec": {"vmName": "db"},
    "status": {"phase": "Running", "sourceNode": "a", "targetNode": "b", "targetPodName": "db-2"},
}
MINE = claim(VM, ADDRESS)


def objects(*claims: Json, vm: Json = VM, moves: tuple[Json, ...] = ()) -> FlatObjects:
    return FlatObjects({name_of(each): each for each in claims}, {name_of(vm): vm}, moves)


def with_status(found: Json, **status: str) -> Json:
    return {**found, "status": {**child(found, "status"), **status}}


def pod(name: str, kind: str, uid: str, namespace: str = "shop", vm: str = "db") -> Json:
    owner = {"kind": kind, "uid": uid}
    labels = {"vm.neon.tech/name": vm}
    return {"metadata": {"namespace": namespace, "name": name, "labels": labels, "ownerReferences": [owner]}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (objects(MINE), [Endpoint(ADDRESS, "shop", ("a",))]),
        (objects(MINE, moves=(MOVE,)), [Endpoint(ADDRESS, "shop", ("a", "b"))]),
        (objects(MINE, moves=(with_status(MOVE, phase="Succeeded"),)), [Endpoint(ADDRESS, "shop", ("a",))]),
        (objects(MINE, moves=(with_status(MOVE, targetNode=""),)), [Endpoint(ADDRESS, "shop", ("a",))]),
        (objects(MINE, moves=({**MOVE, "spec": {"vmName": "other"}},)), [Endpoint(ADDRESS, "shop", ("a",))]),
        (objects(MINE, vm=with_status(VM, node="")), [Endpoint(ADDRESS, "shop", ())]),
        (objects(MINE, vm=with_status(VM, extraNetIP="10.111.0.8")), []),
        (objects(claim({**VM, "metadata": {**child(VM, "metadata"), "uid": "v0"}}, ADDRESS)), []),
        (
            objects(claim(with_status(VM, extraNetIP="fd00::1"), "fd00::1"), vm=with_status(VM, extraNetIP="fd00::1")),
            [],
        ),
        (objects({"metadata": {"name": "10.96.0.1"}}), []),
        (objects({**MINE, "metadata": {"name": "10.111.0.9", "labels": {LABEL_CLIENT: "true"}}}), []),
        (objects({**client_claim("10.111.0.9", "c"), "metadata": {"name": "10.111.0.9"}}), []),
        (
            objects(client_claim("10.111.255.254", "c")),
            [Endpoint("10.111.255.254", "", ("c",))],
        ),
    ],
)
def test_addresses_are_where_the_api_says(found: FlatObjects, expected: list[Endpoint]) -> None:
    assert endpoints(found) == expected


@pytest.mark.parametrize(
    ("candidate", "found", "expected"),
    [
        (pod("db-1", "VirtualMachine", "v1"), objects(MINE), ADDRESS),
        (pod("db-2", "VirtualMachineMigration", "m1"), objects(MINE, moves=(MOVE,)), ADDRESS),
        (pod("db-9", "VirtualMachine", "v1"), objects(MINE), ""),
        (pod("db-1", "VirtualMachine", "v0"), objects(MINE), ""),
        (pod("db-1", "ReplicaSet", "v1"), objects(MINE), ""),
        (pod("db-1", "VirtualMachineMigration", "m1"), objects(MINE, moves=(MOVE,)), ""),
        (pod("db-2", "VirtualMachineMigration", "m0"), objects(MINE, moves=(MOVE,)), ""),
        (pod("db-2", "VirtualMachineMigration", "m1"), objects(MINE), ""),
        (pod("db-2", "VirtualMachineMigration", "m1"), objects(MINE, moves=(with_status(MOVE, phase="Failed"),)), ""),
        (
            pod("db-2", "VirtualMachineMigration", "m1"),
            objects(MINE, moves=({**MOVE, "spec": {"vmName": "other"}},)),
            "",
        ),
        (pod("db-1", "VirtualMachine", "v1", namespace="evil"), objects(MINE), ""),
        (pod("db-1", "VirtualMachine", "v1", vm="other"), objects(MINE), ""),
        (pod("db-1", "VirtualMachine", "v1"), objects(), ""),
        (pod("db-1", "VirtualMachine", "v1"), objects(MINE, vm=with_status(VM, extraNetIP="nonsense")), ""),
        (
            pod("db-1", "VirtualMachine", ""),
            objects(MINE, vm={**VM, "metadata": {"namespace": "shop", "name": "db"}}),
            "",
        ),
        ({}, objects(), ""),
    ],
)
def test_pod_gets_address_of_its_vm(candidate: Json, found: FlatObjects, expected: str) -> None:
    """Its labels and owners prove nothing, because the pod's creator writes them."""
    assert allowed_address(candidate, found) == expected


def test_little_is_kept_of_each_object() -> None:
    large: Json = {
        "metadata": {**child(VM, "metadata"), "annotations": {"a": "b"}, "labels": {"a": "b"}},
        "spec": {"guest": {}},
        "status": {**child(VM, "status"), "conditions": []},
    }
    kept = trimmed(large)
    assert (name_of(kept), child(kept, "metadata")["labels"]) == (ObjectName("shop", "db"), {})
    assert not child(kept, "status").keys() & {"conditions"}
    for found in (VM, MOVE, MINE):
        assert endpoints(objects(trimmed(MINE), vm=trimmed(VM), moves=(trimmed(MOVE),))) == [
            Endpoint(ADDRESS, "shop", ("a", "b"))
        ], found


def test_resized_vm_changes_no_network() -> None:
    """Each resize of any VM once made every node of the cluster check its network."""
    assert trimmed(with_status(VM, phase="Scaling", cpus="3")) == trimmed(with_status(VM, phase="Running", cpus="2"))
    assert trimmed(with_status(VM, node="b")) != trimmed(VM)
    assert trimmed(with_status(MOVE, phase="Succeeded")) != trimmed(MOVE)
