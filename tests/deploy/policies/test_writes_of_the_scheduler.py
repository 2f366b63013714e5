"""What the scheduler writes, as it writes it, is what its policies let through."""

from __future__ import annotations

from typing import Any

from deploy.local.apiserver.patch.merge import merge_patch
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.resources import NODES
from protocol.messages import ObjectName
from protocol.units import Bytes, Resources, Seconds
from protocol.virtual_machine import parse_virtual_machine
from scheduler_plugin.cluster.api import ApiCall
from scheduler_plugin.cluster.migrations import MigrationOrder
from scheduler_plugin.cluster.write import ClusterWriter
from scheduler_plugin.term import Term
from tests.deploy.manifests import Document, documents
from tests.deploy.policies.admission import is_judged, refusal, write_by
from tests.fake_clock import FakeClock
from tests.kubernetes.attacks.world import MINE, SCHEDULER, move, named

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
    await writer.store_permit(parse_virtual_machine(VM), Resources.parse("3", "8Gi"))
    await writer.bind(ObjectName("default", "ours"), "u-1", "node-b")
    await writer.touch_node("node-a", "2026-01-01T00:00:00Z")
    await writer.create_migration(
        MigrationOrder(name, ObjectName("default", "mine"), "node-b", "full", Seconds(300.0), Bytes.parse("1Gi"))
    )
    await writer.delete_migration(ObjectName("default", "by-us"), "u-1")
    writes = [write_by(SCHEDULER.username, *each) for each in api.writes]
    assert [any(is_judged(policy, each) for policy in POLICIES) for each in writes] == [True] * len(writes)
    assert [refusal(POLICIES, each) for each in writes] == [""] * len(writes)


async def test_of_the_clusters_own_namespace_it_binds_the_pod_of_helm_test_alone() -> None:
    api = Answering()
    writer = ClusterWriter(api, "autoscaling-scheduler-1.7", Term(FakeClock()).writing)  # type: ignore[arg-type]
    for name in ("autoscaling-answers", "coredns"):
        await writer.bind(ObjectName("kube-system", name), "u-1", "node-b")
    of_helm_test, other = (write_by(SCHEDULER.username, *each) for each in api.writes)
    assert refusal(POLICIES, of_helm_test) == ""
    assert refusal(POLICIES, other).startswith("autoscaling-scheduler-pods: of the cluster's own namespace")
