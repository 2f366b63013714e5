"""A migration between two scripted machines: commands, their order, and which side runs after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from deploy.neonvm.ports import TransferError, TransferFault
from deploy.neonvm.qemu import transfer
from deploy.neonvm.qemu.machine import Machine, Route
from deploy.neonvm.qemu.transfer import run_to_completion
from deploy.neonvm.transfer_terms import TransferInfo, TransferStatus
from tests.neonvm.qemu.scripted_move import LIMITS, Move


@pytest.fixture
def move() -> Move:
    return Move()


async def test_target_runs_after_source_completes(move: Move) -> None:
    info = await move.transfer.run()
    assert move.since("source: migrate") == [
        "source: migrate",
        "frames go to the target",
        "frames are handed over",
        "target: cont",
        "target: announce-self",
        "source ends",
        "no frame is handed over any more",
    ]
    assert (info.status, move.target.run_state) == (TransferStatus.COMPLETED, "running")
    assert [each.status for each in move.progress] == [TransferStatus.ACTIVE] * 3 + [TransferStatus.COMPLETED]


async def test_guest_out_of_space_continues_at_target(move: Move) -> None:
    """Nothing else would resume the guest: the target inherits the run state without an event."""
    has_sent = move.source.at[2.0]

    def sent_out_of_space() -> None:
        has_sent()
        move.target.run_state = "io-error"

    move.source.at[2.0] = sent_out_of_space
    await move.transfer.run()
    assert (move.story.count("target: cont"), move.target.run_state) == (1, "running")


async def test_target_may_run_out_of_space_again(move: Move) -> None:
    """It has run, so the source must not."""
    move.target.on_cont = lambda: setattr(move.target, "run_state", "io-error")
    info = await move.transfer.run()
    assert (info.status, move.source.alive, move.target.alive) == (TransferStatus.COMPLETED, False, True)


async def test_refusing_target_returns_guest(move: Move) -> None:
    move.target.obeys = False
    assert await move.fails() == (TransferFault.TARGET_LOST, True)
    assert move.since("target is killed") == [
        "target is killed",
        "frames go to the source",
        "source: migrate_cancel",
        "frames stay with the source",
        "source: cont",
        "frames stay with the source",
    ]


async def test_network_switches_with_stop_and_return(move: Move) -> None:
    task = asyncio.create_task(move.transfer.run())
    move.source.at = {1.0: lambda: _remember(move.source.stops), 2.0: lambda: _remember(move.source.goes_on)}
    told = list[list[str]]()

    def _remember(happens: Callable[[], None]) -> None:
        before = len(move.story)
        happens()
        told.append(move.story[before:])

    with pytest.raises(TransferError):
        await task
    assert told == [["frames go to the target"], ["frames go to the source"]]
    assert (move.source.run_state, move.target.alive, move.story.count("source: cont")) == ("running", False, 0)


async def test_source_continues_after_reading_frames(move: Move) -> None:
    move.target.obeys, move.frames.faults = False, 3
    assert await move.fails() == (TransferFault.TARGET_LOST, True)
    assert move.story.index("frames stay with the source") < move.story.index("source: cont")


async def test_released_target_keeps_frames(move: Move) -> None:
    move.target.on_cont = lambda: move.source.say("RESUME")
    await move.transfer.run()
    assert move.since("frames go to the target").count("frames go to the source") == 0


async def test_target_death_leaves_source_running(move: Move) -> None:
    move.target.at[1.0] = move.target.dies
    assert await move.fails() == (TransferFault.TARGET_LOST, True)
    assert "source: cont" not in move.story


async def test_target_death_after_release_loses_guest(move: Move) -> None:
    move.target.on_cont = move.target.dies
    assert await move.fails() == (TransferFault.TARGET_LOST, False)
    assert "source: cont" not in move.story
    assert move.story[-1] == "source is killed"


async def test_source_death_in_transfer_loses_guest(move: Move) -> None:
    move.source.at = {1.0: move.source.dies}
    assert await move.fails() == (TransferFault.SOURCE_LOST, False)
    assert move.story[-1] == "target is killed"


SILENCES = pytest.mark.parametrize("silence", [5.0, 15.0, 25.0, 35.0])


@SILENCES
async def test_briefly_silent_source_survives(move: Move, silence: float) -> None:
    move.source.at = {1.0: lambda: move.source.falls_silent(silence)}
    move.target.at = {1.0: move.target.dies}
    assert await move.fails() == (TransferFault.TARGET_LOST, True)
    assert (move.source.alive, move.source.run_state) == (True, "running")


@SILENCES
async def test_briefly_silent_target_is_awaited(move: Move, silence: float) -> None:
    move.target.on_cont = lambda: move.target.falls_silent(silence)
    info = await move.transfer.run()
    assert (info.status, move.target.alive, move.source.alive) == (TransferStatus.COMPLETED, True, False)


async def test_silent_source_is_given_up(move: Move) -> None:
    move.source.at = {1.0: lambda: move.source.falls_silent(1e9)}
    move.target.at = {1.0: move.target.dies}
    assert await move.fails() == (TransferFault.TARGET_LOST, False)
    assert move.story[-1] == "source is killed"
    assert move.clock.instant < 120


async def test_slow_move_is_cancelled(move: Move) -> None:
    move.source.at = {}
    assert await move.fails() == (TransferFault.TIMED_OUT, True)
    assert move.since("target is killed") == [
        "target is killed",
        "source: migrate_cancel",
        "frames stay with the source",
    ]
    assert 300 <= move.clock.instant < 302


async def test_cancelled_move_ends_with_known_runner(move: Move) -> None:
    task = asyncio.create_task(run_to_completion(move.transfer.run(), move.transfer.cancel))
    move.source.at = {1.0: lambda: _cancel(task)}
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (move.source.alive, move.source.run_state, move.target.alive) == (True, "running", False)


@dataclass
class StuckWire:
    """It opens for as long as the disk of a sleeping guest is sent, to a target that takes nothing. Meanwhile
    ``happens``.
    """

    story: list[str]
    happens: Callable[[], None]

    async def open(self, *_: Machine) -> Route:
        self.happens()
        try:
            await asyncio.Event().wait()
        finally:
            self.story.append("the wire is given up")
        raise AssertionError("nobody takes the disk")


async def test_wire_that_never_opens_ends_with_the_move(move: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guest sleeps on where it is, and its clients can wake it there."""
    monkeypatch.setattr(transfer, "_POLL_SECONDS", 0.01)
    move.source.at = {}
    move.open_route = StuckWire(move.story, lambda: setattr(move.clock, "instant", 301.0)).open
    move.begin()
    assert await move.fails() == (TransferFault.TIMED_OUT, True)
    assert move.since("the wire is given up") == [
        "the wire is given up",
        "target is killed",
        "source: migrate_cancel",
        "frames stay with the source",
    ]


@pytest.mark.parametrize("is_left", [False, True])
async def test_cancelled_move_does_not_wait_for_wire(
    move: Move, monkeypatch: pytest.MonkeyPatch, *, is_left: bool
) -> None:
    """Another process may take up a move that was left."""
    monkeypatch.setattr(transfer, "_POLL_SECONDS", 0.01)

    def ends() -> None:
        (move.transfer.detach if is_left else move.transfer.cancel)()

    move.source.at = {}
    move.open_route = StuckWire(move.story, ends).open
    move.begin()
    with pytest.raises(asyncio.CancelledError if is_left else TransferError):
        await move.transfer.run()
    assert ("the wire is given up" in move.story, move.source.alive, move.target.alive) == (True, True, is_left)


def _cancel(task: asyncio.Task[TransferInfo]) -> None:
    task.cancel()


def allowed_standstills(move: Move) -> list[tuple[int, object]]:
    """For each second of the migration, the downtime in milliseconds that QEMU is allowed from then on."""
    allowed: list[tuple[int, object]] = []
    ask = move.source.call

    async def heard(command: str, arguments: Mapping[str, object] | None = None) -> object:
        if arguments is not None and "downtime-limit" in arguments:
            allowed.append((int(move.clock.instant), arguments["downtime-limit"]))
        return await ask(command, arguments)

    move.source.call = heard  # type: ignore[method-assign]  # the same, overheard
    return allowed


async def test_downtime_limit_rises_for_busy_guest(move: Move) -> None:
    move.source.at = {}
    allowed = allowed_standstills(move)
    await move.fails()
    assert allowed == [(0, 20), (5, 40), (10, 80), (15, 160), (20, 300)]


async def test_emulated_guest_pauses_after_bulk_copy(move: Move) -> None:
    def left(memory: int, disk: int) -> Callable[[], None]:
        return lambda: move.source.figures.update(
            {"ram": {"total": 9, "remaining": memory}, "disk": {"remaining": disk}}
        )

    move.begin(limits=LIMITS.in_one_pass())
    move.source.at.update(
        {0.5: left(9, 9), 4.0: left(9, 0), 7.0: left(0, 5), 8.0: left(0, 0), 30.0: move.source.at.pop(2.0)}
    )
    allowed = allowed_standstills(move)
    await move.transfer.run()
    assert allowed == [(0, 0), (8, 1_000_000)]
