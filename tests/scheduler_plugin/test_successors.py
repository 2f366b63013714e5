"""A VM that was deleted and recreated inherits nothing; new settings apply to known pods."""

from __future__ import annotations

import asyncio

from scheduler_plugin.settings.document import parse_settings
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import PODS, VMS, Fault, to
from tests.scheduler_plugin.granted import POD, granted, settled
from tests.scheduler_plugin.objects import vm, vm_pod
from tests.scheduler_plugin.running import SETTINGS, Running


def permits_written(scheduler: Running) -> list[str]:
    """The UIDs that permits were written for."""
    found = []
    for call in scheduler.cluster.made("PATCH", "/virtualmachines/"):
        metadata = call.body["metadata"] if call.body is not None else {}
        assert isinstance(metadata, dict)
        found.append(str(metadata["uid"]))
    return found


def replace_vm(scheduler: Running) -> None:
    """The VM is deleted with its pod, and recreated smaller, with a new UID."""
    scheduler.cluster.remove(PODS, "default", "db-pod")
    scheduler.cluster.remove(VMS, "default", "db")
    successor = vm("db", 1, 1, uid="successor")
    successor["status"]["podName"] = "next-pod"
    scheduler.cluster.put(VMS, successor)
    pod = vm_pod("db", "n1", uid="pod-next", vm_uid="successor")
    pod["metadata"]["name"] = "next-pod"
    scheduler.cluster.put(PODS, pod)


async def test_queued_decrease_skips_successor_vm() -> None:
    clock = FakeClock()
    async with settled(granted(), clock) as scheduler:
        assert (await scheduler.ask(POD, 6, 8, sequence=1)).status_code == 200
        held = asyncio.Event()
        scheduler.cluster.faults.append(Fault(to("PATCH", "/virtualmachines/"), hold=held, is_applied=False))
        for sequence in (2, 3):
            assert (await scheduler.ask(POD, 2, 4, sequence=sequence)).status_code == 200
        replace_vm(scheduler)
        await settle()
        held.set()
        await clock.advance(60)
        assert set(permits_written(scheduler)) == {"vm-db"}
        assert "annotations" not in scheduler.cluster.get(VMS, "default", "db")["metadata"]
        assert scheduler.reserved("n1") == "1 cpu, 1Gi"


async def test_predecessor_agent_cannot_act_for_successor() -> None:
    clock = FakeClock()
    async with settled(granted(), clock) as scheduler:
        successor = vm("db", 1, 1, uid="successor")
        scheduler.cluster.remove(VMS, "default", "db")
        scheduler.cluster.put(VMS, successor)
        await settle()
        answer = await scheduler.ask(POD, 6, 8, sequence=1)
        assert (answer.status_code, answer.json()["error"]) == (
            503,
            "VirtualMachine default/db of pod default/db-pod is not known yet",
        )


async def test_new_scheduler_name_applies_to_known_pods() -> None:
    clock = FakeClock()
    async with settled(granted(), clock) as scheduler:
        ledger, feed = scheduler.parts.context.ledger, scheduler.parts.context.feed
        (claim,) = ledger.claims.values()
        assert ledger.schedules(claim.pod)
        feed.apply_settings(parse_settings(SETTINGS + "\nschedulerName: other"))
        assert not ledger.schedules(claim.pod)
