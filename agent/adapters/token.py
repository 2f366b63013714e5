"""The agent's identity: a projected service-account token, which the kubelet rotates. It is never logged."""

from __future__ import annotations

from pathlib import Path

from agent import texts
from agent.core.events import Fault
from agent.ports import PortError


class AgentToken:
    """The token in a file. It reads the file on each call, because the kubelet replaces it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> str:
        """The current token. Raises ``PortError`` if the file cannot be read or is empty."""
        try:
            token = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PortError(Fault.AGENT, texts.CREDENTIAL_UNREADABLE.format(file=self._path, error=error)) from None
        if not token:
            raise PortError(Fault.AGENT, texts.CREDENTIAL_EMPTY.format(file=self._path))
        return token


def no_token() -> None:
    """No token, for a scheduler or API without authentication."""
