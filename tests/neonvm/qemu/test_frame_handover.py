"""Frames that a guest has not read follow it: commands to both QEMUs, and the frames left after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.frame_handover import DirectHandover
from protocol.units import Seconds
from tests.neonvm.qemu.fakes import FakeMachine, SteppedClock


@dataclass
class Filtering(FakeMachine):
    """A QEMU with filters in its network. ``refuses`` are commands that fail; ``unread`` polls find frames to read."""

    filters: dict[str, str] = field(default_factory=dict)
    sockets: set[str] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)
    unread: int = 0

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        about = dict(arguments or {})
        name = str(about.get("id"))
        if command in self.refuses:
            raise GuestError(f"QEMU refused {command}")
        match command:
            case "object-add":
                self.filters[name] = str(about.get("status", "on"))
            case "object-del":
                if name not in self.filters:
                    raise GuestError(f"object '{name}' not found")
                del self.filters[name]
            case "qom-set":
                name = str(about["path"]).removeprefix("/objects/")
                if name not in self.filters:
                    raise GuestError(f"object '{name}' not found")
                self.filters[name] = str(about["value"])
            case "qom-list" if about["path"] == "/":
                return [{"name": "machine"}, *([{"name": "objects"}] if self.filters else [])]
            case "qom-list" if not self.filters:
                raise GuestError("Device '/objects' not found")
            case "qom-list":
                return [{"name": "type", "type": "string"}, *({"name": each} for each in self.filters)]
            case "chardev-add":
                self.sockets.add(name)
            case "chardev-remove":
                self.sockets.remove(name)
            case "query-chardev":
                self.unread -= 1
                state = "disconnected:unix" if self.unread < 0 else "unix"
                return [
                    {"label": "monitor", "filename": "unix"},
                    *({"label": e, "filename": state} for e in self.sockets),
                ]
        return {}


@dataclass
class Ends:
    """A move between two such."""

    source: Filtering = field(default_factory=Filtering)
    target: Filtering = field(default_factory=Filtering)
    clock: SteppedClock = field(default_factory=SteppedClock)

    def __post_init__(self) -> None:
        self.frames = DirectHandover(self.source, self.target, self.clock, Seconds(0.02))

    @property
    def filters(self) -> tuple[dict[str, str], dict[str, str]]:
        return self.source.filters, self.target.filters


@pytest.fixture
def ends() -> Ends:
    return Ends()


async def test_frames_are_held_and_handed_over(ends: Ends) -> None:
    await ends.frames.prepare()
    assert ends.filters == ({"hold": "on", "hand": "off"}, {"take": "on"})
    await ends.frames.divert()
    assert ends.filters == ({"hand": "on"}, {"take": "on"})
    await ends.frames.finish()
    assert (ends.target.filters, ends.target.sockets) == ({}, set())


async def test_hub_target_gets_only_missed_frames(ends: Ends) -> None:
    ends.target.filters["deaf"] = "on"
    await ends.frames.prepare()
    assert ends.filters == ({"hold": "on", "hand": "off"}, {"deaf": "on", "take": "on"})
    await ends.frames.divert()
    assert ends.filters == ({}, {"take": "on"})


async def test_kept_guest_reads_frames_again(ends: Ends) -> None:
    await ends.frames.prepare()
    await ends.frames.divert()
    for _ in range(2):
        await ends.frames.restore()
        assert (ends.source.filters, ends.source.sockets) == ({}, set())


async def test_frame_reader_state_is_always_confirmed(ends: Ends) -> None:
    await ends.frames.prepare()
    ends.source.refuses.add("object-del")
    with pytest.raises(GuestError):
        await ends.frames.restore()
    ends.source.refuses.clear()
    await ends.frames.restore()
    assert ends.source.filters == {}


@pytest.mark.parametrize("at", ["source", "target"])
@pytest.mark.parametrize("command", ["chardev-add", "object-add"])
async def test_a_qemu_that_cannot_do_it_moves_without(ends: Ends, at: str, command: str) -> None:
    getattr(ends, at).refuses.add(command)
    await ends.frames.prepare()
    await ends.frames.divert()
    assert ends.source.filters == {}
    await ends.frames.finish()
    assert ends.target.filters == {}


async def test_earlier_move_does_not_disturb_next(ends: Ends) -> None:
    ends.source.filters["take"], ends.source.sockets = "on", {"handed"}
    await ends.frames.prepare()
    assert ends.filters == ({"hold": "on", "hand": "off"}, {"take": "on"})


async def test_target_drains_frames_before_teardown(ends: Ends) -> None:
    await ends.frames.prepare()
    ends.target.unread = 3
    await ends.frames.finish()
    assert ends.target.filters == {}
    assert ends.clock.instant == pytest.approx(0.06)


async def test_silent_target_wait_is_bounded(ends: Ends) -> None:
    ends.target.refuses.add("query-chardev")
    async with asyncio.timeout(5):
        await ends.frames.finish()
    assert ends.clock.instant == pytest.approx(1.0)
