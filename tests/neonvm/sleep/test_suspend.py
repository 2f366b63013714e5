"""A guest falls asleep, or runs on with all its frames: interrupted at every step (B.18)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.neonvm.ports import FellAsleep, SleepRefusedError
from deploy.neonvm.qemu.daemon import DaemonResponse
from deploy.neonvm.sleep.suspend import thaw
from protocol.units import Bytes, Seconds
from tests.fake_clock import settle
from tests.neonvm.qemu.fakes import SteppedClock
from tests.neonvm.sleep.fakes import FakeDaemon, descriptors
from tests.neonvm.sleep.falling_asleep import (
    BusyDaemon,
    BusyMachine,
    LaterSilent,
    LateStandIn,
    RefusingMachine,
    SlowImage,
    World,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.stand_in.close()


ASKED = ("PUT /freeze", "PUT /thaw", "PUT /spare")


async def test_guest_falls_asleep_in_the_right_order(world: World) -> None:
    """The guest agrees and gives up memory; its frames are diverted; only then is it checked, stopped and saved."""
    assert await world.fall().run() == FellAsleep(saved=_size(world), sessions=3)
    assert world.daemon.log == [*ASKED, "PUT /freeze"]
    order = [name for name in world.machine.log if name in {"qom-set", "object-add", "stop", "migrate", "cont"}]
    assert order == ["qom-set", "object-add", "object-add", "qom-set", "stop", "migrate"]
    assert (world.machine.run_state, world.daemon.frozen, world.stand_in.places) == ("postmigrate", True, ["diverted"])


async def test_guest_that_has_moved_falls_asleep(world: World) -> None:
    """Its move left the return path on, on which the file of its memory answers nothing."""
    world.machine.return_path = True
    async with asyncio.timeout(5.0):
        assert (await world.fall().run()).sessions == 3


STEPS = (
    *("qom-set", "give handed", "chardev-add", "object-add", "stop", "give asleep"),
    *("migrate-set-capabilities", "migrate-set-parameters", "migrate", "query-migrate"),
)


@pytest.mark.parametrize("step", STEPS)
async def test_fault_at_any_step_of_qemu(world: World, step: str) -> None:
    """QEMU refuses: the guest runs on, and no descriptor stays open."""
    before = descriptors()
    world.machine.fails_at = step
    with pytest.raises(SleepRefusedError, match=f"QEMU refused {step}"):
        await world.fall().run()
    world.stand_in.close()
    assert world.runs_on()
    assert descriptors() == before


@pytest.mark.parametrize("daemon", [FakeDaemon(fails_at="PUT /freeze"), LaterSilent()], ids=["first", "second"])
async def test_guest_that_does_not_answer_is_thawed(world: World, daemon: FakeDaemon) -> None:
    """It may have been frozen all the same."""
    world.daemon = daemon
    with pytest.raises(SleepRefusedError, match="did not answer"):
        await world.fall().run()
    assert daemon.log[-2:] == ["PUT /freeze", "PUT /thaw"]
    assert world.runs_on()


@pytest.mark.parametrize(
    ("results", "thaws", "clocks"),
    [
        ([Seconds(0.2)], 1, 0),
        ([Seconds(0.3), Seconds(1.9), Seconds(0.1)], 1, 2),
        ([None, None, Seconds(0.0)], 3, 0),
        ([None, Seconds(0.3), None, Seconds(0.0)], 2, 2),
        ([Seconds(0.3), *[None] * 20], 1, 5),
        ([Seconds(0.3)] * 20, 1, 5),
        ([None] * 20, 10, 0),
    ],
    ids=[
        *("at once", "late twice", "unanswered twice", "clock unanswered once"),
        *("no /clock", "always late", "never answered"),
    ],
)
async def test_clock_is_set_until_right(results: list[Seconds | None], thaws: int, clocks: int) -> None:
    """A /clock that is answered late, or not at all, may have set an old time. Images of before have none."""
    daemon = FakeDaemon(thaws=results)
    await thaw(daemon, SteppedClock())  # type: ignore[arg-type]  # the daemon is a fake
    assert daemon.log == ["PUT /thaw and the time"] * thaws + ["PUT /clock"] * clocks


async def test_clock_of_guest_busy_after_thaw() -> None:
    """The guest checks its database for up to five seconds, and then applies each clock setting that it missed."""
    clock = SteppedClock()
    daemon = BusyDaemon(clock)
    await thaw(daemon, clock)  # type: ignore[arg-type]  # the daemon is a fake
    assert (daemon.set_to, clock.now()) == (5.0, 5.0)


@pytest.mark.parametrize(
    ("daemon", "request_line"),
    [(LaterSilent(), "PUT /thaw"), (FakeDaemon(), "PUT /thaw and the time")],
    ids=["runs", "stops"],
)
async def test_refused_sleep_keeps_quiet_time(world: World, daemon: FakeDaemon, request_line: str) -> None:
    """Setting the time restarts the guest's quiet time, so it is set only if the clock may have stopped."""
    world.daemon, world.machine.fails_at = daemon, "stop"
    with pytest.raises(SleepRefusedError):
        await world.fall().run()
    assert daemon.log == [*ASKED, "PUT /freeze", request_line]


async def test_guest_is_thawed_once(world: World) -> None:
    """A second order would cancel the next freeze. Without a time it does not matter how late the answer is."""
    world.daemon.thaws = [None, Seconds(0.9)]
    world.daemon.fails_at = "PUT /freeze"
    with pytest.raises(SleepRefusedError):
        await world.fall().run()
    assert world.daemon.log.count("PUT /thaw") == 2


async def test_guest_without_spare_memory_sleeps(world: World) -> None:
    world.daemon.fails_at = "PUT /spare"
    assert (await world.fall().run()).sessions == 3


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (DaemonResponse(409, "a session is in a transaction"), "is busy: a session is in a transaction"),
        (DaemonResponse(404, "there is no such path"), "is busy: there is no such path"),
        (DaemonResponse(200, "yes"), "invalid response to /freeze"),
        (DaemonResponse(200, '{"sessions": -1}'), "invalid response to /freeze"),
        # Nobody could read a status that says this, so the guest would never be woken.
        (DaemonResponse(200, f'{{"sessions": {2**31}}}'), "invalid response to /freeze"),
        # Their keepalives could not all be answered, and some of them would end.
        (DaemonResponse(200, '{"sessions": 193}'), "193 open sessions; at most 192 can be kept alive during sleep"),
    ],
)
async def test_guest_with_work_runs_on(world: World, answer: DaemonResponse, why: str) -> None:
    """So does a guest whose image does not support sleep. It keeps its memory and its page cache."""
    world.daemon.answers["PUT /freeze"] = answer
    with pytest.raises(SleepRefusedError, match=why):
        await world.fall().run()
    assert (world.runs_on(), world.daemon.log, world.machine.log) == (True, ["PUT /freeze", "PUT /thaw"], [])


async def test_failed_save_leaves_no_image(world: World) -> None:
    world.machine.status = "failed"
    with pytest.raises(SleepRefusedError, match="QEMU failed to save the memory: failed"):
        await world.fall().run()
    assert world.runs_on()


async def test_guest_that_does_not_continue_at_once(world: World) -> None:
    """The guest is paused, and nothing else would resume it."""
    world.machine.status, world.machine.fails_at = "failed", "cont"
    with pytest.raises(SleepRefusedError, match="failed to save"):
        await world.fall().run()
    assert world.runs_on()


async def _refused(world: World, command: str, seconds: float = 0.0, since: str = "stop") -> float:
    """A sleep fails, and from the command ``since`` on QEMU always refuses ``command``; return how long it took."""
    clock = SteppedClock()
    world.machine = machine = RefusingMachine(status="failed")
    machine.clock, machine.refused, machine.seconds, machine.since = clock, command, seconds, since
    with pytest.raises(SleepRefusedError, match=r"failed to save|QEMU refused"):
        await replace(world.fall(), clock=clock).run()
    return clock.now()


@pytest.mark.parametrize(
    ("command", "seconds"),
    [("cont", 0.0), ("cont", 10.0), ("qom-list", 10.0)],
    ids=["refuses to continue", "does not answer", "keeps its frames"],
)
async def test_guest_that_never_continues_boots(world: World, command: str, seconds: float) -> None:
    """It would be paused forever, and the end of the program would wait for it. A QEMU that is slow to finish its
    migration has half a minute, and one that does not answer has no more.
    """
    took = await _refused(world, command, seconds)
    assert (world.machine.alive, world.boots, list(world.folder.iterdir())) == (False, 1, [])
    assert ("PUT /thaw and the time" in world.daemon.log) == (command != "cont")
    assert 30.0 <= took < 42.0


async def test_guest_that_has_its_frames_is_not_ended(world: World) -> None:
    """QEMU does not answer before anything was diverted, so the guest is not unreachable."""
    assert await _refused(world, "qom-list", 10.0, since="qom-set") < 52.0
    assert (world.machine.alive, world.boots) == (True, 0)


async def test_guest_without_its_queued_frames_runs_on(world: World) -> None:
    """Their senders send most of them again, so nothing is worth the end of the guest."""
    world.stand_in.frames = [(b"", b"the end of a session")]
    await _refused(world, "give put-in")
    assert world.machine.alive
    assert world.runs_on()


async def test_saving_ends_although_its_end_is_interrupted(world: World) -> None:
    """A frame arrives while QEMU cancels the save. A save that continued would pause the guest at its end."""
    world.machine = machine = BusyMachine()
    falling = asyncio.ensure_future(world.fall().run())
    await machine.is_cancelling.wait()
    world.stand_in.woken.set()
    with pytest.raises(SleepRefusedError, match="was needed while falling asleep"):
        await falling
    assert machine._end is not None
    with machine._end as end, pytest.raises(BrokenPipeError):
        end.send(b"rows")
    assert world.runs_on()


async def test_called_off_while_last_bytes_are_written(world: World) -> None:
    """QEMU is done, and its socket is not left open: what is written now is deleted after that."""
    image = SlowImage(world.folder)
    falling = asyncio.ensure_future(replace(world.fall(), image=image).run())
    await asyncio.to_thread(image.has_all.wait)
    await settle()
    world.stand_in.woken.set()
    await settle()
    was_over = falling.done()
    image.goes_on.set()
    with pytest.raises(SleepRefusedError, match="was needed while falling asleep"):
        await falling
    assert (was_over, world.runs_on()) == (False, True)


FULL = os.statvfs_result((4096, 4096, 100, 14, 14, 0, 0, 0, 0, 255))


async def test_refusal_names_full_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """QEMU reports only that the reader of its memory is gone."""
    monkeypatch.setattr(os, "fstatvfs", lambda _: FULL)
    world.machine.status = "failed"
    with pytest.raises(SleepRefusedError, match=r"cannot save the memory in .*it would leave less than 15%"):
        await world.fall().run()
    assert world.runs_on()


async def test_full_disk_costs_no_page_cache(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent retries, and each attempt would make the guest read its files from disk again."""
    monkeypatch.setattr(os, "statvfs", lambda _: FULL)
    with pytest.raises(SleepRefusedError, match=r"cannot save the memory in .*it would leave less than 15%"):
        await world.fall().run()
    assert (world.runs_on(), world.daemon.log, world.machine.log) == (True, [], [])


async def test_disk_that_cannot_be_flushed(world: World) -> None:
    """Detected while the guest can still resume. Later, it would sleep although its owner was told that it does not."""
    world.disk = world.folder / "missing"
    with pytest.raises(SleepRefusedError, match="cannot flush the disk"):
        await world.fall().run()
    assert world.runs_on()


async def test_last_diverted_frame_reaches_guest(world: World) -> None:
    """It may be the end of a session, which was acknowledged and is never sent again."""
    world.stand_in = LateStandIn()
    world.machine.fails_at = "stop"
    with pytest.raises(SleepRefusedError):
        await world.fall().run()
    assert "give put-in" in world.machine.log


async def test_frame_at_any_moment_calls_it_off(world: World) -> None:
    """After each command, a frame arrives that needs the guest: the guest keeps running and gets the frame."""
    steps = len((await _asleep(world)).machine.log)
    for step in range(steps):
        again = World(world.folder / str(step))
        again.folder.mkdir()
        await _interrupted(again, step, again.stand_in.woken.set)
        assert again.runs_on(), step


async def test_end_of_the_program_at_any_moment(world: World) -> None:
    """The task is cancelled after each command; it first undoes what it has begun."""
    steps = len((await _asleep(world)).machine.log)
    for step in range(steps - 1):
        again = World(world.folder / str(step))
        again.folder.mkdir()
        await _interrupted(again, step, None)
        assert again.runs_on(), step


async def _asleep(world: World) -> World:
    folder = world.folder / "whole"
    folder.mkdir()
    whole = World(folder)
    await whole.fall().run()
    whole.stand_in.close()
    return whole


async def _interrupted(world: World, step: int, act: object) -> None:
    """Plays the fall, and after ``step`` commands of QEMU does ``act`` (None: cancels it)."""
    note, falling = world.machine._note, asyncio.ensure_future(world.fall().run())

    def noted(command: str) -> None:
        note(command)
        if len(world.machine.log) == step + 1:
            act() if callable(act) else falling.cancel()

    world.machine._note = noted  # type: ignore[method-assign]
    try:
        async with asyncio.timeout(10):
            await asyncio.wait((falling,))
        falling.result()
    except (SleepRefusedError, asyncio.CancelledError):
        return
    finally:
        world.stand_in.close()


def _size(world: World) -> Bytes:
    return Bytes(next(world.folder.iterdir()).stat().st_size)
