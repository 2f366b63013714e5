"""The settings' file: read at the start, looked at every few seconds, taken in when its content has changed.

Rules that hold here:

- The content decides, found through symbolic links: Kubernetes swaps a link when a ConfigMap changes.
- A new content that is refused changes nothing: the old settings stay, and the refusal is told once.
- ``generation`` counts the settings that were accepted, from 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Never, Protocol

from protocol.runtime.clock import Clock
from protocol.units import Seconds
from scheduler_plugin.settings.document import SchedulerSettings, SettingsError, parse_settings

INTERVAL: Final = Seconds(2.0)
"""How often the file is looked at."""


class SettingsReport(Protocol):
    """Who is told how reloading goes."""

    def settings_accepted(self, generation: int) -> None:
        """New settings are in force."""

    def settings_refused(self, problems: list[str]) -> None:
        """A new content was refused; the old settings stay."""


@dataclass(slots=True, eq=False)
class SettingsFile:
    """One file of settings and what was last taken from it."""

    path: Path
    report: SettingsReport
    generation: int = 0
    _content: bytes | str | None = None

    def load(self) -> SchedulerSettings:
        """The settings at the start of the process. Raises ``SettingsError`` where they cannot be used."""
        settings = self._read_new()
        if settings is None:
            raise SettingsError([f"{self.path}: nothing new to read"])
        return settings

    async def run(self, clock: Clock, on_new: Callable[[SchedulerSettings], None]) -> Never:
        """Looks at the file for ever and hands over each new, valid settings."""
        while True:
            await clock.sleep(INTERVAL)
            try:
                settings = await asyncio.to_thread(self._read_new)
            except SettingsError as error:
                self.report.settings_refused(error.problems)
                continue
            if settings is not None:
                on_new(settings)
                self.report.settings_accepted(self.generation)

    def _read_new(self) -> SchedulerSettings | None:
        """The settings, None where the content is as it was last time. Raises ``SettingsError``, once per content."""
        content = self._content_now()
        if content == self._content:
            return None
        self._content = content
        if isinstance(content, str):
            raise SettingsError([f"{self.path}: {content}"])
        settings = parse_settings(content.decode(errors="replace"))
        self.generation += 1
        return settings

    def _content_now(self) -> bytes | str:
        """The file's bytes, or why they cannot be read."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            return error.strerror or type(error).__name__
