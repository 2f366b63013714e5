"""The scheduler's policies allow every write of the scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.local.apiserver.patch.merge import merge_patch
from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.resources import ENDPOINT_SLICES, MIGRATIONS, NODES
from protocol.messages import ObjectName
from protocol.names import FINALIZER
from protocol.units import Bytes, Resources, Seconds
from protocol.virtual_machine import parse_virtual_machine
from scheduler_plugin.cluster.write import ClusterWriter
from scheduler_plugin.leader_endpoints import slice_of
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.ledger.outcomes import CreateMigration, PersistPermit, ResizePod
from scheduler_plugin.term import Term
from tests.deploy.manifests import Document, documents
from tests.deploy.policies.admission import is_judged, refusal, write_by
from tests.fake_clock import FakeClock
from tests.kubernetes.attacks.world import MINE, SCHEDULER, move, named, owner, pod, runner

POLICIES = [each for each in documents() if each["kind"] == "ValidatingAdmissionPolicy"]
VM: Document = merge_patch(MINE, {"metadata": {"uid": "u-1", "resourceVersion": "7"}})


class Answering:
    """An API that carries out merge patches on the objects that it is given, and keeps every write."""

    def __init__(self, *known: Document) -> None:
        self.known = {each["metadata"]["name"]: each for each in known}
        self.writes: list[tuple[str, str, Document | None, Document | None]] = []

    async def call(self, call: ApiCall) -> JsonObject:
        before = self.known.get(call.path.rpartition("/")[2])
        body: Any = call.body
        after = merge_patch(before, body) if call.method == "PATCH" else None if call.method == "DELETE" else body
        self.writes.append((call.method, call.path, before, after))
        return dict(after or {})

    page = stream = call


async def test_its_writes_pass() -> None:
    api = Answering(VM, named(NODES, "node-a", spec={}), move("by-us", "autoscale-scheduler"))
    writer = ClusterWriter(api, "autoscaling-scheduler-1.7", Term(FakeClock()).writing)  # type: ignore[arg-type]
    name = ObjectName("default", "to-b")
    permit = PersistPermit(ObjectName("default", "mine"), Resources.parse("3", "8Gi"), 1, before_answer=True)
    await writer.store_permit(parse_virtual_machine(VM), permit)
    await writer.bind(ObjectName("default", "ours"), "u-1", "node-b")
    await writer.touch_node("node-a", "2026-01-01T00:00:00Z")
    order = CreateMigration(name, Move(ObjectName("default", "mine"), "p-1", "node-a", "node-b", "full"))
    await writer.create_migration(order, Seconds(300.0), Bytes.parse("1Gi"))
    await writer.delete_migration(ObjectName("default", "by-us"), "u-1")
    writes = [write_by(SCHEDULER.username, *each) for each in api.writes]
    assert [any(is_judged(policy, each) for policy in POLICIES) for each in writes] == [True] * len(writes)
    assert [refusal(POLICIES, each) for each in writes] == [""] * len(writes)


ABANDONED: Document = merge_patch(
    move("by-us", "autoscale-scheduler"),
    {
        "metadata": {
            "uid": "u-1",
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": [FINALIZER, "example.com/audit"],
        }
    },
)
RELEASED: Document = merge_patch(ABANDONED, {"metadata": {"finalizers": ["example.com/audit"]}})


async def test_releases_abandoned_migration() -> None:
    api = Answering(ABANDONED)
    writer = ClusterWriter(api, "autoscaling-scheduler-1.7", Term(FakeClock()).writing)  # type: ignore[arg-type]
    await writer.release_migration(ObjectName("default", "by-us"), "u-1", 7, ["example.com/audit"])
    ((method, path, before, after),) = api.writes
    assert refusal(POLICIES, write_by(SCHEDULER.username, method, path, before, after)) == ""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ABANDONED, merge_patch(ABANDONED, {"metadata": {"finalizers": None}})),
        (ABANDONED, merge_patch(RELEASED, {"metadata": {"finalizers": ["example.com/audit", "a/b"]}})),
        (ABANDONED, merge_patch(RELEASED, {"metadata": {"annotations": {"a": "b"}}})),
        (ABANDONED, merge_patch(RELEASED, {"spec": {"vmName": "theirs"}})),
        (
            merge_patch(ABANDONED, {"metadata": {"deletionTimestamp": None}}),
            merge_patch(RELEASED, {"metadata": {"deletionTimestamp": None}}),
        ),
        (
            merge_patch(ABANDONED, {"metadata": {"labels": {"autoscaling.neon.tech/created-by": "a-person"}}}),
            merge_patch(RELEASED, {"metadata": {"labels": {"autoscaling.neon.tech/created-by": "a-person"}}}),
        ),
    ],
)
def test_changes_no_other_migrations(before: Document, after: Document) -> None:
    path = MIGRATIONS.path("default", "by-us")
    why = refusal(POLICIES, write_by(SCHEDULER.username, "PATCH", path, before, after))
    assert "autoscaling-scheduler-vms: the scheduler may remove only NeonVM's finalizer" in why


async def test_binds_only_helm_test_in_own_namespace() -> None:
    api = Answering()
    writer = ClusterWriter(api, "autoscaling-scheduler-1.7", Term(FakeClock()).writing)  # type: ignore[arg-type]
    for name in ("autoscaling-answers", "coredns"):
        await writer.bind(ObjectName("kube-system", name), "u-1", "node-b")
    of_helm_test, other = (write_by(SCHEDULER.username, *each) for each in api.writes)
    assert refusal(POLICIES, of_helm_test) == ""
    assert refusal(POLICIES, other).startswith("autoscaling-scheduler-pods: in system namespaces")


SERVICE = {"metadata": {"name": "autoscaling-scheduler", "namespace": "kube-system", "uid": "s"}, "spec": {"ports": []}}


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ({}, False),
        ({"name": "kube-dns"}, True),
        ({"labels": {"kubernetes.io/service-name": "kube-dns"}}, True),
        ({"namespace": "default"}, True),
    ],
)
async def test_leader_makes_slices_of_its_own_services(changes: Document, is_refused: bool) -> None:
    """A scheduler that may create EndpointSlices could otherwise redirect the clients of every Service in the
    namespace.
    """
    made: Document = slice_of(SERVICE, {"addresses": ["10.0.0.1"]})
    made = merge_patch(made, {"metadata": changes})
    path = ENDPOINT_SLICES.path(made["metadata"]["namespace"])
    why = refusal(POLICIES, write_by(SCHEDULER.username, "POST", path, None, made))
    assert ("EndpointSlices of its own Services" in why) == is_refused


def requesting(pod: Document, **resources: Any) -> Document:
    """The pod with these resources of its guest's container."""
    containers = [
        {**each, "resources": {**each.get("resources", {}), **resources}} for each in pod["spec"]["containers"]
    ]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}


RUNNER: Document = requesting(runner(MINE), requests={"cpu": "1"}, limits={"neonvm/kvm": "1"})
MORE: Document = {"requests": {"cpu": "2", "memory": "4Gi"}}


async def test_what_pods_of_vms_request_passes() -> None:
    api = Answering()
    writer = ClusterWriter(api, "autoscaling-scheduler-1.7", Term(FakeClock()).writing)  # type: ignore[arg-type]
    await writer.resize_pod(ResizePod("u-1", ObjectName("default", "mine-1"), Resources.parse("2", "4Gi"), "7"))
    ((method, path, _, _),) = api.writes
    assert refusal(POLICIES, write_by(SCHEDULER.username, method, path, RUNNER, requesting(RUNNER, **MORE))) == ""
    limited = requesting(RUNNER, **MORE, limits={"neonvm/kvm": "1", "cpu": "2500m"})
    assert refusal(POLICIES, write_by(SCHEDULER.username, method, path, RUNNER, limited)) == ""
    of_a_move = merge_patch(RUNNER, {"metadata": {"ownerReferences": owner(MIGRATIONS, "to-b")}})
    assert refusal(POLICIES, write_by(SCHEDULER.username, method, path, of_a_move, requesting(of_a_move, **MORE))) == ""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (RUNNER, requesting(RUNNER, limits={"cpu": "4"})),
        (RUNNER, requesting(RUNNER, limits={"neonvm/kvm": "2"})),
        (RUNNER, requesting(RUNNER, limits={"neonvm/kvm": "1", "memory": "4Gi"})),
        (RUNNER, {**RUNNER, "spec": {**RUNNER["spec"], "resources": {"requests": {"cpu": "4"}}}}),
        (RUNNER, {**RUNNER, "spec": {**RUNNER["spec"], "initContainers": []}}),
        (
            {**RUNNER, "spec": {"containers": [{"name": "sidecar"}]}},
            {**RUNNER, "spec": {"containers": [{"name": "sidecar", "resources": MORE}]}},
        ),
        (pod("web-1", "node-a"), requesting(pod("web-1", "node-a"), **MORE)),
        ({**RUNNER, "metadata": {"name": "mine-1"}}, requesting({**RUNNER, "metadata": {"name": "mine-1"}}, **MORE)),
    ],
)
def test_changes_no_other_pods_or_limits(before: Document, after: Document) -> None:
    path = "/api/v1/namespaces/default/pods/mine-1/resize"
    assert refusal(POLICIES, write_by(SCHEDULER.username, "PATCH", path, before, after)).startswith(
        "autoscaling-scheduler-pods: the scheduler may change only the requests and the CPU limit"
    )
