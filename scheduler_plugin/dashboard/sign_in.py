"""Sign-in: session cookies, one-time links for local pages, tokens on clusters."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from protocol.kubernetes.api import ApiError
from protocol.runtime.clock import Clock
from scheduler_plugin.dashboard.core.sessions import Session, Sessions, Visitor
from scheduler_plugin.dashboard.core.visibility import ALL
from scheduler_plugin.dashboard.fleet import Fleet
from scheduler_plugin.dashboard.reviews import AT_ONCE, PATIENCE, AccessReviewer
from scheduler_plugin.dashboard.telemetry import DashboardTelemetry

COOKIE: Final = "autoscale-session"
LONGEST_TOKEN: Final = 16 * 1024
SECRET: Final = 32
"""Length of a session's secret in bytes."""
# Half of the reviewer's slots, so that sign-ins cannot block renewals of sessions.
SIGNING: Final = AT_ONCE // 2
_DIGITS: Final = 5
"""Maximum number of digits of a port."""


def cookie_at(host: str) -> str:
    """Name of the cookie for a ``Host``. It includes the port, because browsers send cookies to all ports of a host.

    >>> cookie_at("127.0.0.1:10290"), cookie_at("page.example"), cookie_at("[::1]")
    ('autoscale-session-10290', 'autoscale-session', 'autoscale-session')
    """
    _, colon, port = host.rpartition(":")
    is_port = bool(colon) and port.isascii() and port.isdigit() and len(port) <= _DIGITS
    return f"{COOKIE}-{port}" if is_port else COOKIE


@dataclass(slots=True)
class SignIn:
    """Signs users in. For local pages ``reviewer`` is None, and ``on_link`` is called with each new one-time link."""

    fleet: Fleet
    clock: Clock
    telemetry: DashboardTelemetry
    reviewer: AccessReviewer | None
    on_link: Callable[[str], None] = lambda _: None
    sessions: Sessions = field(default_factory=Sessions)
    _signing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SIGNING))
    # Weak, so that a lock is removed once no page of its session waits.
    _renewing: WeakValueDictionary[bytes, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    @property
    def method(self) -> str:
        """Sign-in method: ``link`` or ``token``."""
        return "link" if self.reviewer is None else "token"

    def offer_link(self) -> None:
        """Create the next one-time link."""
        secret = secrets.token_urlsafe(SECRET)
        self.sessions.offer(secret)
        self.on_link(secret)

    async def sign_in(self, token: str) -> str | None:
        """Return the secret of a new session; None if the token is invalid. Raises ``ApiError``, ``TimeoutError``."""
        async with asyncio.timeout(PATIENCE), self._signing:
            visitor = await self._reviewed(token)
        self.telemetry.sign_ins.labels("refused" if visitor is None else "accepted").inc()
        if visitor is None:
            return None
        secret = secrets.token_urlsafe(SECRET)
        # Without a reviewer the token is a used link, which cannot be reviewed again.
        kept_token = "" if self.reviewer is None else token
        self.sessions.begin(secret, visitor, self.clock.now(), kept_token)
        return secret

    async def find(self, cookie: str) -> Session | None:
        """The session of a cookie, after a review if one is due; None if there is no session."""
        session = self.sessions.find(cookie, self.clock.now())
        return None if session is None else await self.renewed(session)

    async def renewed(self, session: Session) -> Session | None:
        """The session, after a review if one is due; None if it has ended."""
        current = self._current(session)
        if current is None or self.reviewer is None or not current.is_due(self.clock.now()):
            return current
        # When a review is due, all pages of a session get here, and one of them does it.
        async with self._renewing.setdefault(current.key, asyncio.Lock()):
            current = self._current(session)  # another page may have done it meanwhile
            if current is None or not current.is_due(self.clock.now()):
                return current
            return await self._reviewed_again(current, self.reviewer)

    def _current(self, session: Session) -> Session | None:
        return self.sessions.current(session, self.clock.now())

    async def _reviewed_again(self, session: Session, reviewer: AccessReviewer) -> Session | None:
        try:
            visitor = await reviewer.visitor(session.token, self.fleet.scopes, session.visitor)
        except (ApiError, TimeoutError):
            # Without a response the session ends.
            visitor = None
        if visitor is None:
            self.sessions.end(session)
            return None
        return self.sessions.checked(session, visitor, self.clock.now())

    async def _reviewed(self, token: str) -> Visitor | None:
        # This cannot be a token, so save the review.
        if not 0 < len(token) <= LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            return None
        if self.reviewer is not None:
            return await self.reviewer.visitor(token, self.fleet.scopes)
        if not self.sessions.take_link(token):
            return None
        self.offer_link()
        # A local user who can read the link may see everything.
        return Visitor("", ALL)
