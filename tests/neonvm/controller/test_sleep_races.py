"""A sleeping VM, and a controller with old information: from old watches, after its predecessor, or for weeks."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from deploy.neonvm.ports import GuestPhase, GuestState
from deploy.neonvm.runner.resizer import Resizer
from protocol.guest.sleep import sleep_order_patch, sleep_report
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import Json, child, text
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_PERMIT, LABEL_ENABLED
from protocol.permits import encode_permit
from protocol.units import Bytes, MilliCpu, Resources
from tests.fake_clock import settle
from tests.neonvm.controller.test_controller import DB, Site, site
from tests.neonvm.runner.test_sleep_orders import SleepyGuest
from tests.neonvm.sample_objects import WANTED

__all__ = ["site"]
DAY = 86_400.0


class Sleeper:
    """The VM of a site, whose guest can sleep. Each ``follow`` is another controller's view of the same guest."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.guest = SleepyGuest()
        self.guest.has = GuestState(GuestPhase.RUNNING, WANTED.cpu, WANTED.mem)
        self.pod = ObjectName("", "")
        self._tasks: list[asyncio.Task[str]] = []

    async def begin(self) -> None:
        await self.site.turn(3)
        self.pod = await self.site.run_pod()
        await self.follow()
        await self.change({"metadata": {"labels": {LABEL_ENABLED: "true"}}})
        await self.change(sleep_order_patch("a"))
        await self.turn(2)

    async def follow(self) -> None:
        """A controller starts to follow the guest."""
        await self.stop()
        resizer = Resizer(self.guest, Resources(MilliCpu(0), Bytes(0)), self.site.clock, lambda: None)
        resizer.hold()  # until the first size is ordered, as the guests of pods are
        self.site.host.guests[self.pod] = resizer
        self._tasks.append(asyncio.ensure_future(resizer.run()))
        await settle()

    async def change(self, body: Json) -> None:
        await self.site.client.merge_patch(VIRTUAL_MACHINES, DB, body)

    async def permit(self, cpu: str) -> None:
        permit = encode_permit(Resources.parse(cpu, "2Gi"))
        await self.change({"metadata": {"annotations": {ANNOTATION_PERMIT: permit}}})

    async def turn(self, times: int = 1) -> str:
        """Let the controller handle everything new, this many times. Returns the VM's phase."""
        for _ in range(times):
            await self.site.turn()
            await settle()
        return text(await self.site.vm(), "status", "phase")

    async def stop(self) -> None:
        while self._tasks:
            task = self._tasks.pop()
            task.cancel()
            await asyncio.wait((task,))


@pytest.fixture
async def sleeper(site: Site) -> AsyncIterator[Sleeper]:
    made = Sleeper(site)
    await made.begin()
    yield made
    await made.stop()


async def test_permit_that_is_lowered_meanwhile_wakes_nothing(sleeper: Sleeper) -> None:
    """The watch still shows the permit that the ledger has revoked: another VM may have its room."""
    assert await sleeper.turn() == "Asleep"
    await sleeper.permit("2")
    await sleeper.turn()
    await sleeper.permit("0")
    sleeper.guest.must_wake.set_result("a query")
    await settle()
    with pytest.raises(ApiRefusedError) as refused:
        await sleeper.site._controller.reconcile(DB)
    await settle()
    assert (refused.value.kind, sleeper.guest.orders) == (RefusalKind.CONFLICT, ["fall asleep"])
    assert await sleeper.turn(2) == "Waking"
    await sleeper.permit("2")
    assert (await sleeper.turn(2), sleeper.guest.orders) == ("Running", ["fall asleep", "wake"])


async def test_old_watch_gives_no_second_order(sleeper: Sleeper) -> None:
    """It still shows the order, but not yet the end of the order."""
    behind = await sleeper.site.falling_behind()
    await sleeper.site._controller.reconcile(DB)
    with pytest.raises(ApiRefusedError):
        await behind.reconcile(DB)
    await settle()
    assert sleeper.guest.orders == ["fall asleep"]


async def test_new_controller_picks_sleeper_up(sleeper: Sleeper) -> None:
    await sleeper.turn()
    before = sleep_report(await sleeper.site.vm())
    await sleeper.follow()
    assert (await sleeper.turn(2), sleep_report(await sleeper.site.vm())) == ("Asleep", before)
    sleeper.guest.must_wake.set_result("a query")
    await settle()
    await sleeper.follow()
    assert await sleeper.turn(2) == "Waking"
    await sleeper.permit("4")
    assert await sleeper.turn(2) == "Running"
    assert str(sleep_report(await sleeper.site.vm()).state) == "Awake"


async def test_new_controller_goes_on_with_written_decision(sleeper: Sleeper) -> None:
    """Its predecessor wrote that the guest may run, and died before it woke it."""
    await sleeper.turn()
    report = {"state": "Waking", "message": "a query"}
    status: Json = {"status": {"phase": "Running", "sleep": report}}
    await sleeper.site.client.merge_patch(VIRTUAL_MACHINES, DB, status, "status")
    await sleeper.permit("0")
    await sleeper.follow()
    assert (await sleeper.turn(3), sleeper.guest.orders) == ("Running", ["fall asleep", "wake"])


async def test_old_watch_repeats_no_earlier_wake(sleeper: Sleeper) -> None:
    """A standby takes over whose watch has missed the end of one sleep and the start of the next: there is no permit to
    wake.
    """
    await sleeper.turn()
    await sleeper.permit("2")
    sleeper.guest.must_wake.set_result("a query")
    await settle()
    await sleeper.turn()
    assert await sleeper.turn() == "Running"
    decided = await sleeper.site.vm()
    assert str(sleep_report(decided).state) == "Awake"
    sleep = {**child(decided, "status", "sleep"), "state": "Waking"}
    await sleeper.site.client.merge_patch(VIRTUAL_MACHINES, DB, {"status": {"sleep": sleep}}, "status")
    await sleeper.site._vms.refresh()
    await sleeper.permit("0")
    slept: Json = {"status": {"phase": "Asleep", "sleep": {"state": "Asleep"}}}
    await sleeper.site.client.merge_patch(VIRTUAL_MACHINES, DB, slept, "status")
    sleeper.guest.must_wake = asyncio.get_running_loop().create_future()
    await sleeper.guest.fall_asleep()
    await sleeper.follow()
    with pytest.raises(ApiRefusedError, match="409"):
        await sleeper.site._controller.reconcile(DB)
    await settle()
    assert sleeper.guest.orders == ["fall asleep", "wake", "fall asleep"]
    assert (await sleeper.turn(2), sleeper.guest.orders[3:]) == ("Asleep", [])


async def test_new_controller_reports_what_the_last_one_woke(sleeper: Sleeper) -> None:
    await sleeper.turn()
    sleeper.guest.must_wake.set_result("a query")
    await settle()
    await sleeper.turn()
    await sleeper.guest.wake()
    await sleeper.follow()
    assert await sleeper.turn(2) == "Running"
    report = sleep_report(await sleeper.site.vm())
    assert (str(report.state), report.message, sleeper.guest.orders) == ("Awake", "a query", ["fall asleep", "wake"])


async def test_vm_wakes_after_twenty_days(sleeper: Sleeper) -> None:
    await sleeper.turn()
    sleeper.site.clock.jump(20 * DAY - 60)
    assert await sleeper.turn() == "Asleep"
    sleeper.site.clock.jump(120)
    assert await sleeper.turn() == "Waking"
    assert "20 days" in sleep_report(await sleeper.site.vm()).message


async def test_controller_looks_at_long_sleeper_by_itself(sleeper: Sleeper) -> None:
    await sleeper.turn()
    controller = asyncio.ensure_future(sleeper.site._controller._queue.serve(sleeper.site._controller.reconcile))
    await sleeper.site._vms.refresh()
    await sleeper.site.clock.advance(20 * DAY - 3600)
    assert text(await sleeper.site.vm(), "status", "phase") == "Asleep"
    await sleeper.site.clock.advance(7200)
    controller.cancel()
    await asyncio.wait((controller,))
    assert text(await sleeper.site.vm(), "status", "phase") == "Waking"
