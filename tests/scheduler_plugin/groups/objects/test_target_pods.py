"""Parsing a pod's labels and status: its target, and its OOM kills."""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import Json, child, name_of
from protocol.kubernetes.resources import STATEFUL_SETS
from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.workload import ResourceList, SizedContainer, Workload
from scheduler_plugin.groups.objects.pods import is_of_other, primary_of, trimmed_pod
from scheduler_plugin.groups.objects.targets import OomKill, oom_kills, with_defaults

NOON = "2026-01-01T12:00:00Z"
LABELS = {"app": "web", "tier": "front"}


def ended(state: str, reason: str, at: str = NOON) -> Json:
    return {"name": "app", state: {"terminated": {"reason": reason, "finishedAt": at}}}


def test_kill_is_read_from_both_states() -> None:
    at = 1_767_268_800.0
    statuses = [
        ended("lastState", "OOMKilled"),
        ended("state", "OOMKilled"),
        ended("lastState", "Error"),
        ended("lastState", "OOMKilled", "soon"),
    ]
    pod: Json = {"status": {"containerStatuses": statuses}}
    assert list(oom_kills(pod)) == [OomKill("app", at), OomKill("app", at)]
    assert list(oom_kills(trimmed_pod(pod))) == list(oom_kills(pod))
    assert list(oom_kills({})) == []


def test_pods_share_their_owner() -> None:
    """Anyone may create pods with references of a megabyte, and there are tens of thousands of pods."""
    reference: Json = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "web-1",
        "uid": "u" * 1000,
        "controller": True,
    }
    pod: Json = {"metadata": {"name": "a", "ownerReferences": [{"name": "other"}, reference]}}
    kept = [child(trimmed_pod(pod), "metadata")["ownerReferences"] for _ in range(2)]
    assert kept[0] == [{"kind": "ReplicaSet", "name": "web-1", "uid": "u" * 253, "controller": True}]
    assert kept[0] is kept[1]


def test_pods_of_other_controllers() -> None:
    """A Deployment's pods belong to its ReplicaSets; the selector may match those of others, and bare ones."""

    def owned(kind: str, name: str, uid: str) -> Json:
        return {"metadata": {"ownerReferences": [{"kind": kind, "name": name, "uid": uid, "controller": True}]}}

    replica_sets = {"web-1": owned("Deployment", "web", "u-web"), "other-1": owned("Deployment", "other", "u-other")}
    pods = [owned("ReplicaSet", name, name) for name in ("web-1", "other-1", "unknown")]
    pods += [owned("StatefulSet", "web", "u-web"), owned("Job", "web", "u-job"), {}]
    web: Json = {"metadata": {"uid": "u-web"}}
    found = [is_of_other(pod, web, lambda _, name: replica_sets.get(name.name)) for pod in pods]
    assert found == [False, True, True, False, True, False]
    assert not is_of_other(pods[0], {"metadata": {"uid": "web-1"}}, lambda *_: None)


@pytest.mark.parametrize(
    ("label", "first", "second", "primary"),
    [
        ("cnpg.io/instanceRole", "replica", "primary", "db-1"),
        ("spilo-role", "replica", "master", "db-1"),
        ("postgres-operator.crunchydata.com/role", "replica", "primary", "db-1"),
        ("kubeblocks.io/role", "secondary", "primary", "db-1"),
        ("role", "replica", "master", "db-1"),
        ("role", "primary", "replica", "db-0"),
        ("role", "master", "master", None),
        ("spilo-role", "replica", "replica", None),
        ("role", "database", "database", "db-0"),
    ],
)
def test_primary_by_operators_role_label(label: str, first: str, second: str, primary: str | None) -> None:
    """Patroni says master until version 4; a label `role` may have another meaning."""
    pods: list[Json] = [
        {"metadata": {"name": f"db-{ordinal}", "labels": {label: role}}} for ordinal, role in enumerate((first, second))
    ]
    assert primary_of(pods, STATEFUL_SETS) == next((pod for pod in pods if name_of(pod).name == primary), None)


def test_pods_keep_only_used_fields() -> None:
    pod: Json = {
        "metadata": {"name": "web-1", "labels": LABELS, "annotations": {"a": "b"}, "managedFields": [{}]},
        "spec": {"containers": [{"name": "app", "image": "x", "resources": {"requests": {"cpu": "1"}}}], "volumes": []},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready"}, {"type": "PodResizePending"}],
        },
    }
    assert trimmed_pod(pod) == {
        "metadata": {"name": "web-1", "labels": LABELS},
        "spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Running", "conditions": [{"type": "PodResizePending"}], "containerStatuses": []},
    }


def sized(**amounts: Json) -> Json:
    return {"spec": {"containers": [{"name": "app", "resources": amounts}, {"name": "sidecar"}]}}


def test_running_pods_fill_template_gaps() -> None:
    """A LimitRange fills in requests and limits; the largest count, and those of pods that end do not."""
    pods = [
        sized(requests={"cpu": "100m"}, limits={"cpu": "500m"}),
        sized(requests={"cpu": "200m", "memory": "1Gi"}),
        sized(requests={"cpu": "many"}),
        {**sized(requests={"cpu": "9"}), "status": {"phase": "Failed"}},
        {**sized(requests={"cpu": "9"}), "metadata": {"deletionTimestamp": NOON}},
    ]
    template = Workload(2, 2, (SizedContainer("app", ResourceList(memory=Bytes(7))), SizedContainer("other")))
    found = with_defaults(template, pods)
    app = SizedContainer("app", ResourceList(MilliCpu(200), Bytes(7)), ResourceList(MilliCpu(500)))
    assert found == Workload(2, 2, (app, SizedContainer("other")))


def test_default_of_zero_fills_a_gap() -> None:
    template = Workload(1, 1, (SizedContainer("app"),))
    found = with_defaults(template, [sized(requests={"cpu": "0"}, limits={"memory": 0})])
    assert found.containers == (SizedContainer("app", ResourceList(MilliCpu(0)), ResourceList(memory=Bytes(0))),)
