"""The agent's identity: a projected service-account token in a file that the kubelet replaces now and then.

A token is never logged.
"""

from __future__ import annotations

from pathlib import Path

from agent import texts
from agent.core.events import Fault
from agent.ports import PortError


class AgentToken:
    """The token in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._token = ""

    def __call__(self) -> str:
        """The token as the file has it now. Raises ``PortError`` if it cannot be read or is empty."""
        try:
            stat = self._path.stat()
            # The kubelet swaps a symbolic link, so a new token is a new inode; the size and time catch a file written
            # in place.
            stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if stamp != self._stamp:
                self._token = self._path.read_text().strip()
                self._stamp = stamp
        except (OSError, UnicodeDecodeError) as error:
            raise PortError(Fault.AGENT, texts.CREDENTIAL_UNREADABLE.format(file=self._path, error=error)) from None
        if not self._token:
            raise PortError(Fault.AGENT, texts.CREDENTIAL_EMPTY.format(file=self._path))
        return self._token


def no_token() -> None:
    """No identity, for a scheduler or API that asks for none."""
