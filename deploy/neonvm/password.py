"""Sets the password of a guest's database from its Secret, also when that changes.

Without a Secret the database has no password, and does not accept logins over the network.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from deploy.neonvm.ports import GuestError
from protocol.kubernetes.objects import Json, text
from protocol.names import PASSWORD_KEY
from protocol.runtime.clock import Clock
from protocol.units import Seconds

MAX_LENGTH: Final = 999
"""Bytes that the guest's daemon accepts."""

_PAUSE: Final = Seconds(5.0)

ReadPassword = Callable[[], Awaitable[str]]
"""Returns the current password; empty if there is none."""


@runtime_checkable
class PasswordGuest(Protocol):
    """A guest with a database."""

    async def set_password(self, password: str) -> None:
        """Set the password of the database roles, now or once the guest has booted. Raises ``GuestError``."""


async def sync_password(guest: PasswordGuest, read: ReadPassword, clock: Clock) -> None:
    """Set the password of ``guest``, and every later one, until cancelled."""
    previous = ""
    while True:
        # If the Secret is deleted, the guest keeps its password.
        if (password := await read()) and password != previous:
            try:
                await guest.set_password(password)
                previous = password
            except GuestError:
                pass  # the guest is being migrated or busy; retried soon
        await clock.sleep(_PAUSE)


async def read_password_file(path: Path) -> str:
    """The password in the file of a mounted Secret; empty if it is missing or invalid."""
    try:
        password = await asyncio.to_thread(path.read_text)
    except (OSError, UnicodeDecodeError):
        return ""
    return valid_password(password)


def password_in(secret: Json) -> str:
    """The password in a Secret, unchanged. Raises ``ValueError`` if it is not text.

    >>> password_in({"data": {"password": "c2VjcmV0"}}), password_in({})
    ('secret', '')
    """
    # ``data`` of a Secret is base64; a missing key decodes to an empty password.
    return b64decode(text(secret, "data", PASSWORD_KEY)).decode()


def valid_password(password: str) -> str:
    r"""``password`` without a final line break; empty if the guest does not accept it.

    >>> valid_password("secret\n"), valid_password("two\nlines"), valid_password("x" * 1000)
    ('secret', '', '')
    """
    # Editors and `echo` end a file with a line break, which is not meant to be part of the password.
    password = password.removesuffix("\n")
    return password if password.isprintable() and len(password.encode()) <= MAX_LENGTH else ""
