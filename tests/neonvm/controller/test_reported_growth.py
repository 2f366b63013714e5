"""The VM's object covers its guest at every instant: growth is reported before it happens, and as long as it may
happen.
"""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from deploy.neonvm.controller.growth import with_growth
from deploy.neonvm.controller.vm_facts import VmPlan
from deploy.neonvm.ports import GuestError, GuestPhase, GuestState
from deploy.neonvm.runner.resizer import ORDER_LIFETIME, Resizer
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import Json, child, text
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.units import ZERO, Bytes, MilliCpu, Resources
from scheduler_plugin.cluster.virtual_machines import read_vm, vm_facts
from tests.fake_clock import FakeClock, settle
from tests.neonvm.controller.test_controller import DB, Site, site
from tests.neonvm.runner.test_resizer import ObedientGuest

__all__ = ["site"]

SIZE = Resources.parse("2", "2Gi")


async def order(site: Site, cpus: int, slots: int = 2) -> None:
    """The agent's patch."""
    guest: Json = {"cpus": {"use": cpus}, "memorySlots": {"use": slots}}
    await site.client.merge_patch(VIRTUAL_MACHINES, DB, {"spec": {"guest": guest}})


async def running(site: Site) -> Resizer:
    await site.turn(3)
    name = await site.run_pod()
    await site.turn(2)
    return site.host.guests[name]


async def test_lagging_controller_grows_nothing(site: Site) -> None:
    """It sees an order from minutes ago, whose room was given to another VM since."""
    guest = await running(site)
    await order(site, 4)
    behind = await site.falling_behind()
    await order(site, 2)
    with pytest.raises(ApiRefusedError, match="409"):
        await behind.reconcile(DB)
    assert guest._target == SIZE


async def test_conflict_shows_the_present_vm(site: Site) -> None:
    """Its watch may lag for minutes, but the controller must follow."""
    guest = await running(site)
    await order(site, 4)
    behind = await site.falling_behind()
    await order(site, 3)
    with pytest.raises(ApiRefusedError, match="409"):
        await behind._reconcile_or_record_failure(DB)
    await behind._reconcile_or_record_failure(DB)
    assert guest._target == Resources.parse("3", "2Gi")


async def test_lagging_controller_grows_nothing_more(site: Site) -> None:
    """The same if the status already says that the guest grows."""
    guest = await running(site)
    await order(site, 3, 3)
    await site.turn()
    await order(site, 4, 4)
    guest.hold()
    behind = await site.falling_behind()
    site.host.guests[ObjectName("default", "db-a")].resize_to(SIZE)
    await order(site, 2)
    with pytest.raises(ApiRefusedError, match="409"):
        await behind.reconcile(DB)
    assert guest._target == SIZE


def succeeds(site: Site, guest: Resizer) -> Resizer:
    """A new leader knows the guest's size, but none of the orders sent to it."""
    resizer = Resizer(ObedientGuest(), SIZE, site.clock, lambda: None, GuestPhase.RUNNING)
    resizer.hold()
    resizer.state = guest.state
    site.host.guests[ObjectName("default", "db-a")] = resizer
    return resizer


async def test_lagging_successor_keeps_growth_reported(site: Site) -> None:
    """The earlier leader's order may be executed after its successor has seen an older object."""
    guest = await running(site)
    successor = await site.falling_behind()
    await order(site, 4)
    await site.turn()
    await order(site, 2)
    succeeds(site, guest)
    await successor.reconcile(DB)
    await successor._deps.vms.refresh()
    await successor.reconcile(DB)
    assert await covered(site) == Resources.parse("4", "2Gi")


async def test_lagging_successor_repeats_no_growth(site: Site) -> None:
    """It sees a growth in progress that has ended since, and whose room was given to another VM."""
    guest = await running(site)
    await order(site, 4)
    await site.turn()
    successor = await site.falling_behind()
    await order(site, 2)
    await site.turn(2)
    assert await covered(site) == SIZE
    resizer = succeeds(site, guest)
    with suppress(ApiRefusedError):
        await successor.reconcile(DB)
    assert (resizer.is_held, await covered(site)) == (True, SIZE)


def test_unreadable_vm_keeps_growth_reported() -> None:
    """During a migration its status has its guest's size, but a successor could not read the growth in it."""
    guest = Resizer(ObedientGuest(), SIZE, FakeClock(), lambda: None, GuestPhase.RUNNING)
    status: Json = {"phase": "Migrating", "cpus": "2", "memorySize": "2Gi"}
    assert with_growth(VmPlan(status, hold=True), guest, None) == status


async def test_growth_is_reported_until_it_is_over(site: Site) -> None:
    guest = await running(site)
    await order(site, 4, 3)
    vm = await site.turn()
    growing = {key: child(vm, "status")[key] for key in ("phase", "cpus", "memorySize", "growingTo")}
    assert growing == {
        "phase": "Scaling",
        "cpus": "2",
        "memorySize": "2Gi",
        "growingTo": {"cpus": "4", "memorySize": "3Gi"},
    }
    assert (vm_facts(read_vm(vm)).actual, guest._target) == (Resources.parse("4", "3Gi"), Resources.parse("4", "3Gi"))
    guest.state = GuestState(GuestPhase.RUNNING, MilliCpu.cores(4), Bytes.parse("3Gi"))
    vm = await site.turn(2)
    assert (text(vm, "status", "phase"), "growingTo" in child(vm, "status")) == ("Running", False)


async def test_old_definition_drops_growth_quietly(site: Site) -> None:
    guest = await running(site)
    site.fence.drops = "growingTo"
    await order(site, 4)
    await site.turn(2)
    assert guest._target == Resources.parse("4", "2Gi")
    before = site.fence.writes
    await site.turn(2)
    assert site.fence.writes == before


@dataclass
class UnreliableGuest(ObedientGuest):
    """Its runner's responses are lost, and orders are executed late."""

    chance: random.Random
    late: list[tuple[float, str, MilliCpu | Bytes]] = field(default_factory=list)
    clock: FakeClock = field(kw_only=True)
    fates: tuple[str, ...] = ("done", "done", "done", "lost", "unanswered", "late")
    largest: Resources = ZERO

    def __post_init__(self) -> None:
        super().__init__()
        self.has = GuestState(GuestPhase.RUNNING, SIZE.cpu, SIZE.mem)

    def carry_out(self, what: str, amount: MilliCpu | Bytes) -> None:
        cpu = amount if isinstance(amount, MilliCpu) else self.has.cpu
        mem = amount if isinstance(amount, Bytes) else self.has.mem
        self.has = GuestState(GuestPhase.RUNNING, cpu, mem)
        self.largest = self.largest.at_least(Resources(cpu, mem))

    async def _order(self, what: str, amount: MilliCpu | Bytes) -> None:
        self.orders.append(f"{what} {amount}")
        for _ in range(self.chance.randrange(3)):
            await asyncio.sleep(0)
        fate = self.chance.choice(self.fates)
        if fate in {"done", "unanswered"}:
            self.carry_out(what, amount)
        if fate == "late":
            self.late.append((self.clock.now(), what, amount))
        if fate != "done":
            raise GuestError("no answer")

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        await self._order("cpu", use)
        return use

    async def set_memory(self, use: Bytes) -> None:
        await self._order("memory", use)


async def covered(site: Site) -> Resources:
    """The size that a scheduler counts when it first sees the object."""
    facts = vm_facts(read_vm(await site.vm()))
    return facts.use.at_least(facts.actual or ZERO)


@pytest.mark.parametrize("seed", range(8))
async def test_object_covers_guest(site: Site, seed: int) -> None:
    """Through watches that lag, answers that are lost, orders that are carried out late, and a new leader."""
    chance = random.Random(seed)
    await running(site)
    guest = UnreliableGuest(chance, clock=site.clock)
    task = None
    for step in range(50):
        if step in {0, 25}:  # a new leader
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
            resizer = Resizer(guest, SIZE, site.clock, lambda: None, GuestPhase.RUNNING)
            resizer.hold()
            site.host.guests[ObjectName("default", "db-a")] = resizer
            task = asyncio.ensure_future(resizer.run())
            await settle()
        guest.largest = Resources(guest.has.cpu, guest.has.mem)
        before = await covered(site)
        match chance.choice(["order", "order", "watch", "look", "look", "time", "late"]):
            case "order":
                await order(site, chance.randrange(1, 5), chance.randrange(1, 5))
            case "watch":
                await site._vms.refresh()
            case "look":
                with suppress(ApiRefusedError):  # a conflict
                    await site._controller.reconcile(DB)
            case "late" if guest.late:
                at, what, amount = guest.late.pop(0)
                if site.clock.now() - at < ORDER_LIFETIME:
                    guest.carry_out(what, amount)
            case _:
                await site.clock.advance(chance.choice([0.5, 3.0, 40.0]))
        await settle()
        assert guest.largest.within(before.at_least(await covered(site))), (step, guest.orders)
    guest.fates = ("done",)
    for _ in range(5):
        await site.clock.advance(20.0)
        await site.turn(2)
        await settle()
    status = child(await site.vm(), "status")
    assert (await covered(site), status.get("growingTo")) == (Resources(guest.has.cpu, guest.has.mem), None)
    assert task is not None
    task.cancel()
    await asyncio.wait((task,))
