"""A running VM changes from the original's scheduler and agent to ours and back (``docs/from-neon.md``, B.11)."""

from __future__ import annotations

import pytest

from protocol.names import ANNOTATION_APPROVED, ANNOTATION_PERMIT, ANNOTATION_PERMIT_WRITER
from protocol.permits import decode_permit
from tests.kubernetes.failing.fleet import VMS, until
from tests.kubernetes.neon.stage import ADMITTING, SETTINGS, Stage

pytestmark = pytest.mark.kubernetes


async def test_fleet_moves_over_and_back_without_restart(stage: Stage) -> None:
    node = await stage.node()
    theirs, agent = await stage.original_scheduler(node), await stage.original_agent(node)
    await stage.vm("db")
    guest = await stage.runs("db")
    began = (await stage.found("db"))["status"]["podName"]
    guest.load(1.5)
    await stage.grows("db", "1750m")

    # 1. Our scheduler, the original's agent.
    await stage.end(theirs)
    ours = await stage.our_scheduler(node, SETTINGS + ADMITTING)
    promised = decode_permit((await stage.found("db"))["metadata"]["annotations"][ANNOTATION_APPROVED])
    (reserved,) = stage.booked(ours)[node]
    assert promised.within(reserved)
    guest.load(2.0)
    await stage.grows("db", "2250m")
    promises = {ANNOTATION_APPROVED: None, "internal.autoscaling.neon.tech/resources-requested": None}
    await stage.fleet.patch(f"{VMS}/db", {"metadata": {"annotations": promises}})
    stored = await stage.permit("db")

    async def follows_the_permit() -> bool:
        return [str(each) for each in stage.booked(ours)[node]] == [stored]

    await until(follows_the_permit, "what was promised before is free again")

    # 2. Our agent.
    await stage.end(agent)
    guest.monitor.heard.clear()
    our_agent = await stage.our_agent(node, ours)
    guest.load(3.0)
    await stage.grows("db", "3")

    async def speaks_with_the_monitor() -> bool:
        return {"UpscaleNotification", "HealthCheck"} <= set(guest.monitor.heard)

    await until(speaks_with_the_monitor, "our agent tells the guest's monitor of memory, and asks whether it is well")

    # And back: the agent, then the scheduler.
    await stage.end(our_agent)
    await stage.original_agent(node)
    guest.load(0.2)

    async def has_shrunk() -> bool:
        return str((await stage.found("db"))["status"]["cpus"]) in {"500m", "0.5"}

    await until(has_shrunk, "the original's agent shrinks it again", 90.0)
    await stage.end(ours)
    stored_ones = {ANNOTATION_PERMIT: None, ANNOTATION_PERMIT_WRITER: None}
    await stage.fleet.patch(f"{VMS}/db", {"metadata": {"annotations": stored_ones}})
    await stage.original_scheduler(node)
    guest.load(2.0)
    await stage.grows("db", "2250m")
    status = (await stage.found("db"))["status"]
    assert (status["podName"], status.get("restartCount", 0)) == (began, 0)
    assert guest.refused == []
