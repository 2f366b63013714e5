"""One file of settings: read at the start, checked every few seconds, applied when its content has changed.

Refused content changes nothing: the last good one stays in force, and the refusal is reported once.
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
"""How often the file is checked."""

LARGEST: Final = 4 * 1024 * 1024
"""Bytes. A ConfigMap holds 1 MiB."""

T = TypeVar("T")


class FileRefusedError(ValueError):
    """The file cannot be read, or its content cannot be used; the message begins with its path."""


class SettingsReport(Protocol):
    """Receiver of the outcomes of reading a file."""

    def settings_accepted(self, generation: int) -> None:
        """New settings are in force; ``generation`` counts the accepted ones, from 1."""

    def settings_refused(self, reason: str) -> None:
        """New settings were refused; the old ones stay in force."""


@dataclass(slots=True, eq=False)
class FollowedFile(Generic[T]):
    """The file at ``path``; ``read`` makes a value of its text, or raises ``ValueError``."""

    path: Path
    read: Callable[[str], T]
    generation: int = 0
    _content: bytes | str | None = None

    def load(self) -> T:
        """The file's content at the start. Raises ``FileRefusedError``."""
        self._content = self._content_now()
        return self._parsed(self._content)

    def begin(self, use: Callable[[T], None], report: SettingsReport) -> None:
        """Put in force what the file says at the start, for a program that can go on without it."""
        try:
            self._accept(self.load(), use, report)
        except FileRefusedError as error:
            report.settings_refused(str(error))

    async def follow(
        self, use: Callable[[T], None], report: SettingsReport, clock: Clock, interval: Seconds = INTERVAL
    ) -> Never:
        """Look at the file every ``interval`` until cancelled; ``use`` puts new settings in force at once."""
        while True:
            await clock.sleep(interval)
            try:
                # In a thread, since a file on a network or a large parse would block the event loop.
                new = await asyncio.to_thread(self._news)
            except FileRefusedError as error:
                report.settings_refused(str(error))
            else:
                for value in new:
                    self._accept(value, use, report)

    def _accept(self, value: T, use: Callable[[T], None], report: SettingsReport) -> None:
        use(value)
        report.settings_accepted(self.generation)

    def _news(self) -> list[T]:
        """The file's content if it is new, else nothing. Raises ``FileRefusedError``, once per content."""
        content = self._content_now()
        # The content decides, not the file's times: Kubernetes swaps a symbolic link when a ConfigMap changes, and
        # editors rename.
        if content == self._content:
            return []
        # Stored before it is parsed, so that bad content is refused only once.
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

    def _content_now(self) -> bytes | str:
        """The file's bytes, or why they cannot be read."""
        try:
            with self.path.open("rb") as file:
                # One more byte than allowed, to tell a file that is too long from one that just fits.
                content = file.read(LARGEST + 1)
        except OSError as error:
            return error.strerror or type(error).__name__
        return content if len(content) <= LARGEST else f"expected at most {LARGEST} bytes"


class SettingsError(ValueError):
    """Settings that cannot be used; each of ``problems`` begins with the path, or variable, of a bad field."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)
