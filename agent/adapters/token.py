"""The agent's identity: a projected service-account token, which the kubelet rotates. It is never logged."""

from __future__ import annotations

from pathlib import Path

from agent import texts
from agent.core.events import Fault
from agent.ports import PortError


class AgentToken:
    """The token in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._token = ""

    def __call__(self) -> str:
        """The current token. Raises ``PortError`` if the file cannot be read or is empty."""
        try:
            stat = self._path.stat()
            # The kubelet swaps a symlink, so a new token has a new inode; size and time catch a file written in place.
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
    """No token, for a scheduler or API without authentication."""
