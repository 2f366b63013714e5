"""A user keeps editing a VM: its neighbours can still grow, and its node is not blocked (S4.5).

No policy is in force here, as in local clusters: the annotation with the permit may be written by anybody, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.granted import said, settled, with_permit
from tests.scheduler_plugin.objects import Obj, node, vm, vm_pod

NEAR = vm_pod("near", "n1")
THEIRS = vm_pod("db", "n1")


def huge_use(found: Obj) -> None:
    guest = found["spec"]["guest"]
    guest["cpus"] |= {"use": 1000, "max": 1000}
    guest["memorySlots"] |= {"use": 512, "max": 512}


def huge_slots(found: Obj) -> None:
    found["spec"]["guest"]["memorySlotSize"] = "64Gi"


def huge_permit(found: Obj) -> None:
    with_permit(found, "1000", "1Ti")


def huge_grant(found: Obj) -> None:
    found["metadata"].setdefault("annotations", {})["internal.autoscaling.neon.tech/resources-approved"] = json.dumps(
        {"vCPUs": 1000, "mem": "1Ti"}
    )
    found["spec"]["guest"]["cpus"]["max"] = 1000


def unreadable(found: Obj) -> None:
    found["spec"]["guest"]["cpus"]["max"] = "1e40"


def cluster() -> FakeCluster:
    """A node of 10 vCPUs and 40Gi with a VM of 1 vCPU and 4Gi, and its neighbour of the same size."""
    made = FakeCluster()
    made.put(NODES, node("n1"))
    for name in ("db", "near"):
        made.put(VMS, with_permit(vm(name), "1", "4Gi"))
        found = made.get(VMS, "default", name)
        made.put(VMS, {**found, "status": {**found["status"], "cpus": 1, "memorySize": "4Gi"}})
    for pod in (THEIRS, NEAR):
        made.put(PODS, pod)
    return made


@pytest.mark.parametrize("edit", [huge_use, huge_slots, huge_grant, unreadable])
async def test_a_neighbour_grows_while_a_vm_is_edited(edit: Callable[[Obj], None]) -> None:
    clock, api = FakeClock(), cluster()
    async with settled(api, clock) as scheduler:
        for asked in range(2, 7):
            found = api.get(VMS, "default", "db")
            edit(found)
            api.put(VMS, found)
            await settle()
            assert said(await scheduler.ask(NEAR, asked, 4))[1]["permit"] == {"vCPUs": asked, "mem": 4}
            assert scheduler.reserved("n1") in (f"{asked + 1} cpu, 8Gi", f"{asked + 1} cpu, 20Gi")  # 16Gi: its maximum
            await clock.advance(0.3)


async def test_edited_permit_counts_up_to_maximum() -> None:
    """A neighbour keeps its size, and grows into the rest."""
    clock, api = FakeClock(), cluster()
    async with settled(api, clock) as scheduler:
        for asked in (1, 2):
            found = api.get(VMS, "default", "db")
            huge_permit(found)
            api.put(VMS, found)
            await settle()
            assert said(await scheduler.ask(NEAR, asked, 4))[1]["permit"] == {"vCPUs": asked, "mem": 4}
            assert scheduler.reserved("n1") == f"{8 + asked} cpu, 20Gi"


async def test_edit_is_judged_after_permit_write() -> None:
    """The write creates a newer version of the object, which still contains the edit."""
    clock, api = FakeClock(), cluster()
    async with settled(api, clock) as scheduler:
        assert said(await scheduler.ask(NEAR, 7, 4))[1]["permit"] == {"vCPUs": 7, "mem": 4}
        found = api.get(VMS, "default", "db")
        found["spec"]["guest"]["cpus"]["use"] = 5
        api.put(VMS, found)
        await settle()
        assert said(await scheduler.ask(THEIRS, 5, 6, sequence=1))[1]["permit"] == {"vCPUs": 1, "mem": 6}
        await clock.advance(31)
        assert said(await scheduler.ask(NEAR, 1, 4))[1]["permit"] == {"vCPUs": 1, "mem": 4}
        await clock.advance(31)
        assert said(await scheduler.ask(NEAR, 1, 4))[1]["permit"] == {"vCPUs": 1, "mem": 4}
        await clock.advance(2)
        assert said(await scheduler.ask(THEIRS, 5, 6, sequence=2))[1]["permit"] == {"vCPUs": 5, "mem": 6}
