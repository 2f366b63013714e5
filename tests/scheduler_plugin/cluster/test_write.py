"""The scheduler's writes: each one ends within seconds, here and at the API server."""

from __future__ import annotations

from typing import Any

from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.events import EventRecord, EventSubject
from protocol.units import Bytes, MilliCpu, Resources, Seconds
from scheduler_plugin.cluster.virtual_machines import read_vm
from scheduler_plugin.cluster.write import ClusterWriter
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.ledger.outcomes import CreateMigration, PersistPermit, ResizePod
from scheduler_plugin.term import Term
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import FakeCluster
from tests.scheduler_plugin.objects import vm

NAME = ObjectName("default", "db")
SIZE = Resources.parse(1, "1Gi")
ORDER = CreateMigration(NAME, Move(NAME, "uid", "node-2", "node-1", "why"))


class WillingApi(FakeCluster):
    """Takes everything."""

    async def call(self, call: ApiCall) -> JsonObject:
        self.calls.append(call)
        return {}


async def test_cpu_limit_follows_requests() -> None:
    api = WillingApi()
    writer = ClusterWriter(api, "scheduler-1", Term(FakeClock()).writing)
    await writer.resize_pod(ResizePod("uid", NAME, SIZE, "7"))
    await writer.resize_pod(ResizePod("uid", NAME, SIZE, "7", cpu_limit=MilliCpu(1500)))
    bodies: list[Any] = [each.body for each in api.calls]
    resources = [body["spec"]["containers"][0]["resources"] for body in bodies]
    assert [each.get("limits") for each in resources] == [None, {"cpu": "1500m"}]


async def test_server_timeout_matches_scheduler() -> None:
    api = WillingApi()
    writer = ClusterWriter(api, "scheduler-1", Term(FakeClock()).writing)
    await writer.store_permit(read_vm(vm("db")), PersistPermit(NAME, SIZE, 1, before_answer=True))
    await writer.bind(NAME, "uid", "node-1")
    await writer.resize_pod(ResizePod("uid", NAME, SIZE, "7"))
    await writer.touch_node("node-1", "now")
    await writer.create_event(EventRecord(EventSubject(PODS, NAME, "uid"), "Reason", "note"), "now")
    await writer.create_migration(ORDER, Seconds(60.0), Bytes(1))
    await writer.delete_migration(NAME, "uid")
    assert [(each.timeout, each.query) for each in api.calls] == [(3.0, {"timeout": "3000ms"})] * 7
