"""Retries of a leader that cannot update its EndpointSlices, by kind of refusal, and missing slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from protocol.kubernetes.api import ApiCall, ApiRefusedError
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.refusals import classify
from protocol.messages import ObjectName
from protocol.units import Instant, Seconds
from scheduler_plugin.leader_endpoints import LeaderEndpoints, ReplicaAddress
from scheduler_plugin.term import Term
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import SERVICES, SLICES
from tests.scheduler_plugin.granted import granted
from tests.scheduler_plugin.groups.program.cluster import Connection
from tests.scheduler_plugin.replicas.pair import SLICE, Process, Replicas, replicas

SERVICE = {
    "metadata": {"namespace": SLICE.namespace, "name": SLICE.name, "uid": "service-1"},
    "spec": {
        "ports": [
            {"name": "agents", "port": 443, "targetPort": 10299},
            {"name": "metrics", "port": 10297, "targetPort": "metrics", "protocol": "TCP"},
        ]
    },
}

NAMES = ("agents", "extender")


class Refuses(Connection):
    """Refuses every call, with one status per slice; ``tried`` are the times of the calls."""

    def __init__(self, clock: FakeClock, statuses: dict[str, int]) -> None:
        self.clock, self.statuses = clock, statuses
        self.tried: dict[str, list[Instant]] = {name: [] for name in NAMES}

    async def call(self, call: ApiCall) -> JsonObject:
        name = call.path.rpartition("/")[2]
        if "/endpointslices/" in call.path:
            self.tried[name].append(self.clock.now())
        raise ApiRefusedError(classify(self.statuses[name]))


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_failing_slice_is_not_retried_faster(status: int, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock(start=0.0)
    api = Refuses(clock, {"agents": status, "extender": 409})
    slices = [ObjectName("kube-system", name) for name in NAMES]
    place = ReplicaAddress("10.0.0.1", ObjectName("kube-system", "pod"))
    keeping = asyncio.create_task(LeaderEndpoints(api, clock, slices, place).keep(Term(clock)))
    await clock.advance(Seconds(10.0))
    keeping.cancel()
    assert api.tried == {"agents": [0.0, 5.0, 10.0], "extender": [each / 4 for each in range(41)]}
    assert len([each for each in caplog.records if each.__dict__["slice"] == "kube-system/agents"]) == 3


@asynccontextmanager
async def without_slice(service: Any = None) -> AsyncIterator[Replicas]:
    """Two replicas whose slice is gone."""
    clock, cluster = FakeClock(), granted()
    if service is not None:
        cluster.put(SERVICES, service)
    async with replicas(cluster, clock) as pair:
        await clock.advance(20)
        cluster.remove(SLICES, SLICE.namespace, SLICE.name)
        yield pair


async def test_leader_makes_a_missing_slice() -> None:
    """Argo CD does not apply EndpointSlices, and a restored cluster may lack them: nothing else would create one."""
    async with without_slice(SERVICE) as pair:
        await pair.clock.advance(6)
        assert pair.served is pair.running[0]
        made = pair.cluster.get(SLICES, SLICE.namespace, SLICE.name)
        assert made["metadata"]["labels"]["kubernetes.io/service-name"] == SLICE.name
        assert [each["uid"] for each in made["metadata"]["ownerReferences"]] == ["service-1"]
        assert made["ports"] == [
            {"name": "agents", "port": 10299, "protocol": "TCP"},
            {"name": "metrics", "port": 10297, "protocol": "TCP"},
        ]
        await pair.end(pair.running[0], Process.terminate)
        await pair.clock.advance(3)
        assert pair.served is pair.running[0], "the next leader writes itself into the same slice"


async def test_slice_without_service_is_not_made() -> None:
    """An installation that is being removed has no Services any more, and its slices would remain."""
    async with without_slice() as pair:
        await pair.clock.advance(12)
        assert pair.cluster.made("POST", "/endpointslices") == []
