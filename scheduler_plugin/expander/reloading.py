"""The settings' file: read at the start, looked at every few seconds, each new content taken in or refused once.

Rules that hold here:

- The content decides, found through symbolic links: Kubernetes swaps a link when a ConfigMap changes.
- A refused content changes nothing: the old settings stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Never

from protocol.runtime.clock import Clock
from protocol.units import Seconds
from scheduler_plugin.expander.settings import ExpanderSettings, SettingsError, parse_settings
from scheduler_plugin.expander.telemetry import Telemetry

INTERVAL: Final = Seconds(2.0)
"""How often the file is looked at."""


@dataclass(slots=True, eq=False)
class SettingsFile:
    """One file, and its content when it was last looked at: bytes, or why there are none."""

    path: Path
    _content: bytes | str | None = None

    def load(self) -> ExpanderSettings:
        """The settings as they are now. Raises ``SettingsError``."""
        self._content = self._read()
        return _parsed(self._content)

    async def follow(self, take: Callable[[ExpanderSettings], None], telemetry: Telemetry, clock: Clock) -> Never:
        """Hands over each new, valid settings for ever."""
        while True:
            await clock.sleep(INTERVAL)
            content = await asyncio.to_thread(self._read)
            if content == self._content:
                continue
            self._content = content
            try:
                settings = _parsed(content)
            except SettingsError as error:
                telemetry.settings_refused(str(error))
            else:
                take(settings)
                telemetry.settings_accepted()

    def _read(self) -> bytes | str:
        try:
            return self.path.read_bytes()
        except OSError as error:
            return f"{self.path}: {error.strerror}"


def _parsed(content: bytes | str) -> ExpanderSettings:
    if isinstance(content, str):
        raise SettingsError(content)
    return parse_settings(content.decode(errors="replace"))
