"""Migrations in one process: cancelled at any moment, and ended by errors that none should end with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from deploy.neonvm.migration.migration_facts import Sending, TransferState
from deploy.neonvm.migration.transfers import Transfers
from deploy.neonvm.ports import TransferError, TransferFault
from deploy.neonvm.qemu.transfer import run_to_completion
from deploy.neonvm.transfer_terms import TransferInfo
from tests.fake_clock import FakeClock, settle

CANCELLED = TransferState(Sending.FAILED, "Cancelled", "the migration was cancelled")


@dataclass
class Move:
    """A migration that ends with ``error`` once it ``ends``, cancelled or not."""

    error: Exception
    ends: asyncio.Event = field(default_factory=asyncio.Event)
    calls_off: int = 0

    async def send(self, progress: Callable[[TransferInfo], None]) -> TransferInfo:
        return await run_to_completion(self._work(), self._call_off)

    async def _work(self) -> TransferInfo:
        await self.ends.wait()
        raise self.error

    def _call_off(self) -> None:
        self.calls_off += 1


@dataclass
class Told:
    changes: int = 0
    faults: list[str] = field(default_factory=list)

    def changed(self) -> None:
        self.changes += 1

    async def fault(self, error: Exception) -> None:
        self.faults.append(str(error))


@pytest.fixture
async def transfers() -> AsyncIterator[Transfers]:
    async with Transfers(FakeClock()) as made:
        yield made


def refused() -> Move:
    return Move(TransferError(TransferFault.REFUSED, "it stays"))


async def test_cancelled_move_ends_once_runner_is_known(transfers: Transfers) -> None:
    move, told = refused(), Told()
    transfers.begin("m", move.send, told.changed, told.fault)
    await settle()
    transfers.cancel("m")
    transfers.cancel("m")
    await settle()
    assert (transfers.of("m").sending, move.calls_off, told.changes) == (Sending.ACTIVE, 1, 0)
    move.ends.set()
    await settle()
    assert (transfers.of("m"), told.changes) == (CANCELLED, 1)


async def test_move_cancelled_at_start_still_ends(transfers: Transfers) -> None:
    move, told = refused(), Told()
    transfers.begin("m", move.send, told.changed, told.fault)
    transfers.cancel("m")
    await settle()
    assert (transfers.of("m").sending, move.calls_off) == (Sending.ACTIVE, 1)
    move.ends.set()
    await settle()
    assert transfers.of("m") == CANCELLED


async def test_internal_error_affects_one_move(transfers: Transfers) -> None:
    faulty, good, told = Move(ZeroDivisionError("ours")), refused(), Told()
    transfers.begin("faulty", faulty.send, told.changed, told.fault)
    transfers.begin("good", good.send, told.changed, told.fault)
    await settle()
    transfers.cancel("faulty")
    faulty.ends.set()
    await settle()
    assert (transfers.of("faulty"), told.faults) == (TransferState(), ["ours"])
    good.ends.set()
    await settle()
    assert transfers.of("good") == TransferState(Sending.FAILED, "Refused", "it stays")


async def test_orphaned_move_is_forgotten_at_end(transfers: Transfers) -> None:
    move, told = refused(), Told()
    transfers.begin("m", move.send, told.changed, told.fault)
    await settle()
    assert not transfers.forget("m")
    move.ends.set()
    await settle()
    assert (transfers.forget("m"), transfers.of("m")) == (True, TransferState())
