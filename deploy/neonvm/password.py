"""The password of a guest's database: the owner's Secret is its source, and the guest gets every new value of it.

Without a Secret the database has no password, and nobody logs in over a network.
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

LONGEST: Final = 999
"""Bytes that the guest's daemon takes."""

_PAUSE: Final = Seconds(5.0)

ReadPassword = Callable[[], Awaitable[str]]
"""Returns the present password, empty if the owner has set none."""


@runtime_checkable
class PasswordGuest(Protocol):
    """A guest whose database has accounts."""

    async def set_password(self, password: str) -> None:
        """Sets the accounts' password, now or once the guest has booted. Raises ``GuestError``."""


async def keep_password(guest: PasswordGuest, read: ReadPassword, clock: Clock) -> None:
    """Gives ``guest`` the password, and each later one, until cancelled."""
    previous = ""
    while True:
        # An empty password means that the owner has set none: the guest keeps the one it has.
        if (password := await read()) and password != previous:
            try:
                await guest.set_password(password)
                previous = password
            except GuestError:
                pass  # the guest is migrating or busy; the next try comes soon
        await clock.sleep(_PAUSE)


async def from_file(path: Path) -> str:
    """The password in a mounted Secret; empty if there is none, or none that a database can have."""
    try:
        password = await asyncio.to_thread(path.read_text)
    except (OSError, UnicodeDecodeError):
        return ""
    return usable(password)


def password_in(secret: Json) -> str:
    """The password in a Secret, as its owner has written it. Raises ``ValueError`` if that is no text.

    >>> password_in({"data": {"password": "c2VjcmV0"}}), password_in({})
    ('secret', '')
    """
    # ``data`` of a Secret is base64; without the key the password decodes to an empty one.
    return b64decode(text(secret, "data", PASSWORD_KEY)).decode()


def usable(password: str) -> str:
    r"""``password`` without a final line break; empty if the guest cannot take it.

    >>> usable("secret\n"), usable("two\nlines"), usable("x" * 1000)
    ('secret', '', '')
    """
    # Editors and `echo` end a file with a line break that nobody means as part of the password.
    password = password.removesuffix("\n")
    return password if password.isprintable() and len(password.encode()) <= LONGEST else ""
