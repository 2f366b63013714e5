"""A settings file that is read at startup, checked every few seconds, and applied when its content changes.

Invalid content has no effect: the last valid settings stay in force, and the error is reported once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Never, Protocol, TypeVar

from protocol.runtime.clock import Clock
from protocol.units import Seconds

INTERVAL: Final = Seconds(2.0)
"""Interval of checks."""

LARGEST: Final = 4 * 1024 * 1024
"""Maximum size in bytes. A ConfigMap holds 1 MiB."""

T = TypeVar("T")


class FileRefusedError(ValueError):
    """The file cannot be read, or its content is invalid; the message begins with its path."""


class SettingsReport(Protocol):
    """Receives the outcomes of reading a file."""

    def settings_accepted(self, generation: int) -> None:
        """New settings apply; ``generation`` counts accepted settings from 1."""

    def settings_refused(self, reason: str) -> None:
        """New settings are invalid; the old ones stay in force."""


@dataclass(slots=True, eq=False)
class FollowedFile(Generic[T]):
    """The file at ``path``; ``read`` parses its text to a value, or raises ``ValueError``."""

    path: Path
    read: Callable[[str], T]
    generation: int = 0
    _content: bytes | str | None = None

    def load(self) -> T:
        """Read the file at startup. Raises ``FileRefusedError``."""
        self._content = self._read_content()
        return self._parsed(self._content)

    def begin(self, use: Callable[[T], None], report: SettingsReport) -> None:
        """Apply the file at startup, for a program that can run without it."""
        try:
            self._accept(self.load(), use, report)
        except FileRefusedError as error:
            report.settings_refused(str(error))

    async def follow(
        self, use: Callable[[T], None], report: SettingsReport, clock: Clock, interval: Seconds = INTERVAL
    ) -> Never:
        """Check the file every ``interval`` until cancelled; ``use`` applies new settings immediately."""
        while True:
            await clock.sleep(interval)
            try:
                # In a thread, because a network file system or a large file would block the event loop.
                new = await asyncio.to_thread(self._changed_value)
            except FileRefusedError as error:
                report.settings_refused(str(error))
            else:
                for value in new:
                    self._accept(value, use, report)

    def _accept(self, value: T, use: Callable[[T], None], report: SettingsReport) -> None:
        use(value)
        report.settings_accepted(self.generation)

    def _changed_value(self) -> list[T]:
        """The file's value if its content is new, otherwise empty. Raises ``FileRefusedError``, once per content."""
        content = self._read_content()
        # Compare contents, not modification times: Kubernetes swaps a symbolic link when a ConfigMap changes, and
        # editors rename files.
        if content == self._content:
            return []
        # Store it before parsing, so that invalid content is reported only once.
        self._content = content
        return [self._parsed(content)]

    def _parsed(self, content: bytes | str) -> T:
        if isinstance(content, str):
            raise FileRefusedError(f"{self.path}: {content}")
        try:
            value = self.read(content.decode())
        except UnicodeDecodeError as error:
            raise FileRefusedError(f"{self.path}: expected UTF-8, got byte {content[error.start]:#04x}") from error
        except ValueError as error:
            raise FileRefusedError(f"{self.path}: {error}") from error
        self.generation += 1
        return value

    def _read_content(self) -> bytes | str:
        """The file's bytes, or the reason why they cannot be read."""
        try:
            with self.path.open("rb") as file:
                # One byte more than allowed, to detect a file that is too long.
                content = file.read(LARGEST + 1)
        except OSError as error:
            return error.strerror or type(error).__name__
        return content if len(content) <= LARGEST else f"expected at most {LARGEST} bytes"


class SettingsError(ValueError):
    """Invalid settings; each of ``problems`` begins with the path, or variable, of an invalid field."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)
