"""Sign-in state: one-time links, and expiring sessions. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from protocol.kubernetes.access_reviews import Scope
from protocol.units import Instant, Seconds
from scheduler_plugin.dashboard.core.visibility import VisibilityFilter

LASTS: Final = Seconds(12 * 3600.0)
# Interval of permission checks; a session whose check fails ends.
CHECKED_FOR: Final = Seconds(30.0)
MOST: Final = 256
MOST_OF_ONE: Final = 16
_NONE: Final = Scope()


@dataclass(frozen=True, slots=True)
class Session:
    """One signed-in browser. ``who`` is the user's name, ``token`` the one to review again; both empty for local pages.
    ``asked_to`` is the scope that was reviewed last.
    """

    key: bytes
    visibility: VisibilityFilter
    begun: Instant
    checked: Instant
    token: str = field(default="", repr=False)
    who: str = ""
    asked_to: Scope = _NONE

    @property
    def person(self) -> bytes:
        """The session's user."""
        # Local users have no names: each browser counts as a user, so that none ends another's sessions.
        return self.who.encode() or self.key

    @property
    def crowd(self) -> bytes:
        """The session's user, or the namespace of a service account: whoever may make one may make many."""
        kind, _, account = self.who.rpartition(":")
        return kind.encode() if account and kind.startswith("system:serviceaccount:") else self.person

    def is_due(self, now: Instant) -> bool:
        """Return True if permissions must be reviewed again."""
        return bool(self.token) and now - self.checked >= CHECKED_FOR


@dataclass(slots=True)
class Sessions:
    """All sessions, and the open link."""

    most: int = MOST
    _open: dict[bytes, Session] = field(default_factory=dict)
    _link: bytes = b""

    def offer(self, secret: str) -> None:
        """Let ``secret``, and no earlier one, open one session."""
        self._link = hashed(secret)

    def take_link(self, secret: str) -> bool:
        """Return True if ``secret`` is that of the open link, which is consumed."""
        # Constant-time comparison.
        matches = bool(self._link) and hmac.compare_digest(self._link, hashed(secret))
        if matches:
            self._link = b""
        return matches

    def begin(  # noqa: PLR0913 - what a session begins with
        self,
        secret: str,
        visibility: VisibilityFilter,
        now: Instant,
        *,
        token: str = "",
        who: str = "",
        asked_to: Scope = _NONE,
    ) -> Session:
        """Start a session identified by ``secret``."""
        session = Session(hashed(secret), visibility, now, now, token, who, asked_to)
        self._open[session.key] = session
        own = [key for key, other in self._open.items() if other.person == session.person]
        # A user's sign-ins end only that user's sessions, oldest first.
        if len(own) > MOST_OF_ONE:
            del self._open[own[0]]
        elif len(self._open) > self.most:
            greediest, _ = Counter(other.crowd for other in self._open.values()).most_common(1)[0]
            del self._open[next(key for key, other in self._open.items() if other.crowd == greediest)]
        return session

    def find(self, secret: str, now: Instant) -> Session | None:
        """The session of a cookie; None if there is none, or it has ended."""
        session = self._open.get(hashed(secret)) if secret else None
        if session is not None and self.still(session, now) is None:
            self.end(session)
            return None
        return session

    def still(self, session: Session, now: Instant) -> Session | None:
        """The present session; None if it has ended."""
        current = self._open.get(session.key)
        # A session ends after LASTS, despite checks.
        return current if current is not None and now - current.begun < LASTS else None

    def checked(
        self, session: Session, visibility: VisibilityFilter, now: Instant, asked_to: Scope = _NONE
    ) -> Session | None:
        """The session with its reviewed permissions; None if it ended meanwhile."""
        # The user signed out during the review.
        if session.key not in self._open:
            return None
        renewed = self._open[session.key] = replace(session, visibility=visibility, checked=now, asked_to=asked_to)
        return renewed

    def end(self, session: Session) -> None:
        """End the session."""
        self._open.pop(session.key, None)


def hashed(secret: str) -> bytes:
    """Hash of a secret."""
    # A plain hash is enough for long random secrets.
    return hashlib.sha256(secret.encode()).digest()
