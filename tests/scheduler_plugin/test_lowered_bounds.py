"""A permit that was granted before a user lowered a VM's bounds stays reserved through a restart.

Its agent may not have heard of the bounds, or hears next that they were raised again, and uses the permit unasked.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import VMS
from tests.scheduler_plugin.granted import POD, granted, said, settled
from tests.scheduler_plugin.objects import Obj, plain_pod
from tests.scheduler_plugin.running import running

APPROVED = "internal.autoscaling.neon.tech/resources-approved"


def lower_bounds(found: Obj) -> None:
    bounds = {"min": {"cpu": 1, "mem": "1Gi"}, "max": {"cpu": 2, "mem": "4Gi"}}
    found["metadata"].setdefault("annotations", {})["autoscaling.neon.tech/bounds"] = json.dumps(bounds)


def lower_spec(found: Obj) -> None:
    """The machine that runs can take what the spec said when it was booted."""
    found["spec"]["guest"]["cpus"]["max"] = 2
    found["spec"]["guest"]["memorySlots"]["max"] = 4
    found["status"]["machine"] = {"maxCpus": "8", "minMemory": "1Gi", "maxMemory": "16Gi"}


@pytest.mark.parametrize("lower", [lower_bounds, lower_spec])
async def test_permit_outlives_lowered_bounds(lower: Callable[[Obj], None]) -> None:
    clock, cluster = FakeClock(), granted()
    async with settled(cluster, clock) as scheduler:
        assert said(await scheduler.ask(POD, 8, 16))[1]["permit"] == {"vCPUs": 8, "mem": 16}
    found = cluster.get(VMS, "default", "db")
    lower(found)
    cluster.put(VMS, found)
    async with running(cluster, clock, identity="next") as scheduler:
        assert scheduler.reserved("n1") == "8 cpu, 16Gi"
        assert await scheduler.filter(plain_pod("other", "3"), "n1") == []
        assert said(await scheduler.ask(POD, 8, 16))[1]["permit"] == {"vCPUs": 2, "mem": 4}


@pytest.mark.parametrize("text", ['{"vCPUs":8,"mem":"16Gi"}', "garbage"])
async def test_original_grant_outlives_lowered_bounds(text: str) -> None:
    clock, cluster = FakeClock(), granted()
    found = cluster.get(VMS, "default", "db")
    found["metadata"]["annotations"] = {APPROVED: text}
    lower_bounds(found)
    cluster.put(VMS, found)
    async with running(cluster, clock) as scheduler:
        await settle()
        assert scheduler.reserved("n1") == "8 cpu, 16Gi"
