"""A sleeping guest wakes with its memory or boots from disk: after any failure it runs once (B.18)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.neonvm.ports import FellAsleep, GuestError, Woken
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.sleep import saving
from deploy.neonvm.sleep.image import SleepImage
from deploy.neonvm.sleep.sleeping import GuestSleep, SleepDependencies
from protocol.units import Bytes, Instant, Seconds
from tests.fake_clock import settle
from tests.neonvm.qemu.fakes import SteppedClock
from tests.neonvm.sleep.fakes import MEMORY, FakeStandIn, SavedMachine, descriptors


@dataclass
class World:
    """A guest that has fallen asleep. ``machine`` is the one started for its wake."""

    folder: Path
    machine: SavedMachine = field(default_factory=lambda: SavedMachine(run_state="inmigrate"))
    booted: SavedMachine = field(default_factory=SavedMachine)
    stand_in: FakeStandIn = field(default_factory=lambda: FakeStandIn([(b"", b"a frame")]))
    clock: SteppedClock = field(default_factory=SteppedClock)
    launches: list[Sequence[str]] = field(default_factory=list)
    adopted: list[Machine] = field(default_factory=list)
    is_thawed: bool = False
    faults: list[Exception] = field(default_factory=list)
    boot_faults: list[GuestError] = field(default_factory=list)
    booting: asyncio.Event = field(default_factory=asyncio.Event)
    boots: asyncio.Event = field(default_factory=asyncio.Event)
    sleep: GuestSleep = field(init=False)

    async def begin(self) -> None:
        """Saves an image, and sleeps."""
        image = SleepImage(self.folder)
        ours, theirs = socket.socketpair()
        with theirs:
            ours.sendall(MEMORY)
            ours.close()
            saved = await asyncio.to_thread(image.write, theirs)
        bed = SleepDependencies(self.stand_in, image, self.clock, self._launch, self._boot, self._thaw, self._adopt)
        self.sleep = GuestSleep(FellAsleep(saved, 1), bed)
        self.sleep.begin()

    async def _launch(self, more: Sequence[str], inherit: Sequence[int]) -> Machine:
        self.launches.append(more)
        self.stand_in.places.append("QEMU starts")
        if self.faults:
            raise self.faults.pop(0)
        if not self.machine.alive:
            self.machine = type(self.machine)(run_state="inmigrate")
        return self.machine

    async def _boot(self) -> Machine:
        assert self.stand_in.places[-1] == "closed", "QEMU needs the pod's ports, and all frames"
        if self.boot_faults:
            raise self.boot_faults.pop(0)
        self.booting.set()
        await self.boots.wait()
        return self.booted

    def _adopt(self, machine: Machine, woken: Woken) -> None:
        self.adopted.append(machine)

    async def _thaw(self) -> None:
        self.is_thawed = True


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    world.boots.set()
    await world.begin()
    yield world
    await world.sleep.abandon()


async def test_frame_wakes_the_guest_with_its_memory(world: World) -> None:
    """An empty process exists before the permit does. The frame that woke the guest is delivered before it runs."""
    woken = asyncio.create_task(world.sleep.woken())
    await asyncio.sleep(0)
    assert not world.sleep.is_wake_requested
    world.stand_in.woken.set()
    assert await woken == "10.100.0.7:40000 sent data"
    world.clock.instant = 3.0
    assert await world.sleep.wake() == Woken(Seconds(3.0))
    assert (world.adopted, world.machine.loaded) == ([world.machine], MEMORY)
    assert (world.machine.run_state, world.is_thawed) == ("running", True)
    # QEMU diverts frames before it answers, and would stop if nobody read them.
    assert world.stand_in.places == ["network", "diverted", "QEMU starts", "nothing", "closed"]
    assert world.stand_in.clients[0] == "passed on"
    log = world.machine.log
    assert log.index("migrate-incoming") < log.index("give put-in") < log.index("cont")
    assert list(world.folder.iterdir()) == []
    assert len(world.launches) == 1


async def test_order_wakes_the_guest_too(world: World) -> None:
    """Without any frame for it; two orders at once wake it once."""
    first, second = await asyncio.gather(world.sleep.wake(), world.sleep.wake())
    assert first == second == Woken(Seconds(0.0))
    assert world.adopted == [world.machine]
    assert len(world.launches) == 1


@pytest.mark.parametrize("step", ["give asleep", "migrate-set-capabilities", "migrate-incoming"])
async def test_fault_before_image_is_read_costs_a_process(world: World, step: str) -> None:
    """The image is still unused, so another process loads it after the first has ended."""
    first, before = world.machine, descriptors()
    first.fails_at = step
    assert await world.sleep.wake() == Woken(Seconds(1.0))
    assert (first.alive, first.loaded, world.machine.loaded) == (False, b"", MEMORY)
    assert (world.adopted, len(world.launches)) == ([world.machine], 2)
    assert (descriptors(), list(world.folder.iterdir())) == (before, [])


@pytest.mark.parametrize("step", ["query-status", "qom-list", "query-chardev", "give put-in", "cont"])
async def test_one_fault_loses_no_loaded_memory(world: World, step: str) -> None:
    """QEMU is paused with the memory, and the image is deleted: the command is repeated, also for the queued frames."""
    world.machine.fails_at = step
    assert (await world.sleep.wake()).fault == ""
    assert (world.adopted, world.machine.run_state, world.is_thawed) == ([world.machine], "running", True)
    frames = world.machine.log.index("give put-in")
    assert frames < len(world.machine.log) - 1 - world.machine.log[::-1].index("cont")
    assert (len(world.launches), world.booting.is_set()) == (1, False)


class RefusingMachine(SavedMachine):
    """Always refuses ``refused`` once it has the memory, after ``seconds`` on ``clock``."""

    refused = ""
    clock = SteppedClock()
    seconds = 0.0

    def _note(self, command: str) -> None:
        if command == self.refused and self.loaded:
            self.fails_at = command
            self.clock.instant = Instant(self.clock.instant + self.seconds)
        super()._note(command)


@pytest.mark.parametrize("seconds", [0.0, 10.0], ids=["refuses", "does not answer"])
@pytest.mark.parametrize("step", ["query-status", "qom-list", "cont"])
async def test_guest_boots_if_its_memory_cannot_run(world: World, step: str, seconds: float) -> None:
    """Clients wait, so this has a limit. The process ends before the disk is used again."""
    world.machine = machine = RefusingMachine(run_state="inmigrate")
    machine.refused, machine.seconds, machine.clock = step, seconds, world.clock
    woken = await world.sleep.wake()
    assert woken.fault == f"QEMU refused {step}"
    assert 30.0 <= woken.took < 41.0
    assert (world.adopted, machine.kills, machine.alive) == ([world.booted], 1, False)
    assert list(world.folder.iterdir()) == []


async def test_dead_process_is_not_asked_again(world: World) -> None:
    """Its memory is gone."""
    world.machine.fails_at = "cont"
    note = world.machine._note

    def noted(command: str) -> None:
        if command == "cont":
            world.machine.fail("killed")
        note(command)

    world.machine._note = noted  # type: ignore[method-assign]
    assert await world.sleep.wake() == Woken(Seconds(0.0), "QEMU refused cont")
    assert world.adopted == [world.booted]


async def test_frame_during_boot_starts_no_process(world: World) -> None:
    """A second process would read the tap too, and the guest would lose some of its frames."""
    world.boots.clear()
    _damage(world)
    woken, waking = asyncio.create_task(world.sleep.woken()), asyncio.create_task(world.sleep.wake())
    await world.booting.wait()
    world.stand_in.woken.set()
    await woken
    world.boots.set()
    await waking
    assert (len(world.launches), world.adopted) == (1, [world.booted])


async def test_lost_frames_are_no_reason_to_boot(world: World) -> None:
    """Their senders repeat most of them, and the clients do not wait long for the rest."""
    world.machine = machine = RefusingMachine(run_state="inmigrate")
    machine.refused = "give put-in"
    woken = await world.sleep.wake()
    assert (woken.fault, world.adopted) == ("", [machine])
    assert woken.took < 1.2


class DeafMachine(SavedMachine):
    """A machine that loads none of its memory."""

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        return {} if command == "migrate-incoming" else await super().call(command, arguments)


async def test_machine_that_takes_nothing_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load has no time limit while it makes progress, because with hundreds of others it may take minutes."""
    monkeypatch.setattr(saving, "_STEP_TIMEOUT", 0.01)
    world.machine = DeafMachine(run_state="inmigrate")
    assert (await world.sleep.wake()).fault == "QEMU did not load the saved memory within 0.01 s"
    assert (world.adopted, world.machine.kills) == ([world.booted], 1)


async def test_damaged_image_is_not_run(world: World) -> None:
    _damage(world)
    assert "corrupt" in (await world.sleep.wake()).fault
    assert world.adopted == [world.booted]


async def test_lost_image_is_not_waited_for(world: World) -> None:
    """No other process could load it either."""
    next(world.folder.iterdir()).unlink()
    woken = await world.sleep.wake()
    assert (woken.took, len(world.launches), world.adopted) == (Seconds(0.0), 1, [world.booted])
    assert "cannot read the saved memory" in woken.fault


def _damage(world: World) -> None:
    image = next(world.folder.iterdir())
    content = bytearray(image.read_bytes())
    content[-1] ^= 1
    image.write_bytes(content)


async def test_process_that_ends_early_is_replaced(world: World) -> None:
    """It is killed while the guest waits for its permit: the image is still there, and so are the sessions."""
    world.stand_in.woken.set()
    await world.sleep.woken()
    await asyncio.sleep(0)
    world.machine.fail("killed")
    world.machine = SavedMachine(run_state="inmigrate")
    assert (await world.sleep.wake()).fault == ""
    assert (world.adopted, len(world.launches)) == ([world.machine], 2)


async def test_process_that_gets_no_permit_is_ended(world: World) -> None:
    """Hundreds wait for room on a full node. The guest's sessions are answered while it waits, and it wakes with the
    permit.
    """
    world.stand_in.woken.set()
    await world.sleep.woken()
    await settle()
    world.clock.jump(9.9)
    await settle()
    assert (world.machine.alive, world.stand_in.places[-2:]) == (True, ["diverted", "QEMU starts"])
    world.clock.jump(0.2)
    await settle()
    assert (world.machine.alive, world.stand_in.places[-1]) == (False, "network")
    assert await world.sleep.woken() == "10.100.0.7:40000 sent data"
    world.machine = SavedMachine(run_state="inmigrate")
    assert (await world.sleep.wake()).fault == ""
    assert (world.adopted, world.machine.loaded, len(world.launches)) == ([world.machine], MEMORY, 2)
    places = [place for place in world.stand_in.places if place != "QEMU starts"]
    assert places == ["network", "diverted", "network", "diverted", "nothing", "closed"]


class DyingMachine(SavedMachine):
    """Takes a while to end."""

    dies = asyncio.Event()

    async def kill(self) -> None:
        await self.dies.wait()
        await super().kill()


@pytest.mark.parametrize("leaves", [False, True])
async def test_late_permit_waits_for_sleeps_end(world: World, *, leaves: bool) -> None:
    """Otherwise two processes would have the disk. A guest that migrates at that moment has none."""
    world.machine = dying = DyingMachine(run_state="inmigrate")
    dying.dies = asyncio.Event()
    world.stand_in.woken.set()
    await world.sleep.woken()
    await settle()
    world.clock.jump(11.0)
    await settle()
    world.machine = SavedMachine(run_state="inmigrate")
    ending = asyncio.ensure_future(world.sleep.leave() if leaves else world.sleep.wake())
    await settle()
    assert (ending.done(), len(world.launches)) == (False, 1)
    dying.dies.set()
    await ending
    assert (dying.alive, world.adopted) == (False, [] if leaves else [world.machine])
    assert world.stand_in.places[-1] == ("nothing" if leaves else "closed")


async def test_failed_process_start_loses_no_session(world: World) -> None:
    """Hundreds wake at once: one process is too slow, one is refused by the kernel, and the image is still there."""
    world.faults = [GuestError("QMP negotiation failed"), BlockingIOError("no more processes")]
    assert await world.sleep.wake() == Woken(Seconds(2.0))
    assert (world.adopted, world.machine.loaded, len(world.launches)) == ([world.machine], MEMORY, 3)


async def test_node_that_starts_nothing_for_a_while(world: World) -> None:
    """The image still exists after 20 s without memory for a process."""
    world.faults = [OSError("no memory") for _ in range(20)]
    assert await world.sleep.wake() == Woken(Seconds(20.0))
    assert (world.adopted, world.machine.loaded) == ([world.machine], MEMORY)


async def test_boot_is_tried_again(world: World) -> None:
    """Otherwise the pod ends, and a disk that is a volume of the pod with it."""
    _damage(world)
    world.boot_faults = [GuestError("no memory") for _ in range(20)]
    assert "corrupt" in (await world.sleep.wake()).fault
    assert (world.adopted, world.boot_faults) == ([world.booted], [])


async def test_process_that_does_not_start(world: World) -> None:
    """The guest tries to boot from its disk; then its pod must end."""
    world.faults = [OSError("no memory") for _ in range(100)]
    world.boot_faults = [GuestError("QEMU is gone") for _ in range(100)]
    before = descriptors()
    with pytest.raises(GuestError, match="QEMU is gone"):
        await world.sleep.wake()
    assert (world.sleep.is_over.is_set(), descriptors()) == (True, before)
    assert 60.0 <= world.clock.now() < 62.0
    assert world.stand_in.clients == ["hung up"]
    assert world.stand_in.places[-4:] == ["QEMU starts", "network", "closed", "closed"]


async def test_abandoned_sleep_leaves_nothing(world: World) -> None:
    """The VM is deleted while it sleeps, or while it waits for its permit."""
    await asyncio.sleep(0)
    world.stand_in.woken.set()
    await world.sleep.woken()
    await asyncio.sleep(0)
    await world.sleep.abandon()
    assert (world.machine.alive, list(world.folder.iterdir())) == (False, [])
    assert world.stand_in.places[-1] == "closed"


async def test_size_is_that_of_the_file(world: World) -> None:
    assert world.sleep.snapshot == FellAsleep(Bytes(next(world.folder.iterdir()).stat().st_size), 1)
