"""Access to what a program explains: names, sizes, loads and nodes of databases are for their owners only.

- A caller needs a bearer token for our audience, and must be allowed to list VMs of the namespace, or to get its pods
  for a database in a pod.
- Over loopback no token is needed: the caller is in the pod, or came by ``kubectl port-forward``, for which the API
  server has checked his rights.
- With a token in a file, that token alone gives access: for a cluster on one machine, which may have other users.
- If the API server does not answer, nobody gets access.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol

from protocol.kubernetes.access_reviews import Scope, is_allowed, may_read, names_audience, token_review, user_in
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

AUDIENCE: Final = "autoscale-explain"
"""The audience of tokens for the explanations of the scheduler and the groups' program."""

ALLOWED_FOR: Final = Seconds(60.0)
# Shorter than ``ALLOWED_FOR``, so that a new RoleBinding takes effect soon.
DENIED_FOR: Final = Seconds(5.0)
REMEMBERED: Final = 1024
AT_ONCE: Final = 4
MOST_WAITING: Final = 32
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
"""Not all of 127.0.0.0/8: a service mesh's proxy may forward strangers from another address of it."""


def audience_of_agents(namespace: str) -> str:
    """The audience of tokens for agents whose pods are in ``namespace``.

    Whoever may run pods there can pose as an agent; a token that is sent to him gives no access to another namespace.
    """
    return f"{AUDIENCE}/{namespace}"


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller: the header ``Authorization``, the address that the connection comes from, and the one it came to."""

    authorization: str = ""
    peer: str = ""
    local: str = ""


@dataclass(frozen=True, slots=True)
class AccessDenial:
    """The reason to refuse a caller."""

    status: HTTPStatus
    error: str


class ReviewError(Exception):
    """The API server gave no answer; the message says why."""


Review = Callable[[str, JsonObject], Awaitable[JsonObject]]
"""(path, body) -> what the API server says to it. Raises ``ReviewError``."""


class ExplainAccess(Protocol):
    """Decides who may read."""

    async def denial(self, caller: Caller, scope: Scope) -> AccessDenial | None:
        """None if ``caller`` may read about the databases of ``scope``."""


@dataclass(frozen=True, slots=True)
class TokenInFile:
    """The token in a file opens everything. One that cannot be read opens nothing."""

    path: Path

    async def denial(self, caller: Caller, scope: Scope) -> AccessDenial | None:  # noqa: ARG002 - the port's
        """See ``ExplainAccess``."""
        expected, presented = token_in(self.path), _bearer(caller)
        # An empty file gives no access. Compared in constant time, so that the token cannot be guessed byte by byte,
        # and as bytes, since ``compare_digest`` takes only ASCII strings.
        return None if expected and hmac.compare_digest(presented.encode(), expected.encode()) else _NO_TOKEN


def token_in(path: Path) -> str:
    """The token in a file, which is small and on this machine; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


@dataclass(slots=True)
class ReviewedAccess:
    """Asks the API server by ``review``."""

    review: Review
    clock: Clock
    audience: str
    _known: OrderedDict[bytes, tuple[AccessDenial | None, Instant]] = field(default_factory=OrderedDict)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _pending: dict[bytes, asyncio.Future[AccessDenial | None]] = field(default_factory=dict)

    async def denial(self, caller: Caller, scope: Scope) -> AccessDenial | None:
        """See ``ExplainAccess``."""
        # People with client certificates come this way, since they have no token.
        if {caller.peer, caller.local} <= LOOPBACK:
            return None
        token = _bearer(caller)
        # Saves the API server a review of a token that does not even claim our audience.
        if not names_audience(token, self.audience):
            return _NO_TOKEN
        # Hashed, so that the cache holds no tokens.
        key = hashlib.sha256(f"{scope}\n{token}".encode()).digest()
        cached = self._known.get(key)
        if cached is not None and self.clock.now() < cached[1]:
            return cached[0]
        # A caller that queries many VMs at once costs one review. Shielded, because others may wait for it, too.
        if (pending := self._pending.get(key)) is not None:
            return await asyncio.shield(pending)
        # Bounds what strangers can make this process ask the API server.
        if len(self._pending) >= MOST_WAITING:
            return AccessDenial(HTTPStatus.SERVICE_UNAVAILABLE, "too many token reviews are pending; retry")
        # What those who wait get if this caller is cancelled.
        denial: AccessDenial | None = _CANCELLED
        self._pending[key] = asyncio.get_running_loop().create_future()
        try:
            denial = await self._asked(key, token, scope)
        finally:
            self._pending.pop(key).set_result(denial)
        return denial

    async def _asked(self, key: bytes, token: str, scope: Scope) -> AccessDenial | None:
        try:
            async with self._turns:
                denial = await self._judged(token, scope)
        except ReviewError as error:
            # Not cached: the API server may answer next time.
            return AccessDenial(HTTPStatus.SERVICE_UNAVAILABLE, f"cannot review the token right now: {error}")
        lifetime = ALLOWED_FOR if denial is None else DENIED_FOR
        self._known[key] = denial, Instant(self.clock.now() + lifetime)
        self._known.move_to_end(key)
        # Evicts the oldest review.
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return denial

    async def _judged(self, token: str, scope: Scope) -> AccessDenial | None:
        user = user_in(await self.review(TOKEN_REVIEWS.path(), token_review(token, self.audience)), self.audience)
        if user is None:
            return _NO_TOKEN
        if is_allowed(await self.review(SUBJECT_ACCESS_REVIEWS.path(), may_read(user, scope))):
            return None
        where = f"in namespace {scope.namespace}" if scope.namespace else "in all namespaces"
        lacks = "get pods" if scope.of_pods else "list virtualmachines.vm.neon.tech"
        return AccessDenial(HTTPStatus.FORBIDDEN, f"{user['username']} may not {lacks} {where}")


def _bearer(caller: Caller) -> str:
    scheme, _, token = caller.authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


_NO_TOKEN: Final = AccessDenial(
    HTTPStatus.UNAUTHORIZED,
    "a bearer token with the audience of explanations is needed, or a connection by kubectl port-forward",
)
_CANCELLED: Final = AccessDenial(HTTPStatus.SERVICE_UNAVAILABLE, "the review of the token was cancelled; retry")
