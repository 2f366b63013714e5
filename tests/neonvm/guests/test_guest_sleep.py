"""A QEMU guest falls asleep at its ports. After any failure it either keeps running or can be woken (B.18)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from deploy.neonvm.guests.qemu_guest import QemuGuest, QemuTools
from deploy.neonvm.network.sockets import listening, tcp_socket
from deploy.neonvm.ports import GuestError, GuestPhase, PodNetwork, SleepRefusedError
from deploy.neonvm.qemu.accelerator import Accelerator
from deploy.neonvm.qemu.qemu_command import Files
from deploy.neonvm.transfer_terms import TransferLimits
from protocol.messages import ObjectName
from protocol.runtime.serving.tcp_listener import TcpListener
from protocol.units import Bytes, Seconds
from tests.neonvm.qemu.fakes import FakeGuestDaemon, FakeHypervisor, SteppedClock, spec_in
from tests.neonvm.sleep.fakes import MEMORY, FakeStandIn, SavedMachine, Target
from vm_image.build import GuestImage

IMAGE = GuestImage(Path("/image/vmlinuz"), Path("/image/initrd"), Path("/image/rootfs.raw"))
TCG = Accelerator("tcg", ("-accel", "tcg"), "", "a test")
ANSWERS = {
    "GET /ready": (200, "ready"),
    "GET /cpu": (200, "1000"),
    "PUT /spare": (200, "done"),
    "PUT /freeze": (200, '{"sessions": 3}'),
    "PUT /thaw": (200, "the database runs"),
}


class SlowEnd(SavedMachine):
    """A machine that does not quit before ``may_end``; cancelling ends it immediately."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end, self.ends = asyncio.Event(), asyncio.Event()
        self.may_end.set()

    async def end(self) -> None:
        self.ends.set()
        try:
            await self.may_end.wait()
        finally:
            self.alive = False


class HungMachine(SlowEnd):
    """A machine that fails to save its memory, and then does not resume."""

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        if command == "cont":
            raise GuestError("no response from QEMU to cont within 10 s")
        return await super().call(command, arguments)

    async def kill(self) -> None:
        await super().kill()
        self.fail("QEMU was killed by SIGKILL")


@dataclass
class World:
    """A running guest and its environment."""

    daemon: FakeGuestDaemon
    guest: QemuGuest
    disk: Path
    hypervisor: FakeHypervisor
    machine: SlowEnd
    stand_in: FakeStandIn = field(default_factory=FakeStandIn)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path, SlowEnd()) as world:
        yield world


@asynccontextmanager
async def running(folder: Path, machine: SlowEnd, limit: int = 0) -> AsyncIterator[World]:
    """A guest that runs in ``machine``, whose files may have ``limit`` bytes."""
    daemon = FakeGuestDaemon(dict(ANSWERS))
    serving = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], daemon.serve)
    daemon.port = serving.port
    spec = replace(spec_in(folder / "db"), storage_limit=Bytes(limit))
    hypervisor, stand_in = FakeHypervisor(machine), FakeStandIn()
    made_by = QemuTools(IMAGE, TCG, daemon, SteppedClock(), hypervisor, stand_in=lambda *_: stand_in)
    world = World(daemon, QemuGuest(spec, made_by), Files.of(spec).disk, hypervisor, machine, stand_in)
    await world.guest.start()
    assert (await world.guest.state()).phase is GuestPhase.RUNNING
    yield world
    await world.guest.stop()
    await serving.close()


async def test_guest_sleeps_until_it_is_woken(world: World) -> None:
    assert (await world.guest.fall_asleep()).sessions == 3
    assert (await world.guest.state()).phase is GuestPhase.ASLEEP
    assert not world.machine.alive
    assert world.stand_in.places == ["diverted", "network"]


async def test_guest_on_a_failing_disk_runs_on(world: World) -> None:
    """If its process had already ended, the guest would sleep although its owner was told that it does not."""
    world.disk.unlink()
    with pytest.raises(SleepRefusedError, match="cannot flush the disk"):
        await world.guest.fall_asleep()
    assert (world.machine.alive, world.machine.run_state) == (True, "running")
    assert (await world.guest.state()).phase is GuestPhase.RUNNING


async def test_guest_keeps_its_pods_storage_limit(tmp_path: Path) -> None:
    """A kubelet would evict the pod, and delete the database with it."""
    async with running(tmp_path, SlowEnd(), limit=4096) as world:
        world.disk.write_bytes(b"x" * 8192)
        with pytest.raises(SleepRefusedError, match="the pod's limit of ephemeral storage"):
            await world.guest.fall_asleep()
        assert (world.machine.run_state, "qom-set" in world.machine.log) == ("running", False)


async def test_guest_that_does_not_resume_boots(tmp_path: Path) -> None:
    """If its pod ended instead, its volume with the disk would be deleted."""
    async with running(tmp_path, HungMachine()) as world:
        world.machine.status = "failed"
        world.hypervisor.machine = booted = SavedMachine()
        ended = asyncio.create_task(world.guest.ended())
        with pytest.raises(SleepRefusedError, match="failed to save the memory: failed; the guest boots from its disk"):
            await world.guest.fall_asleep()
        assert (world.machine.alive, world.guest.machine) == (False, booted)
        assert (ended.done(), len(world.hypervisor.disks)) == (False, 1)
        # It has at most what was reserved for it: its CPU, and its minimum of memory.
        assert any("requested-size=0" in argument for argument in world.hypervisor.launched[-1])
        booted.fail("the guest panicked")
        assert (await ended).startswith("the guest panicked")


async def test_cancelled_end_leaves_a_listening_sleeper(world: World) -> None:
    """The guest is asleep: if its frames were not read, nothing could wake it."""
    world.machine.may_end.clear()
    falling = asyncio.create_task(world.guest.fall_asleep())
    await world.machine.ends.wait()
    falling.cancel()
    await asyncio.wait((falling,))
    world.machine.may_end.set()
    assert (await world.guest.state()).phase is GuestPhase.ASLEEP
    assert world.stand_in.places == ["diverted", "network"]


LIMITS = TransferLimits(downtime=Seconds(0.02), bandwidth=Bytes(2**30), timeout=Seconds(60.0))


async def receiver(world: World) -> tuple[QemuGuest, Target]:
    """A process for the same guest in another pod."""
    machine = Target()
    machine.reads.set()
    network = PodNetwork("10.100.1.1", (), "10.255.255.254", "10.100.0.1", ("unix:/hub", "tap:link0"))
    spec = spec_in(world.disk.parent, pod=ObjectName("default", "db-y"), network=network)
    made_by = QemuTools(IMAGE, TCG, world.daemon, SteppedClock(), FakeHypervisor(machine))
    target = QemuGuest(spec, made_by)
    await target.receive()
    machine.run_state = "inmigrate"
    return target, machine


async def test_sleeper_goes_on_in_another_process(world: World) -> None:
    world.daemon.answers["PUT /thaw 1767225600.000000000"] = (200, "the database runs")
    await world.guest.fall_asleep()
    target, machine = await receiver(world)
    await world.guest.send(target, LIMITS, lambda _: None)
    assert (machine.loaded, machine.run_state) == (MEMORY, "running")
    assert world.daemon.asked[-1].startswith("PUT /thaw")
    assert (await target.state()).phase is GuestPhase.RUNNING
    assert (await world.guest.state()).phase is GuestPhase.STOPPED
    await target.stop()


async def test_guest_out_of_space_has_not_arrived(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It inherits the run state from its source, and runs only on command."""
    target, machine = await receiver(world)
    machine.run_state = "io-error"
    assert not await target.arrived()
    monkeypatch.setattr(machine, "event_time", {"RESUME": 1.0}.get)
    assert await target.arrived()
    await target.stop()


async def test_sleeper_that_is_not_sent_sleeps_on(world: World) -> None:
    """It cannot be woken during the migration, and is still asleep after the migration was cancelled."""
    await world.guest.fall_asleep()
    target, machine = await receiver(world)
    machine.reads.clear()
    move = asyncio.create_task(world.guest.send(target, LIMITS, lambda _: None))
    await machine.begun.wait()
    with pytest.raises(GuestError, match="being migrated"):
        await world.guest.wake()
    move.cancel()
    with pytest.raises(asyncio.CancelledError):
        await move
    assert (await world.guest.state()).phase is GuestPhase.ASLEEP
    assert not machine.alive
    await target.stop()
