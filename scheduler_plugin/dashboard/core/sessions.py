"""Sign-in state: one-time links, and expiring sessions. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from protocol.kubernetes.access_reviews import Scope
from protocol.units import Instant, Seconds
from scheduler_plugin.dashboard.core.visibility import VisibilityFilter

LASTS: Final = Seconds(12 * 3600.0)
# Interval of permission reviews; a session ends if its review fails.
CHECKED_FOR: Final = Seconds(30.0)
MOST: Final = 256
MOST_OF_ONE: Final = 16


class Visitor(NamedTuple):
    """The user of a token, what the user may see, and the scope that was reviewed last.

    ``username`` is empty for local pages.
    """

    username: str
    visibility: VisibilityFilter
    reviewed_last: Scope = Scope()


@dataclass(frozen=True, slots=True)
class Session:
    """One signed-in browser; ``token`` is the token to review again, empty for local pages."""

    key: bytes
    visitor: Visitor
    begun: Instant
    checked: Instant
    token: str = field(default="", repr=False)

    @property
    def user_key(self) -> bytes:
        """The session's user. Local users have no names, so each browser counts as one."""
        return self.visitor.username.encode() or self.key

    @property
    def quota_key(self) -> bytes:
        """The session's user, or the namespace of a service account: who may create one may create many."""
        kind, _, account = self.visitor.username.rpartition(":")
        return kind.encode() if account and kind.startswith("system:serviceaccount:") else self.user_key

    def is_due(self, now: Instant) -> bool:
        """Return True if permissions must be reviewed again."""
        return bool(self.token) and now - self.checked >= CHECKED_FOR


@dataclass(slots=True)
class Sessions:
    """All sessions, and the one-time link that can be used next."""

    _open: dict[bytes, Session] = field(default_factory=dict)
    _link: bytes = b""

    def offer(self, secret: str) -> None:
        """Allow ``secret``, and no earlier one, to start one session."""
        self._link = hashed(secret)

    def take_link(self, secret: str) -> bool:
        """Use the link up if ``secret`` is its secret; return True if so."""
        # Compared in constant time.
        matches = bool(self._link) and hmac.compare_digest(self._link, hashed(secret))
        if matches:
            self._link = b""
        return matches

    def begin(self, secret: str, visitor: Visitor, now: Instant, token: str = "") -> Session:
        """Start a session identified by ``secret``."""
        session = Session(hashed(secret), visitor, now, now, token)
        self._open[session.key] = session
        own = [key for key, other in self._open.items() if other.user_key == session.user_key]
        # A user with many sign-ins ends only that user's own sessions, oldest first.
        if len(own) > MOST_OF_ONE:
            del self._open[own[0]]
        elif len(self._open) > MOST:
            largest, _ = Counter(other.quota_key for other in self._open.values()).most_common(1)[0]
            del self._open[next(key for key, other in self._open.items() if other.quota_key == largest)]
        return session

    def find(self, secret: str, now: Instant) -> Session | None:
        """The session of a cookie; None if there is none or it has ended."""
        session = self._open.get(hashed(secret)) if secret else None
        if session is not None and self.current(session, now) is None:
            self.end(session)
            return None
        return session

    def current(self, session: Session, now: Instant) -> Session | None:
        """The present session; None if it has ended."""
        current = self._open.get(session.key)
        # A session ends after `LASTS`, even if its reviews succeed.
        return current if current is not None and now - current.begun < LASTS else None

    def checked(self, session: Session, visitor: Visitor, now: Instant) -> Session | None:
        """Store the reviewed permissions of a session; None if it ended meanwhile."""
        # The user may have signed out during the review.
        if session.key not in self._open:
            return None
        renewed = self._open[session.key] = replace(session, visitor=visitor, checked=now)
        return renewed

    def end(self, session: Session) -> None:
        """End the session."""
        self._open.pop(session.key, None)


def hashed(secret: str) -> bytes:
    """Hash of a secret. A plain hash is enough for long random secrets."""
    return hashlib.sha256(secret.encode()).digest()
