"""Sign-in state: one-time links, and sessions that end. Pure."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, replace
from typing import Final

from protocol.kubernetes.access_reviews import Scope
from protocol.units import Instant, Seconds
from scheduler_plugin.dashboard.core.sight import VisibilityFilter

LASTS: Final = Seconds(12 * 3600.0)
# A check is due after this time; a session whose check fails ends.
CHECKED_FOR: Final = Seconds(30.0)
MOST: Final = 256
MOST_OF_ONE: Final = 16
_NONE: Final = Scope()


@dataclass(frozen=True, slots=True)
class Session:
    """One signed-in browser. ``who`` is the person's name to the API server, ``token`` what the API server is asked
    about again; both are empty on one machine. ``asked_to`` is the scope that was asked about last.
    """

    key: bytes
    sight: VisibilityFilter
    begun: Instant
    checked: Instant
    token: str = field(default="", repr=False)
    who: str = ""
    asked_to: Scope = _NONE

    @property
    def person(self) -> bytes:
        """The session's person."""
        # On one machine nobody has a name. Each browser counts as a person there, so that none ends another's sessions.
        return self.who.encode() or self.key

    def is_due(self, now: Instant) -> bool:
        """Return True if the API server has to be asked again."""
        return bool(self.token) and now - self.checked >= CHECKED_FOR


@dataclass(slots=True)
class Sessions:
    """All sessions and the link that is open."""

    most: int = MOST
    _open: dict[bytes, Session] = field(default_factory=dict)
    _link: bytes = b""

    def offer(self, secret: str) -> None:
        """From now on ``secret`` opens one session, and no earlier secret does."""
        self._link = hashed(secret)

    def take_link(self, secret: str) -> bool:
        """Return True if ``secret`` is that of the open link, which is then void."""
        # In constant time, so that timing does not reveal a prefix of the hash.
        matches = bool(self._link) and hmac.compare_digest(self._link, hashed(secret))
        if matches:
            self._link = b""
        return matches

    def begin(  # noqa: PLR0913 - what a session begins with
        self,
        secret: str,
        sight: VisibilityFilter,
        now: Instant,
        *,
        token: str = "",
        who: str = "",
        asked_to: Scope = _NONE,
    ) -> Session:
        """A new session, known by ``secret``."""
        session = Session(hashed(secret), sight, now, now, token, who, asked_to)
        self._open[session.key] = session
        own = [key for key, other in self._open.items() if other.person == session.person]
        # Somebody who signs in again and again ends sessions of their own, not of others. The oldest go first.
        if len(own) > MOST_OF_ONE:
            del self._open[own[0]]
        elif len(self._open) > self.most:
            del self._open[next(iter(self._open))]
        return session

    def find(self, secret: str, now: Instant) -> Session | None:
        """The session that a cookie names; None if there is none, or it has ended."""
        session = self._open.get(hashed(secret)) if secret else None
        if session is not None and self.still(session, now) is None:
            self.end(session)
            return None
        return session

    def still(self, session: Session, now: Instant) -> Session | None:
        """The session as it is now; None if it has ended."""
        current = self._open.get(session.key)
        # A session ends after LASTS however often it was checked.
        return current if current is not None and now - current.begun < LASTS else None

    def checked(
        self, session: Session, sight: VisibilityFilter, now: Instant, asked_to: Scope = _NONE
    ) -> Session | None:
        """The session with what the API server allows now; None if the session ended meanwhile."""
        # The person signed out while the API server was asked.
        if session.key not in self._open:
            return None
        renewed = self._open[session.key] = replace(session, sight=sight, checked=now, asked_to=asked_to)
        return renewed

    def end(self, session: Session) -> None:
        """The session is over."""
        self._open.pop(session.key, None)


def hashed(secret: str) -> bytes:
    """The stored hash of a secret."""
    # Secrets are random and long, so a plain hash is enough: nothing can be guessed.
    return hashlib.sha256(secret.encode()).digest()
