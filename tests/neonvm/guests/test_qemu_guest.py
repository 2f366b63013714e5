"""A QEMU guest: its calls to the hypervisor and to the daemon inside, and its failures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.neonvm.guests.qemu_guest import QemuGuest
from deploy.neonvm.guests.qemu_guests import QemuGuests
from deploy.neonvm.network.sockets import listening, tcp_socket
from deploy.neonvm.ports import GuestError, GuestPhase, GuestState
from deploy.neonvm.qemu.accelerator import Accelerator
from deploy.owned_process import owned
from protocol.runtime.serving.tcp_listener import TcpListener
from protocol.units import Bytes, MilliCpu
from tests.neonvm.qemu.fakes import MIB, FakeGuestDaemon, FakeHypervisor, SteppedClock, spec_in
from vm_image.build import GuestImage

IMAGE = GuestImage(Path("/image/vmlinuz"), Path("/image/initrd"), Path("/image/rootfs.raw"))
TCG = Accelerator("tcg", ("-accel", "tcg"), "", "a test")
READY = {"GET /ready": (200, "ready"), "GET /cpu": (200, "1000")}


class GuestFixture:
    """A guest with a fake environment."""

    def __init__(self, state_dir: Path, daemon: FakeGuestDaemon, **changes: object) -> None:
        self.daemon, self.hypervisor, self.clock = daemon, FakeHypervisor(), SteppedClock()
        self.spec = spec_in(state_dir, **changes)
        made_by = QemuGuests(IMAGE, TCG, self.daemon, self.clock, self.hypervisor)
        self.description = made_by.description
        self.guest = made_by.create(self.spec)


@pytest.fixture
async def daemon() -> AsyncIterator[FakeGuestDaemon]:
    scripted = FakeGuestDaemon()
    serving = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], scripted.serve)
    scripted.port = serving.port
    yield scripted
    await serving.close()


async def test_guest_keeps_its_disk(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    made = GuestFixture(tmp_path / "db", daemon)
    for _ in range(2):
        await made.guest.start()
    await made.guest.stop()
    await made.guest.start()
    assert made.hypervisor.disks == [(tmp_path / "db" / "disk.qcow2", IMAGE.disk)]
    assert len(made.hypervisor.launched) == 2
    prefix = owned(["qemu-system-x86_64"], ["nsenter", "--net=/run/netns/pod", "--"])
    assert list(made.hypervisor.launched[0])[: len(prefix)] == prefix
    assert made.description == "QEMU guests (a test)"


async def test_previous_console_is_kept(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    made = GuestFixture(tmp_path, daemon)
    for said in ("first", "second"):
        await made.guest.start()
        (tmp_path / "console.log").write_text(f"{said}\nKernel panic\n")
        made.hypervisor.machine.fail("its kernel panicked")
        why = f"its kernel panicked; QEMU said nothing; its console said {said} / Kernel panic"
        assert await made.guest.ended() == why
    await made.guest.start()
    assert (tmp_path / "console-before.log").read_text() == "second\nKernel panic\n"
    assert not (tmp_path / "console.log").exists()


async def test_failed_guest_ends_before_restart(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    made = GuestFixture(tmp_path, daemon)
    with pytest.raises(GuestError, match="default/db: the guest was not started"):
        await made.guest.ended()
    await made.guest.start()
    made.hypervisor.machine.fail("internal-error: a test")
    assert await made.guest.ended() == "internal-error: a test; QEMU said nothing; its console said nothing"
    assert await made.guest.state() == GuestState(GuestPhase.STOPPED, MilliCpu(0), Bytes(0))
    await made.guest.start()
    assert (made.hypervisor.machine.kills, len(made.hypervisor.launched)) == (1, 2)


async def test_guest_boots_until_database_answers(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    made = GuestFixture(tmp_path, daemon)
    await made.guest.start()
    booting = GuestState(GuestPhase.BOOTING, MilliCpu(1000), Bytes(512 * MIB))
    daemon.unplugged = True
    assert await made.guest.state() == booting
    daemon.unplugged, daemon.answers = False, {"GET /ready": (503, "starting")}
    assert await made.guest.state() == booting
    daemon.answers = {**READY, "GET /cpu": (200, "750")}
    assert await made.guest.state() == GuestState(GuestPhase.RUNNING, MilliCpu(750), Bytes(512 * MIB))
    daemon.asked.clear()
    await made.guest.state()
    assert daemon.asked == ["GET /cpu"]


async def test_a_guest_whose_process_has_ended_has_nothing(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    made = GuestFixture(tmp_path, daemon)
    nothing = GuestState(GuestPhase.STOPPED, MilliCpu(0), Bytes(0))
    assert await made.guest.state() == nothing
    await made.guest.stop()
    await made.guest.start()
    made.hypervisor.machine.alive = False
    assert await made.guest.state() == nothing
    for order in (made.guest.set_cpu(MilliCpu(1000)), made.guest.set_memory(Bytes(512 * MIB))):
        with pytest.raises(GuestError, match="default/db: the guest has stopped"):
            await order


async def test_cpu_order_in_millis_and_refusal(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    made = GuestFixture(tmp_path, daemon)
    await made.guest.start()
    daemon.answers = {"PUT /cpu 1500": (200, "1500"), "PUT /cpu 2000": (400, "CPU 1 cannot be switched")}
    await made.guest.set_cpu(MilliCpu(1500))
    with pytest.raises(GuestError, match="default/db: the guest refused 2 CPU: CPU 1 cannot be switched"):
        await made.guest.set_cpu(MilliCpu(2000))


@pytest.mark.parametrize("size", [MilliCpu(0), MilliCpu(4001)])
async def test_cpu_outside_bounds_is_refused_early(tmp_path: Path, daemon: FakeGuestDaemon, size: MilliCpu) -> None:
    made = GuestFixture(tmp_path, daemon)
    await made.guest.start()
    with pytest.raises(GuestError, match="above zero and at most 4"):
        await made.guest.set_cpu(size)
    assert daemon.asked == []


async def test_memory_device_holds_size_above_minimum(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    made = GuestFixture(tmp_path, daemon)
    daemon.answers = READY
    await made.guest.start()
    await made.guest.set_memory(Bytes(1024 * MIB))
    assert (await made.guest.state()).mem == Bytes(1024 * MIB)
    ordered = [arguments for command, arguments in made.hypervisor.machine.calls if command == "qom-set"]
    assert ordered == [
        {"path": "/machine/peripheral/vm0", "property": "requested-size", "value": 768 * MIB},
    ]
    assert made.clock.instant == 0.0


async def test_busy_memory_stays_after_three_seconds(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    made = GuestFixture(tmp_path, daemon)
    daemon.answers = READY
    await made.guest.start()
    made.hypervisor.machine.least = 128 * MIB
    await made.guest.set_memory(Bytes(256 * MIB))
    assert (await made.guest.state()).mem == Bytes(384 * MIB)
    assert made.clock.instant == pytest.approx(3.0, abs=0.06)


async def test_memory_outside_of_the_bounds_is_refused(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    made = GuestFixture(tmp_path, daemon)
    await made.guest.start()
    for size in (Bytes(255 * MIB), Bytes(2049 * MIB)):
        with pytest.raises(GuestError, match="memory must be between 256Mi and 2Gi"):
            await made.guest.set_memory(size)


async def test_fixed_memory_has_no_device(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    same = Bytes(512 * MIB)
    made = GuestFixture(tmp_path, daemon, mem_min=same, mem_max=same, mem_use=same)
    daemon.answers = READY
    await made.guest.start()
    await made.guest.set_memory(same)
    assert (await made.guest.state()).mem == same
    assert made.hypervisor.machine.calls == []


async def test_malformed_answers_blame_guest(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    made = GuestFixture(tmp_path, daemon)
    await made.guest.start()
    daemon.answers = {"GET /ready": (200, "ready"), "GET /cpu": (200, "many")}
    with pytest.raises(GuestError, match="reported an invalid CPU: many"):
        await made.guest.state()
    daemon.unplugged = True
    with pytest.raises(GuestError, match="default/db: default/db-abc is not on the network"):
        await made.guest.state()
    made.hypervisor.machine.size = "large"
    with pytest.raises(GuestError, match="memory device has the size 'large'"):
        await made.guest.state()


async def test_failed_launch_can_be_retried(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    made = GuestFixture(tmp_path, daemon)
    made.hypervisor.fault = GuestError("no room")
    with pytest.raises(GuestError, match="no room"):
        await made.guest.start()
    assert (await made.guest.state()).phase is GuestPhase.STOPPED
    made.hypervisor.fault = None
    await made.guest.start()
    assert isinstance(made.guest, QemuGuest)
    assert (await made.guest.state()).phase is GuestPhase.BOOTING


async def test_unwritable_state_folder_blames_guest(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    made = GuestFixture(occupied(tmp_path), daemon)
    with pytest.raises(GuestError, match=r"default/db: cannot start the guest in .*: .*exists"):
        await made.guest.start()


def occupied(folder: Path) -> Path:
    """A path at which a file exists."""
    (folder / "db").write_text("")
    return folder / "db"
