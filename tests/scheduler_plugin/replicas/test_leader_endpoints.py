"""How often a leader tries to lead its clients to it, by how it is refused."""

from __future__ import annotations

import asyncio

import pytest

from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.refusals import classify
from protocol.messages import ObjectName
from protocol.units import Instant, Seconds
from scheduler_plugin.cluster.api import ApiCall, ApiRefusedError
from scheduler_plugin.leader_endpoints import LeaderEndpoints, Place
from scheduler_plugin.term import Term
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.groups.program.cluster import Connection

NAMES = ("agents", "extender")


class Refuses(Connection):
    """Every call, each slice with a status of its own; ``tried`` says when."""

    def __init__(self, clock: FakeClock, statuses: dict[str, int]) -> None:
        self.clock, self.statuses = clock, statuses
        self.tried: dict[str, list[Instant]] = {name: [] for name in NAMES}

    async def call(self, call: ApiCall) -> JsonObject:
        name = call.path.rpartition("/")[2]
        self.tried[name].append(self.clock.now())
        raise ApiRefusedError(classify(self.statuses[name]))


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_a_slice_that_is_missing_forbidden_or_of_another_family_is_tried_no_more_often_than_one_that_is_well(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(start=0.0)
    api = Refuses(clock, {"agents": status, "extender": 409})
    slices = [ObjectName("kube-system", name) for name in NAMES]
    place = Place("10.0.0.1", ObjectName("kube-system", "pod"))
    keeping = asyncio.create_task(LeaderEndpoints(api, clock, slices, place).keep(Term(clock)))
    await clock.advance(Seconds(10.0))
    keeping.cancel()
    assert api.tried == {"agents": [0.0, 5.0, 10.0], "extender": [each / 4 for each in range(41)]}
    assert len([each for each in caplog.records if each.__dict__["slice"] == "kube-system/agents"]) == 3
