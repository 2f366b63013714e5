"""Kubernetes Events on an agent's VM, and how often they are written."""

from __future__ import annotations

from agent.core.events import Fault
from agent.ports import PortError, RefusedError
from tests.agent.core.story import cu
from tests.agent.fake_ports import RunnerFixture

OOM_KILLED = "the kernel OOM-killed 2 processes; the database grows as far as its bounds and its node allow"


async def test_kills_become_an_event_every_five_minutes() -> None:
    async with RunnerFixture() as fixture:
        await fixture.clock.advance(2.0)
        for _ in range(30):
            fixture.guest.oom_kills += 2.0
            await fixture.clock.advance(1.0)
        assert fixture.vm_api.told == [("GuestOutOfMemory", OOM_KILLED)]
        await fixture.clock.advance(300.0)
        fixture.guest.oom_kills += 2.0
        await fixture.clock.advance(1.0)
        assert fixture.vm_api.told == [("GuestOutOfMemory", OOM_KILLED)] * 2


async def test_refused_growth_becomes_an_event() -> None:
    async with RunnerFixture() as fixture:
        await fixture.clock.advance(1.0)
        fixture.vm_api.patch_errors = [RefusedError(Fault.VM_API, "denied by a webhook")] * 2
        fixture.guest.cores = 0.25
        await fixture.clock.advance(20.0)
        refused = f"growth to {cu(2)} was refused: denied by a webhook; no room is reserved for it until the next try"
        assert fixture.vm_api.told == [("ResizeRefused", refused)]


async def test_refused_shrink_and_unknown_outcome_are_no_event() -> None:
    async with RunnerFixture() as fixture:
        await fixture.clock.advance(1.0)
        fixture.vm_api.patch_errors = [PortError(Fault.NETWORK, "no answer")]
        fixture.guest.cores = 0.25
        await fixture.clock.advance(20.0)
        fixture.vm_api.patch_errors = [RefusedError(Fault.VM_API, "denied by a webhook")]
        fixture.guest.cores = 0.0
        await fixture.clock.advance(20.0)
        assert (fixture.vm_api.patch_errors, fixture.vm_api.told) == ([], [])


async def test_an_event_that_cannot_be_written_ends_nothing() -> None:
    async with RunnerFixture() as fixture:
        fixture.vm_api.tell_errors = [RefusedError(Fault.AGENT, "403")]
        await fixture.clock.advance(2.0)
        fixture.guest.oom_kills = 2.0
        await fixture.clock.advance(10.0)
        assert (fixture.vm_api.told, fixture.guest.looks) == ([("GuestOutOfMemory", OOM_KILLED)], 13)
