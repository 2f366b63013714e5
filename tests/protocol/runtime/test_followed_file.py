"""One file of settings: taken in when its content changes, refused once, and the last good one stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protocol.runtime import followed_file
from protocol.runtime.followed_file import INTERVAL, FileRefusedError, FollowedFile
from tests.fake_clock import FakeClock


class Told:
    """Records its calls."""

    def __init__(self) -> None:
        self.value = 0
        self.told: list[int | str] = []

    def use(self, value: int) -> None:
        self.value = value

    def settings_accepted(self, generation: int) -> None:
        self.told.append(self.value * 100 + generation)

    def settings_refused(self, reason: str) -> None:
        self.told.append(reason.rpartition("/")[2])


@asynccontextmanager
async def followed(path: Path) -> AsyncIterator[tuple[Told, FakeClock]]:
    file, told, clock = FollowedFile(path, int), Told(), FakeClock()
    file.begin(told.use, told)
    following = asyncio.create_task(file.follow(told.use, told, clock))
    yield told, clock
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def looks(clock: FakeClock) -> None:
    """Two checks: the second starts only when the first, which reads in another thread, has ended."""
    for _ in range(2):
        await clock.advance(INTERVAL)
        async with asyncio.timeout(5.0):
            while not clock.sleepers:  # noqa: ASYNC110 - another thread reads
                await asyncio.sleep(0.001)


async def test_a_content_that_changes_is_taken_in_once(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_text("1")
    async with followed(path) as (told, clock):
        await looks(clock)
        path.write_text("2")
        await looks(clock)
        assert told.told == [101, 202]


async def test_refused_content_is_logged_once(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    async with followed(path) as (told, clock):
        await looks(clock)
        path.write_text("many")
        await looks(clock)
        path.write_bytes(b"\xff")
        await looks(clock)
        path.write_text("3")
        await looks(clock)
        assert told.told == [
            "settings: No such file or directory",
            "settings: invalid literal for int() with base 10: 'many'",
            "settings: expected UTF-8, got byte 0xff",
            301,
        ]


async def test_returned_file_is_in_force_again(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_text("1")
    async with followed(path) as (told, clock):
        path.rename(tmp_path / "away")
        await looks(clock)
        (tmp_path / "away").rename(path)
        await looks(clock)
        assert told.told == [101, "settings: No such file or directory", 102]


async def test_symlink_swap_and_rename_are_followed(tmp_path: Path) -> None:
    for name, content in (("one", "1"), ("two", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "settings").write_text(content)
    data, path = tmp_path / "..data", tmp_path / "settings"
    data.symlink_to("one")
    path.symlink_to("..data/settings")
    async with followed(path) as (told, clock):
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").rename(data)
        await looks(clock)
        (tmp_path / "new").write_text("3")
        (tmp_path / "new").rename(tmp_path / "two" / "settings")
        await looks(clock)
        assert told.told == [101, 202, 303]


def test_required_file_error_propagates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "settings"
    with pytest.raises(FileRefusedError, match="settings: No such file or directory"):
        FollowedFile(path, int).load()
    monkeypatch.setattr(followed_file, "LARGEST", 3)
    path.write_text("1234")
    with pytest.raises(FileRefusedError, match="settings: expected at most 3 bytes"):
        FollowedFile(path, int).load()
    path.write_text("x")
    with pytest.raises(FileRefusedError) as refused:
        FollowedFile(path, int).load()
    assert isinstance(refused.value.__cause__, ValueError), "what the reader raised"
