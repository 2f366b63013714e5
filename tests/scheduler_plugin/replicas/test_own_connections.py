"""The program uses separate connections for the Lease, so a thousand concurrent writes do not delay a renewal."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from protocol.kubernetes.api import ApiCall
from protocol.runtime.kubernetes.token_reviews import TokenReviews
from scheduler_plugin.__main__ import _replica
from scheduler_plugin.app import SchedulerPorts
from scheduler_plugin.options import parser
from scheduler_plugin.telemetry import Telemetry
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import SLICES
from tests.scheduler_plugin.granted import granted
from tests.scheduler_plugin.replicas.pair import LEASE, SLICE
from tests.scheduler_plugin.replicas.stopped_process import Way
from tests.scheduler_plugin.running import usual_settings

ARGUMENTS: Final = [f"--lease={LEASE}", f"--leader-endpoints={SLICE.name}", "--pod-ip=10.0.0.1"]


def is_about_leading(call: ApiCall) -> bool:
    return "/leases" in call.path or "/endpointslices" in call.path


async def test_lease_writes_use_own_connections() -> None:
    clock, cluster = FakeClock(), granted()
    cluster.put(SLICES, {"metadata": {"namespace": SLICE.namespace, "name": SLICE.name, "uid": "slice"}})
    usual, own = Way(cluster, clock), Way(cluster, clock)
    ports = SchedulerPorts(usual, TokenReviews(usual), clock, Telemetry(clock.now), "replica-1")
    _, run_all, _ = _replica(ports, own, usual_settings(), parser().parse_args(ARGUMENTS))
    running = asyncio.create_task(run_all())
    await clock.advance(10.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [call.path for call in usual.sent if is_about_leading(call)] == []
    assert {call.method for call in own.sent if "/leases" in call.path} == {"GET", "POST", "PATCH"}
    assert {call.method for call in own.sent if "/endpointslices/" in call.path} == {"GET", "PATCH"}
    assert [call.path for call in own.sent if not is_about_leading(call)] == []
