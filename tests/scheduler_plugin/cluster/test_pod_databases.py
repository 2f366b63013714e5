"""Pods with a postgres that is resized in place, as the ledger sees them, and what keeps them from growing (B.7)."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from protocol.messages import ObjectName
from protocol.pod_database import parse_pod_database
from protocol.units import ZERO, Resources
from scheduler_plugin.cluster.pods.conflicts import (
    Conflict,
    Target,
    read_cluster,
    read_horizontal,
    read_vertical,
)
from scheduler_plugin.cluster.pods.databases import ClusterDatabase, database_facts, read_database
from scheduler_plugin.cluster.pods.reading import decode_pod, decode_watched_pod, read_pod
from scheduler_plugin.ledger.facts import PodFacts, VmFacts
from tests.scheduler_plugin.objects import Obj, has, owner_of, plain_pod, postgres_pod

NAME = ObjectName("default", "pg-1")
DATABASE = ObjectName("default", "pod/pg-1")


def test_pod_counts_as_its_database() -> None:
    obj = postgres_pod("pg-1", "2", "4Gi", "n1")
    database = read_database(obj)
    assert read_pod(obj) == PodFacts(
        uid="pod-pg-1",
        name=NAME,
        requests=Resources.parse("2100m", "4160Mi"),
        vm=DATABASE,
        node="n1",
        scheduler="default-scheduler",
        vm_uid="pod-pg-1",
        overhead=Resources.parse("100m", "64Mi"),
        traits=read_pod(obj).traits,
        make_room=True,
        database=database,
    )
    assert ClusterDatabase(**{name: getattr(database, name) for name in database.__struct_fields__}) == database


def test_facts_ignore_permit_annotations() -> None:
    """The pod's creator writes its annotations, so neither permits nor holders are read from there."""
    obj = postgres_pod("pg-1", "2", "4Gi", "n1")
    obj["metadata"] |= {"resourceVersion": "7"}
    obj["metadata"]["labels"]["autoscaling.neon.tech/weight"] = "30"
    obj["metadata"]["annotations"] |= {
        "autoscaling.neon.tech/permit": '{"vCPUs":8,"mem":"16Gi"}',
        "autoscaling.neon.tech/permit-writer": '{"writer":"x","holders":["a","b"]}',
        "internal.autoscaling.neon.tech/resources-approved": '{"vCPUs":8,"mem":"16Gi"}',
    }
    obj["status"]["containerStatuses"] = [has({"cpu": "1", "memory": "5Gi"})]
    assert database_facts(read_database(obj)) == VmFacts(
        name=DATABASE,
        uid="pod-pg-1",
        version=7,
        maximum=Resources.parse(8, "16Gi"),
        use=Resources.parse(2, "4Gi"),
        actual=Resources.parse(1, "5Gi"),
        pod=NAME,
        stays_because="in an ordinary pod, which cannot be migrated",
        weight=30,
        is_pod=True,
    )


def test_annotations_of_others_are_not_kept() -> None:
    """They may be as long as the API allows, on as many pods as a namespace holds; so may what is wrong with them."""
    obj = postgres_pod("pg-1", "2", "4Gi", "n1")
    obj["metadata"]["annotations"] |= {"notes": "x" * 200_000, "autoscaling.neon.tech/resize": "true"}
    assert read_database(obj).annotations == {"autoscaling.neon.tech/resize": "true"}
    obj["metadata"]["annotations"]["autoscaling.neon.tech/container"] = "x" * 200_000
    assert len(read_pod(obj).resize_problem) == 300


def test_no_pod_runs_the_database_of_another() -> None:
    """Its creator names a VirtualMachine of that name as the owner, with the other pod's UID."""
    obj = plain_pod("forged", "1", "1Gi", "n2")
    obj["metadata"]["ownerReferences"] = [
        {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "pod/pg-1", "uid": "pod-pg-1"}
    ]
    assert (read_pod(obj).vm, read_pod(obj).vm_uid) == (None, "")


def test_refused_database_keeps_its_size() -> None:
    facts = database_facts(read_database(postgres_pod("pg-1", "2", "4Gi", "n1")), "because")
    assert (facts.maximum, facts.refused) == (Resources.parse(2, "4Gi"), "because")


def test_deferred_resize_asks_for_room() -> None:
    obj = postgres_pod("pg-1", "3", "4Gi", "n1")
    obj["status"]["containerStatuses"] = [has({"cpu": "1", "memory": "4Gi"})]
    obj["status"]["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]
    pod = read_pod(obj)
    assert (pod.deferred, pod.make_room) == (Resources.parse(2, 0), True)


@pytest.mark.parametrize(
    ("change", "unserved"),
    [
        ({"bounds": None}, "metadata.annotations[autoscaling.neon.tech/bounds]: expected "),
        ({"bounds": "{}"}, "metadata.annotations[autoscaling.neon.tech/bounds]: "),
        ({"container": "mysql"}, "spec.containers: expected one named mysql, got main, postgres"),
    ],
)
def test_unreadable_pod_counts_as_a_plain_one(change: dict[str, str | None], unserved: str) -> None:
    obj = postgres_pod("pg-1", "2", "4Gi", "n1")
    for name, value in change.items():
        obj["metadata"]["annotations"].pop(f"autoscaling.neon.tech/{name}", None)
        if value is not None:
            obj["metadata"]["annotations"][f"autoscaling.neon.tech/{name}"] = value
    pod = read_pod(obj)
    assert pod.resize_problem.startswith(unserved)
    plain = decode_pod(json.dumps(obj).encode())
    assert replace(pod, resize_problem="", traits=plain.traits) == plain
    assert (plain.vm, plain.overhead, plain.make_room) == (None, ZERO, False)


@pytest.mark.parametrize(
    "change",
    [
        {"status": {"phase": "Failed"}},
        {"labels": {}},
        {"labels": {"autoscaling.neon.tech/enabled": "false"}},
        {"labels": {"autoscaling.neon.tech/enabled": "true", "vm.neon.tech/name": "db"}},
    ],
    ids=["ended", "without label", "switched off", "of a VM"],
)
def test_other_pods_stay_plain(change: dict[str, Any]) -> None:
    obj = postgres_pod("pg-1", node="n1")
    obj["metadata"]["labels"] = change.get("labels", obj["metadata"]["labels"])
    obj["status"] = change.get("status", obj["status"])
    pod = read_pod(obj)
    assert (pod.vm, pod.database, pod.resize_problem) == (None, None, "")


def line(obj: Obj, *, compact: bool = False) -> bytes:
    obj["metadata"]["resourceVersion"] = "1"
    separators = (",", ":") if compact else None
    return json.dumps({"type": "MODIFIED", "object": obj}, separators=separators).encode()


def decodes(text: bytes) -> int:
    """The number of times that the fast path decodes ``text``."""
    calls: list[str] = []

    def profile(_frame: FrameType, event: str, called: object) -> None:
        if event == "c_call" and getattr(called, "__name__", "") == "decode":
            calls.append(event)

    sys.setprofile(profile)
    try:
        decode_watched_pod(text)
    finally:
        sys.setprofile(None)
    return len(calls)


def test_watch_line_of_database_is_decoded_once() -> None:
    """By the general path alone. A VM's pod has the label, too, and stays on the fast path."""
    database, of_vm = postgres_pod("pg-1", node="n1"), postgres_pod("db-1", node="n1")
    of_vm["metadata"]["labels"]["vm.neon.tech/name"] = "db"
    assert decodes(line(database, compact=True)) == 0
    assert decodes(line(of_vm, compact=True)) == 1


def test_watch_line_takes_general_path() -> None:
    plain = postgres_pod("pg-1", node="n1")
    plain["metadata"]["labels"] = {}
    watched = decode_watched_pod(line(plain))
    assert watched is not None
    assert watched.fact == read_pod(plain)
    assert decode_watched_pod(line(postgres_pod("pg-1", node="n1"))) is None


def owned(kind: str, api_version: str, name: str, **labels: str) -> Obj:
    obj = postgres_pod("pg-1", node="n1")
    obj["metadata"]["ownerReferences"] = [
        owner_of("other", "u", "Other") | {"apiVersion": "v1", "controller": False},
        owner_of(name, "u", kind) | {"apiVersion": api_version},
    ]
    obj["metadata"]["labels"] |= labels
    return obj


@pytest.mark.parametrize(
    ("obj", "owner"),
    [
        (postgres_pod("pg-1"), None),
        (owned("StatefulSet", "apps/v1", "pg"), Target("default", "apps", "StatefulSet", "pg")),
        (
            owned("ReplicaSet", "apps/v1", "pg-6c9f", **{"pod-template-hash": "6c9f"}),
            Target("default", "apps", "Deployment", "pg"),
        ),
        (owned("ReplicaSet", "apps/v1", "pg-"), Target("default", "apps", "ReplicaSet", "pg-")),
        (owned("Cluster", "postgresql.cnpg.io/v1", "pg"), Target("default", "postgresql.cnpg.io", "Cluster", "pg")),
    ],
    ids=["nobody", "StatefulSet", "Deployment by its ReplicaSet", "ReplicaSet alone", "CloudNativePG"],
)
def test_owner_is_read_from_the_pod_alone(obj: Obj, owner: Target | None) -> None:
    database = read_database(obj)
    assert database.owner == owner
    assert database.name == parse_pod_database(obj).name


DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "pg"}
TARGET = Target("default", "apps", "Deployment", "pg")


def named(name: str, spec: Obj, annotations: dict[str, str] | None = None) -> Obj:
    return {"metadata": {"namespace": "default", "name": name, "annotations": annotations or {}}, "spec": spec}


def metric(kind: str, target: str, name: str = "cpu") -> Obj:
    field = {"Resource": "resource", "ContainerResource": "containerResource", "Pods": "pods"}[kind]
    return {"type": kind, field: {"name": name, "target": {"type": target}}}


@pytest.mark.parametrize(
    ("metrics", "refuses"),
    [
        ([metric("Resource", "Utilization")], True),
        ([metric("Pods", "AverageValue"), metric("ContainerResource", "Utilization")], True),
        ([metric("Resource", "AverageValue"), metric("Pods", "AverageValue")], False),
        ([], False),
    ],
)
def test_hpa_conflicts_if_it_scales_by_utilization(metrics: list[Obj], refuses: bool) -> None:
    conflict = read_horizontal(named("h", {"scaleTargetRef": DEPLOYMENT, "metrics": metrics}))
    why = (
        "HorizontalPodAutoscaler h scales on utilization of requests, which a resize changes: use AverageValue"
        if refuses
        else ""
    )
    assert conflict == Conflict(TARGET, why)


@pytest.mark.parametrize(
    ("policy", "refuses"),
    [({"updatePolicy": {"updateMode": "Off"}}, False), ({"updatePolicy": {"updateMode": "InPlace"}}, True), ({}, True)],
)
def test_vpa_conflicts_unless_it_is_off(policy: Obj, refuses: bool) -> None:
    conflict = read_vertical(named("v", {"targetRef": DEPLOYMENT, **policy}))
    why = "VerticalPodAutoscaler v also sizes the pod: set its updateMode to Off" if refuses else ""
    assert conflict == Conflict(TARGET, why)


@pytest.mark.parametrize(
    ("strategy", "annotations", "refuses"),
    [
        ("inPlace", {}, True),
        ("inPlace", {"cnpg.io/reconcilePodSpec": "enabled"}, True),
        ("inPlace", {"cnpg.io/reconcilePodSpec": "disabled"}, False),
        ("rollingUpdate", {}, False),
    ],
)
def test_cluster_that_reverts_conflicts(strategy: str, annotations: dict[str, str], refuses: bool) -> None:
    conflict = read_cluster(named("pg", {"resourcesUpdateStrategy": strategy}, annotations))
    assert conflict.target == Target("default", "postgresql.cnpg.io", "Cluster", "pg")
    assert ("annotate the Cluster with cnpg.io/reconcilePodSpec: disabled" in conflict.why) is refuses
