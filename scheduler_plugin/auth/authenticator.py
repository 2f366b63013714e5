"""Authenticates bearer tokens with few TokenReviews (B.4)."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Never

import msgspec

from protocol.kubernetes.access_reviews import CallerIdentity, identity_in
from protocol.kubernetes.api import ApiError, ApiUnknownError
from protocol.kubernetes.objects import JsonObject
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scheduler_plugin.auth.token_shape import bearer_token, plausible_until
from scheduler_plugin.texts import refusals

ACCEPTED_FOR: Final = Seconds(60.0)
REFUSED_FOR: Final = Seconds(5.0)
"""Long enough that a flood of one bad token causes few reviews."""

CONCURRENCY: Final = 8
QUEUE: Final = 256
QUEUE_OF_ONE: Final = 64
"""Maximum number of tokens from one address under review or waiting for it. Anyone may send tokens, and agents get 503
while the queue is full.
"""

MAX_WAIT: Final = Seconds(2.0)
"""A request that waits this long gets 503: agents give up after 5 s."""

CACHE_SIZE: Final = 20_000
"""Maximum number of cached verdicts of each kind; the oldest go first."""

Reviewer = Callable[[str, str], Awaitable[JsonObject]]
"""(token, audience) -> the API server's TokenReview. Raises ``cluster.api.ApiError``."""


class OverloadedError(Exception):
    """More tokens wait for a review than can be reviewed in time."""


class _PendingReview(msgspec.Struct, eq=False):
    """A token under review, first sent from ``address`` and valid until ``until`` (Unix seconds), and the requests that
    wait for it.
    """

    key: bytes
    token: str
    audience: str
    address: str
    asked_at: Instant
    until: float
    waiting: list[asyncio.Future[CallerIdentity | None]] = []

    def answer(self, identity: CallerIdentity | None) -> None:
        for waiter in self.waiting:
            if not waiter.done():  # a waiter may be cancelled
                waiter.set_result(identity)

    def fail(self, error: Exception) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # retrieved, so no warning if the waiter is cancelled now


class _Verdicts:
    """Cached verdicts on tokens, oldest first."""

    def __init__(self, kept_for: Seconds) -> None:
        self._kept_for = kept_for
        self._cached: OrderedDict[bytes, tuple[CallerIdentity | None, Instant]] = OrderedDict()

    def store(self, key: bytes, identity: CallerIdentity | None, now: Instant, left: Seconds) -> None:
        """Cache a verdict. ``left`` is the remaining life of the token."""
        # A verdict expires with its token, but not before ``REFUSED_FOR``: clocks differ by seconds.
        self._cached[key] = identity, Instant(now + min(self._kept_for, max(left, REFUSED_FOR)))
        # Assignment alone would keep the old position.
        self._cached.move_to_end(key)
        if len(self._cached) > CACHE_SIZE:
            self._cached.popitem(last=False)

    def has(self, key: bytes, now: Instant) -> bool:
        return key in self._cached and now < self._cached[key][1]

    def find(self, key: bytes, now: Instant) -> CallerIdentity | None:
        return self._cached[key][0] if self.has(key, now) else None


class TokenAuthenticator:
    """Authenticates tokens by ``review``. ``run`` sends the reviews, so it must be running."""

    def __init__(self, review: Reviewer, clock: Clock) -> None:
        self._review = review
        self._clock = clock
        # Separate, so that bad tokens cannot evict good ones.
        self._accepted, self._refused = _Verdicts(ACCEPTED_FOR), _Verdicts(REFUSED_FOR)
        self._open: dict[bytes, _PendingReview] = {}
        # Bounded: further requests get 503 immediately.
        self._waiting: asyncio.Queue[_PendingReview] = asyncio.Queue(QUEUE)

    async def run(self) -> None:
        """Send reviews until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(CONCURRENCY):
                    tasks.create_task(self._ask())
        finally:
            # Do not let agents wait: another scheduler may already lead.
            for review in self._open.values():
                review.fail(ApiUnknownError(refusals.ENDS))
            self._open.clear()

    def cached_identity(self, authorization: str, audience: str) -> CallerIdentity | None:
        """The owner of the token in an ``Authorization`` header, if cached."""
        token = bearer_token(authorization)
        if token is None:
            return None
        return self._accepted.find(_key(token, audience), self._clock.now())

    def is_refused(self, authorization: str | None, audience: str) -> bool:
        """Return True if the token in an ``Authorization`` header is certainly invalid; sends no review."""
        token = bearer_token(authorization)
        if token is None:
            return True
        key, now = _key(token, audience), self._clock.now()
        if self._accepted.has(key, now):
            return False
        return self._refused.has(key, now) or plausible_until(token, audience, self._clock.wall()) is None

    async def identify(self, authorization: str | None, audience: str, address: str) -> CallerIdentity | None:
        """The owner of the token in an ``Authorization`` header from ``address``; None if it is invalid.

        Raises ``OverloadedError``, or ``cluster.api.ApiError`` if the API server does not respond.
        """
        token = bearer_token(authorization)
        if token is None:
            return None
        key, now = _key(token, audience), self._clock.now()
        for verdicts in (self._accepted, self._refused):
            if verdicts.has(key, now):
                return verdicts.find(key, now)
        # One review per token for all concurrent requests.
        review = self._open.get(key)
        if review is None:
            until = plausible_until(token, audience, self._clock.wall())
            if until is None:
                return None
            review = self._put(_PendingReview(key, token, audience, address, now, until))
        answer: asyncio.Future[CallerIdentity | None] = asyncio.get_running_loop().create_future()
        review.waiting.append(answer)
        return await answer

    def _put(self, review: _PendingReview) -> _PendingReview:
        if sum(pending.address == review.address for pending in self._open.values()) >= QUEUE_OF_ONE:
            raise OverloadedError
        try:
            self._waiting.put_nowait(review)
        except asyncio.QueueFull:
            raise OverloadedError from None
        self._open[review.key] = review
        return review

    async def _ask(self) -> Never:
        while True:
            review = await self._waiting.get()
            try:
                # Its agent gives up soon; a review would only delay others.
                if self._clock.now() - review.asked_at > MAX_WAIT:
                    raise OverloadedError
                identity = identity_in(await self._review(review.token, review.audience), review.audience)
            except (ApiError, OverloadedError) as error:
                review.fail(error)
            else:
                verdicts = self._refused if identity is None else self._accepted
                left = Seconds(review.until - self._clock.wall())
                verdicts.store(review.key, identity, self._clock.now(), left)
                review.answer(identity)
            # Last: until the verdict is cached, requests with this token join this review.
            del self._open[review.key]


def _key(token: str, audience: str) -> bytes:
    # A hash, so that a memory dump reveals no tokens.
    return hashlib.sha256(f"{audience}\n{token}".encode()).digest()
