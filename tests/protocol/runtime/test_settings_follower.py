"""A change of the settings' file is in force at once; a refusal is told with its reason and changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from protocol.runtime.followed_file import FollowedFile, SettingsFollower
from scheduler_plugin.settings.document import SchedulerSettings, parse_settings
from tests.fake_clock import FakeClock

GOOD = "nodeDefaults: {computeUnit: {vCPUs: 1, mem: 1Gi}}"
BETTER = "nodeDefaults: {computeUnit: {vCPUs: 2, mem: 1Gi}}"
BAD = "nodeDefaults: {computeUnit: {vCPUs: 0, mem: 1Gi}}"


class Report:
    """What was reported, in order."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.news = asyncio.Event()

    def settings_accepted(self, generation: int) -> None:
        self.told.append(generation)
        self.news.set()

    def settings_refused(self, reason: str) -> None:
        self.told.append(reason)
        self.news.set()

    async def next(self, clock: FakeClock) -> None:
        """Passes one interval and waits for what comes of it."""
        self.news.clear()
        await clock.advance(2)
        await self.news.wait()


async def test_settings_changes_apply_at_once(tmp_path: Path) -> None:
    path, report, clock = tmp_path / "config.yaml", Report(), FakeClock()
    path.write_text(GOOD)
    file = FollowedFile(path, parse_settings)
    used: list[SchedulerSettings] = [file.load()]
    following = asyncio.create_task(file.follow(SettingsFollower(used.append, report), clock))
    path.write_text(BAD)
    await report.next(clock)
    path.write_text(BETTER)
    await report.next(clock)
    path.unlink()
    await report.next(clock)
    following.cancel()
    assert used == [parse_settings(GOOD), parse_settings(BETTER)]
    assert report.told == [
        f"{path}: nodeDefaults.computeUnit.vCPUs: expected more than zero",
        2,
        f"{path}: No such file or directory",
    ]
