"""A sleeping guest is sent to another machine: after any failure it runs once or stays asleep (B.18)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.neonvm.ports import GuestError, TransferError, TransferFault
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.qemu.qemu_command import DEAF
from deploy.neonvm.qemu.transfer import Transfer, TransferEndpoints
from deploy.neonvm.sleep.migration_source import SleepingSource, sleeping_endpoints
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits, TransferStatus
from protocol.units import Bytes, Seconds
from tests.neonvm.sleep.fakes import MEMORY, Target
from tests.neonvm.sleep.test_sleeping import World

LIMITS = TransferLimits(downtime=Seconds(0.02), bandwidth=Bytes(2**30), timeout=Seconds(60.0))


@dataclass
class Move:
    """A sleeper, the target machine, and the announcements to the network."""

    world: World
    target: Target
    led: list[str] = field(default_factory=list)
    progress: list[TransferInfo] = field(default_factory=list)

    def transfer(self, target: Machine | None = None) -> Transfer:
        lead = (lambda: self.led.append("source"), lambda: self.led.append("target"))
        source = SleepingSource(self.world.sleep, self.world.clock)
        ends = TransferEndpoints("default/db", source, target or self.target, self.world.clock, *lead)
        return Transfer(sleeping_endpoints(ends, self.world.sleep, lambda: 12), LIMITS, self.progress.append)

    @property
    def image(self) -> Path:
        return self.world.sleep.image.path


@pytest.fixture
async def move(tmp_path: Path) -> AsyncIterator[Move]:
    world = World(tmp_path)
    world.boots.set()
    await world.begin()
    target = Target(image=world.sleep.image.path)
    target.reads.set()
    yield Move(world, target)
    await world.sleep.abandon()


async def test_sleeper_runs_in_target(move: Move) -> None:
    """Its image is deleted before it runs there, and it gets the queued frames."""
    info = await move.transfer().run()
    assert (info.status, info.ram.transferred) == (TransferStatus.COMPLETED, len(MEMORY))
    assert (move.target.loaded, move.target.run_state, move.target.had_image) == (MEMORY, "running", [False])
    log = move.target.log
    assert log.index("migrate-incoming") < log.index("give put-in") < log.index("cont")
    assert (move.world.sleep.is_over.is_set(), move.world.launches) == (True, [])
    assert move.world.stand_in.places == ["network", "nothing", "closed"]
    assert move.led == ["source", "target"]


class HubTarget(Target):
    """Drops all frames while it has ``deaf``, which it refuses to remove ``refusals`` times."""

    is_deaf = True
    refusals = 2

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        match command, (arguments or {}).get("path"), (arguments or {}).get("id"):
            case "qom-list", "/", _:
                return [{"name": "objects"}]
            case "qom-list", _, _:
                return [{"name": DEAF}] if self.is_deaf else []
            case "object-del", _, "deaf" if self.refusals:
                self.refusals -= 1
                raise GuestError("QEMU refused object-del")
            case "object-del", _, "deaf":
                self.is_deaf = False
        return await super().call(command, arguments)


async def test_target_on_a_hub_hears_again(move: Move) -> None:
    """One refusal must not leave it without frames forever."""
    move.target = target = HubTarget(image=move.image)
    target.reads.set()
    await move.transfer().run()
    assert (target.run_state, target.is_deaf) == ("running", False)


async def test_kept_frames_are_handed_over_again(move: Move) -> None:
    """An end among them was acknowledged, and its sender does not repeat it."""
    move.target.fails_at = "give put-in"
    await move.transfer().run()
    assert move.target.log.count("give put-in") == 2


async def test_called_sleeper_leaves_its_disk(move: Move) -> None:
    """A frame has called for a wake: the process started for it here ends before the guest runs elsewhere."""
    move.world.stand_in.woken.set()
    await move.world.sleep.woken()
    await move.transfer().run()
    assert (len(move.world.launches), move.world.machine.kills, move.target.run_state) == (1, 1, "running")


async def test_frame_that_calls_too_late_starts_nothing(move: Move) -> None:
    """It was among the last frames read before the guest ran elsewhere."""
    waiting = asyncio.create_task(move.world.sleep.woken())
    await asyncio.sleep(0)
    await move.world.sleep.leave()
    move.world.stand_in.woken.set()
    await waiting
    assert move.world.launches == []


async def test_lost_target_leaves_sleeper(move: Move) -> None:
    """It wakes here later, with its memory."""
    move.target.fails_at = "migrate-incoming"
    with pytest.raises(TransferError, match="keeps running on the source") as caught:
        await move.transfer().run()
    assert caught.value.fault is TransferFault.REFUSED
    assert (move.target.kills, move.image.exists()) == (1, True)
    assert (await move.world.sleep.wake()).fault == ""
    assert move.world.machine.loaded == MEMORY


async def test_move_that_is_called_off_leaves_sleeper(move: Move) -> None:
    """The target does not read, but its sender is not stuck with it. A second migration succeeds."""
    move.target.reads.clear()
    transfer = move.transfer()
    running = asyncio.create_task(transfer.run())
    await move.target.begun.wait()
    transfer.cancel()
    with pytest.raises(TransferError, match="was cancelled"):
        await running
    assert move.image.exists()
    again = Target(image=move.image)
    again.reads.set()
    await move.transfer(again).run()
    assert again.run_state == "running"


async def test_damaged_image_is_not_run_elsewhere(move: Move) -> None:
    content = bytearray(move.image.read_bytes())
    content[-1] ^= 1
    move.image.write_bytes(content)
    with pytest.raises(TransferError, match="corrupt"):
        await move.transfer().run()
    assert move.target.had_image == []
    assert "corrupt" in (await move.world.sleep.wake()).fault


async def test_target_that_refuses_once_runs(move: Move) -> None:
    """It is the only one that still has the guest's memory."""
    move.target.fails_at = "cont"
    await move.transfer().run()
    assert (move.target.run_state, move.target.kills, move.target.log.count("cont")) == ("running", 0, 2)


async def test_sleeper_of_refusing_target_boots(move: Move) -> None:
    """The target has received the guest: its image is used up, on whichever end the guest runs."""
    move.target.obeys = False
    with pytest.raises(TransferError, match="did not start"):
        await move.transfer().run()
    assert (move.target.kills, move.image.exists()) == (1, False)
    assert move.world.stand_in.places == ["network", "nothing", "network"]
    assert "already used" in (await move.world.sleep.wake()).fault
    assert move.world.adopted == [move.world.booted]


async def test_waking_guest_is_not_sent(move: Move) -> None:
    waking = asyncio.create_task(move.world.sleep.wake())
    await asyncio.sleep(0)
    with pytest.raises(GuestError, match="is waking"):
        await SleepingSource(move.world.sleep, move.world.clock).call("migrate", {"uri": "fd:transfer"})
    await waking


async def test_unknown_address_sends_nothing(move: Move) -> None:
    source = SleepingSource(move.world.sleep, move.world.clock)
    await source.call("migrate", {"uri": "exec:cat"})
    await source.wait_for_event(1.0)
    report = await source.call("query-migrate")
    assert isinstance(report, dict)
    assert (report["status"], report["error-desc"]) == ("failed", "cannot send a sleeping guest to exec:cat")
    assert source.output_tail() == report["error-desc"]
