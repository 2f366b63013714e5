"""The settings' file is taken in when its content changes, and a bad one changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from scheduler_plugin.settings.document import SchedulerSettings, SettingsError, parse_settings
from scheduler_plugin.settings.file import SettingsFile
from tests.fake_clock import FakeClock

GOOD = "nodeDefaults: {computeUnit: {vCPUs: 1, mem: 1Gi}}"
BETTER = "nodeDefaults: {computeUnit: {vCPUs: 2, mem: 1Gi}}"
BAD = "nodeDefaults: {computeUnit: {vCPUs: 0, mem: 1Gi}}"


class Heard:
    """What was reported, in order."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.news = asyncio.Event()

    def settings_accepted(self, generation: int) -> None:
        self.events.append(generation)
        self.news.set()

    def settings_refused(self, problems: list[str]) -> None:
        self.events.append(problems)
        self.news.set()

    async def next(self, clock: FakeClock) -> None:
        """Passes one interval and waits for what comes of it."""
        self.news.clear()
        await clock.advance(2)
        await self.news.wait()


async def test_changes_are_taken_in_and_refusals_change_nothing(tmp_path: Path) -> None:
    path, heard, clock = tmp_path / "config.yaml", Heard(), FakeClock()
    path.write_text(GOOD)
    file = SettingsFile(path, heard)
    used: list[SchedulerSettings] = [file.load()]
    watching = asyncio.create_task(file.run(clock, used.append))
    path.write_text(BAD)
    await heard.next(clock)
    path.write_text(BETTER)
    await heard.next(clock)
    path.unlink()
    await heard.next(clock)
    watching.cancel()
    assert used == [parse_settings(GOOD), parse_settings(BETTER)]
    assert heard.events == [
        ["nodeDefaults.computeUnit.vCPUs: expected more than zero"],
        2,
        [f"{path}: No such file or directory"],
    ]


async def test_a_config_map_that_is_swapped_by_links_is_noticed(tmp_path: Path) -> None:
    heard, clock = Heard(), FakeClock()
    for version, text in (("1", GOOD), ("2", BETTER)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "config.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    file = SettingsFile(tmp_path / "config.yaml", heard)
    used = [file.load()]
    watching = asyncio.create_task(file.run(clock, used.append))
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").rename(tmp_path / "..data")
    await heard.next(clock)
    watching.cancel()
    assert used == [parse_settings(GOOD), parse_settings(BETTER)]


def test_a_start_without_usable_settings_says_why(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "none.yaml", Heard())
    with pytest.raises(SettingsError, match="No such file"):
        file.load()
    with pytest.raises(SettingsError, match="nothing new"):
        file.load()
