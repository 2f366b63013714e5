"""Access control for explanations: only owners may see names, sizes, loads and nodes of their databases.

- A caller needs a bearer token for our audience, and permission to list VMs of the namespace, or to get its pods for a
  database in a pod.
- Over loopback no token is needed: the caller is in the pod, or uses ``kubectl port-forward``, for which the API server
  has checked permissions. But a site that someone visits meanwhile may let its own domain resolve to loopback, so a
  browser's request to a domain needs one.
- With a token in a file, only that token gives access: for a cluster on one machine, which may have other users.
- If the API server does not respond, access is denied.
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

from protocol.kubernetes.access_reviews import Scope, access_review, claims_audience, is_allowed, token_review, user_in
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from protocol.runtime.clock import Clock
from protocol.runtime.url_hosts import names_domain
from protocol.units import Instant, Seconds

AUDIENCE: Final = "autoscale-explain"
"""The audience of tokens for explanations of the scheduler and of ``autoscale-groups``."""

ALLOWED_FOR: Final = Seconds(60.0)
# Shorter than ``ALLOWED_FOR``, so that a new RoleBinding takes effect soon.
DENIED_FOR: Final = Seconds(5.0)
REMEMBERED: Final = 1024
AT_ONCE: Final = 4
MAX_WAITING: Final = 128
MAX_OF_PEER: Final = 32
"""Maximum reviews in progress, and of one address, because anyone may send tokens. A recorder asks a node's agent about
VMs of many namespaces at once.
"""
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
"""Not all of 127.0.0.0/8: a service mesh's proxy may forward other clients from an address in it."""


def audience_of_agents(namespace: str) -> str:
    """The audience of tokens for agents whose pods are in ``namespace``.

    Anyone who may run pods there can impersonate an agent, but a token sent to it gives no access to other namespaces.
    """
    return f"{AUDIENCE}/{namespace}"


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller: its ``Authorization`` header, the remote and local address of its connection, and its ``Host``."""

    authorization: str = ""
    peer: str = ""
    local: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class AccessDenial:
    """The reason to refuse a caller."""

    status: HTTPStatus
    error: str


class ReviewError(Exception):
    """The review failed; the message says why."""


Review = Callable[[str, JsonObject], Awaitable[JsonObject]]
"""(path, body) -> the API server's response. Raises ``ReviewError``."""


class ExplainAccess(Protocol):
    """Decides who may read explanations."""

    async def denial(self, caller: Caller, scope: Scope) -> AccessDenial | None:
        """The reason why ``caller`` may not read about the databases of ``scope``; None if it may."""


@dataclass(frozen=True, slots=True)
class TokenInFile:
    """The token in a file gives access to everything; if it cannot be read, nothing is accessible."""

    path: Path

    async def denial(self, caller: Caller, scope: Scope) -> AccessDenial | None:  # noqa: ARG002 - the port's
        """See ``ExplainAccess``."""
        expected, presented = token_in(self.path), _bearer(caller)
        # An empty file gives no access. Compare in constant time, so that the token cannot be guessed byte by byte, and
        # as bytes, because ``compare_digest`` accepts only ASCII strings.
        return None if expected and hmac.compare_digest(presented.encode(), expected.encode()) else _NO_TOKEN


def token_in(path: Path) -> str:
    """The token in a small local file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


@dataclass(slots=True)
class ReviewedAccess:
    """Authorizes callers by TokenReview and SubjectAccessReview, and caches the results."""

    review: Review
    clock: Clock
    audience: str
    _cached: OrderedDict[bytes, tuple[AccessDenial | None, Instant]] = field(default_factory=OrderedDict)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _pending: dict[bytes, tuple[str, asyncio.Future[AccessDenial | None]]] = field(default_factory=dict)

    async def denial(self, caller: Caller, scope: Scope) -> AccessDenial | None:
        """See ``ExplainAccess``."""
        # Users with client certificates have no token, and get access this way.
        if {caller.peer, caller.local} <= LOOPBACK and not names_domain(caller.host):
            return None
        token = _bearer(caller)
        # Do not review a token that does not even claim our audience.
        if not claims_audience(token, self.audience):
            return _NO_TOKEN
        # Hash the key, so that the cache contains no tokens.
        key = hashlib.sha256(f"{scope}\n{token}".encode()).digest()
        cached = self._cached.get(key)
        if cached is not None and self.clock.now() < cached[1]:
            return cached[0]
        # A caller that queries many VMs at once causes one review. Shield it, because others may wait for it as well.
        if (pending := self._pending.get(key)) is not None:
            return await asyncio.shield(pending[1])
        # Limit the reviews that unauthenticated callers can cause.
        of_peer = sum(peer == caller.peer for peer, _ in self._pending.values())
        if len(self._pending) >= MAX_WAITING or of_peer >= MAX_OF_PEER:
            return AccessDenial(HTTPStatus.SERVICE_UNAVAILABLE, "too many token reviews are pending; retry")
        # The result for other waiting callers if this one is cancelled.
        denial: AccessDenial | None = _CANCELLED
        self._pending[key] = caller.peer, asyncio.get_running_loop().create_future()
        try:
            denial = await self._review(key, token, scope)
        finally:
            self._pending.pop(key)[1].set_result(denial)
        return denial

    async def _review(self, key: bytes, token: str, scope: Scope) -> AccessDenial | None:
        try:
            async with self._slots:
                denial = await self._judged(token, scope)
        except ReviewError as error:
            # Do not cache a failure.
            return AccessDenial(HTTPStatus.SERVICE_UNAVAILABLE, f"cannot review the token right now: {error}")
        lifetime = ALLOWED_FOR if denial is None else DENIED_FOR
        self._cached[key] = denial, Instant(self.clock.now() + lifetime)
        self._cached.move_to_end(key)
        # Evict the oldest review.
        if len(self._cached) > REMEMBERED:
            self._cached.popitem(last=False)
        return denial

    async def _judged(self, token: str, scope: Scope) -> AccessDenial | None:
        user = user_in(await self.review(TOKEN_REVIEWS.path(), token_review(token, self.audience)), self.audience)
        if user is None:
            return _NO_TOKEN
        if is_allowed(await self.review(SUBJECT_ACCESS_REVIEWS.path(), access_review(user, scope))):
            return None
        where = f"in namespace {scope.namespace}" if scope.namespace else "in all namespaces"
        lacks = "get pods" if scope.of_pods else "list virtualmachines.vm.neon.tech"
        return AccessDenial(HTTPStatus.FORBIDDEN, f"{user['username']} cannot {lacks} {where}")


def _bearer(caller: Caller) -> str:
    scheme, _, token = caller.authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


_NO_TOKEN: Final = AccessDenial(
    HTTPStatus.UNAUTHORIZED,
    "a bearer token with the audience of explanations is needed, or a connection by kubectl port-forward",
)
_CANCELLED: Final = AccessDenial(HTTPStatus.SERVICE_UNAVAILABLE, "the review of the token was cancelled; retry")
