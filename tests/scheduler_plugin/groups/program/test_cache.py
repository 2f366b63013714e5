"""What is kept of the cluster's objects: a large cluster has to fit the memory of the program."""

from __future__ import annotations

from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import DEPLOYMENTS, REPLICA_SETS, VIRTUAL_MACHINES, VM_GROUPS, Resource
from scheduler_plugin.groups.controllers.cache import worth_keeping


def of(owner: Resource, **metadata: object) -> Json:
    reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": "web", "controller": True}
    return {"metadata": {"name": "web-1", "ownerReferences": [reference], **metadata}, "spec": {"replicas": 3}}


def test_of_a_deployments_replica_set_only_its_metadata_is_kept() -> None:
    found = of(DEPLOYMENTS, managedFields=[{}], resourceVersion="7")
    assert worth_keeping(REPLICA_SETS, found) == {"metadata": of(DEPLOYMENTS, resourceVersion="7")["metadata"]}


def test_all_else_is_kept_whole_but_for_its_managed_fields() -> None:
    alone: Json = {"metadata": {"name": "web-1"}, "spec": {"replicas": 3}}
    assert worth_keeping(REPLICA_SETS, alone) == alone
    member = of(VM_GROUPS, managedFields=[{}])
    assert worth_keeping(VIRTUAL_MACHINES, member) == of(VM_GROUPS)
    assert "managedFields" in member["metadata"]  # type: ignore[operator]  # what was given is left as it is
