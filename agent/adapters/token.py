"""The agent's identity: a projected service-account token, which the kubelet rotates. It is never logged."""

from __future__ import annotations

from pathlib import Path

from agent import texts
from agent.core.events import Fault
from agent.ports import PortError


def read_token(file: Path) -> str:
    """The token in ``file``, now: the kubelet replaces it.

    Raises ``PortError`` if the file cannot be read or is empty.
    """
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PortError(Fault.AGENT, texts.CREDENTIAL_UNREADABLE.format(file=file, error=error)) from None
    if not token:
        raise PortError(Fault.AGENT, texts.CREDENTIAL_EMPTY.format(file=file))
    return token


def no_token() -> None:
    """No token, for a scheduler or API without authentication."""
