"""Real guests move: no client notices, and any failure leaves exactly one of them running (S4.12)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.neonvm.network import netns
from deploy.neonvm.network.chooser import NetworkKind
from deploy.neonvm.network.namespaces import switch_of
from deploy.neonvm.ports import (
    Guest,
    GuestError,
    GuestPhase,
    GuestSpec,
    GuestState,
    TransferError,
    TransferFault,
)
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.qemu.qemu_process import Qemu, QemuProcess
from deploy.neonvm.transfer_terms import TransferInfo, TransferStatus
from protocol.runtime.clock import SystemClock
from protocol.units import Bytes, MilliCpu, Seconds
from scripts.bench.echoes import echoing
from tests.vm.guests import MIB, SETTLE_SECONDS, cluster_of, has_memory, machines, until, until_running
from tests.vm.journeys import LIMITS, Journey, probing, travelling

pytestmark = pytest.mark.vm
SLOW = replace(LIMITS, bandwidth=Bytes(16 * MIB))
"""At this speed a move takes ten seconds, so that something can happen in between."""


@pytest.mark.parametrize("kind", [NetworkKind.AUTO, NetworkKind.HUB])
async def test_guest_migrates_back_and_forth_under_load(kind: NetworkKind, tmp_path: Path) -> None:
    async with travelling(kind, tmp_path) as journey:
        await journey.guest.set_cpu(MilliCpu(2500))
        await has_memory(journey.guest, Bytes(768 * MIB))
        load = asyncio.create_task(journey.home.pgbench("--client=4", "--time=12"))
        downtimes: list[Seconds] = []
        async with probing(journey) as probe:
            for _ in range(2):
                await asyncio.sleep(2)
                info = await journey.hop()
                assert info.status is TransferStatus.COMPLETED
                downtimes.append(info.downtime)
                await runs_with(journey.guest, MilliCpu(2500), Bytes(768 * MIB))
                assert len(machines(tmp_path)) == 1
            said = await load
        assert "number of failed transactions: 0 (0.000%)" in said
        assert 0 < min(downtimes) <= max(downtimes) < probe.slow.stretched(1)
        assert probe.longest < probe.slow.stretched(3)
        assert [info.status for info in journey.progress].count(TransferStatus.COMPLETED) == 2
        await has_memory(journey.guest, Bytes(1024 * MIB))
        await journey.guest.set_cpu(MilliCpu(500))
        online = {name for name in await journey.here().scrape("cpu") if 'mode="idle"' in name}
        assert len(online) == 1
        await runs_with(journey.guest, MilliCpu(500), Bytes(1024 * MIB))


async def runs_with(guest: Guest, cpu: MilliCpu, mem: Bytes) -> None:
    """Return once the guest reports this size: just after a migration it may be too busy to answer in time."""

    async def does() -> bool:
        with suppress(GuestError):
            return await guest.state() == GuestState(GuestPhase.RUNNING, cpu, mem)
        return False

    await until(does, SETTLE_SECONDS, guest)


@pytest.mark.root
async def test_migrating_guest_answers_every_frame(tmp_path: Path) -> None:
    async with travelling(NetworkKind.NAMESPACES, tmp_path) as journey:
        switch = switch_of(cluster_of(tmp_path))
        assert switch is not None
        async with echoing(netns.icmp_in(switch), journey.spec.address, SystemClock()) as echoes:
            for _ in range(3):
                await asyncio.sleep(1)
                await journey.hop()
            asked = len(echoes.sent)
            await asyncio.sleep(3)
        assert sum(number not in echoes.replied_at for number in range(asked)) <= 1


async def test_failed_migration_leaves_guest_running(tmp_path: Path) -> None:
    """One boot for all failures before the target may run; a client's connection must survive each of them."""
    async with travelling(NetworkKind.AUTO, tmp_path) as journey, probing(journey) as probe:
        for fail in (dies_before, dies_on_the_way, has_other_memory, takes_too_long, is_cancelled):
            target, spec = await journey.target(**({"mem_min": Bytes(384 * MIB)} if fail is has_other_memory else {}))
            await fail(journey, target)
            assert (await target.state()).phase is GuestPhase.STOPPED, fail
            await until_running(journey.guest)
            assert len(machines(tmp_path)) == 1, fail
            await answers(journey)
            await journey.drop(target, spec)
        await journey.hop()
        await answers(journey)
    assert probe.longest < probe.slow.stretched(5)


async def dies_before(journey: Journey, target: Guest) -> None:
    await target.stop()
    await stays(journey, target, TransferFault.TARGET_LOST, "gone")


async def dies_on_the_way(journey: Journey, target: Guest) -> None:
    move = asyncio.create_task(stays(journey, target, TransferFault.TARGET_LOST, "the target failed", slowly=True))
    await under_way(journey)
    kill(journey.spec.state_dir, receiving=True)
    await move


async def has_other_memory(journey: Journey, target: Guest) -> None:
    await stays(journey, target, TransferFault.TARGET_LOST, "the target failed: .*mismatch")


async def takes_too_long(journey: Journey, target: Guest) -> None:
    journey.progress.clear()
    limits = replace(SLOW, timeout=Seconds(4.0))
    with pytest.raises(TransferError, match="not sent within 4 s") as caught:
        await journey.guest.send(target, limits, journey.progress.append)
    assert caught.value.fault is TransferFault.TIMED_OUT
    assert len(journey.progress) >= 2


async def is_cancelled(journey: Journey, target: Guest) -> None:
    journey.progress.clear()
    move = asyncio.create_task(journey.guest.send(target, SLOW, journey.progress.append))
    await under_way(journey)
    move.cancel()
    with pytest.raises(asyncio.CancelledError):
        await move


async def stays(journey: Journey, target: Guest, fault: TransferFault, message: str, *, slowly: bool = False) -> None:
    """The move fails like this, and the guest stays."""
    journey.progress.clear()
    with pytest.raises(TransferError, match=message) as caught:
        await journey.guest.send(target, SLOW if slowly else LIMITS, journey.progress.append)
    assert caught.value.fault is fault


async def under_way(journey: Journey) -> None:
    """Returns once memory is being sent."""

    async def holds() -> bool:
        return any(moves(info) for info in journey.progress)

    await until(holds, 20, journey.guest)


def moves(info: TransferInfo) -> bool:
    return info.status is TransferStatus.ACTIVE and info.ram.transferred > 0


async def answers(journey: Journey) -> None:
    """The database serves, through the network as clients use it."""
    said = await journey.home.pgbench("--client=1", "--transactions=3", "--select-only")
    assert "number of failed transactions: 0" in said


def kill(state_dir: Path, *, receiving: bool) -> None:
    """Kills the process that receives, or the one that does not."""
    for pid in machines(state_dir):
        if (b"-incoming" in Path(f"/proc/{pid}/cmdline").read_bytes()) is receiving:
            os.kill(pid, signal.SIGKILL)


class DiesOnRelease(QemuProcess):
    """A QEMU that dies right after it was told to run."""

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        answer = await super().call(command, arguments)
        if command == "cont":
            await self.kill()
        return answer


class Fatal(Qemu):
    """Launches such."""

    async def launch(
        self, who: str, command: Callable[[int], Sequence[str]], log: Path, inherit: Sequence[int] = ()
    ) -> Machine:
        return await DiesOnRelease.launch(who, command, log, inherit)


async def test_guest_boots_from_disk_after_double_failure(tmp_path: Path) -> None:
    async with travelling(NetworkKind.AUTO, tmp_path) as journey:
        target, spec = await journey.target()
        move = asyncio.create_task(journey.guest.send(target, SLOW, journey.progress.append))
        await under_way(journey)
        kill(tmp_path, receiving=False)
        await nobody_survives(move, TransferFault.SOURCE_LOST, "the source ended during the migration")
        await starts_again(journey, target, spec)

        journey.guests = replace(journey.guests, hypervisor=Fatal())
        target, spec = await journey.target()
        move = asyncio.create_task(journey.guest.send(target, LIMITS, journey.progress.append))
        await nobody_survives(move, TransferFault.TARGET_LOST, "the target ended during the handover")
        await starts_again(journey, target, spec)


async def nobody_survives(move: asyncio.Task[TransferInfo], fault: TransferFault, message: str) -> None:
    with pytest.raises(TransferError, match=message) as caught:
        await move
    assert caught.value.fault is fault


async def starts_again(journey: Journey, target: Guest, spec: GuestSpec) -> None:
    """No process of the guest runs; started again it has its database."""
    assert machines(journey.spec.state_dir) == []
    assert [(await guest.state()).phase for guest in (journey.guest, target)] == [GuestPhase.STOPPED] * 2
    await journey.drop(target, spec)
    await journey.guest.start()
    await until_running(journey.guest)
    await answers(journey)
