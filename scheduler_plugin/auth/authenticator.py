"""Finds out who holds a bearer token, with as few questions to the API server as possible (TokenReview; B.4)."""

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
"""Just long enough that a flood of one bad token does not become a flood of reviews."""

CONCURRENCY: Final = 8
QUEUE: Final = 64
LONGEST_WAIT: Final = Seconds(2.0)
"""Seconds after which a waiting request gets 503: agents give up after 5 seconds."""

REMEMBERED: Final = 20_000
"""At most this many verdicts of each kind are kept; the oldest go first."""

Reviewer = Callable[[str, str], Awaitable[JsonObject]]
"""(token, audience) -> the API server's TokenReview. Raises ``cluster.api.ApiError``."""


class OverloadedError(Exception):
    """More tokens are waiting for a review than will be reviewed in time."""


class _Question(msgspec.Struct, eq=False):
    """A token under review, which ends at ``until`` (seconds since 1970), and the requests that wait for it."""

    key: bytes
    token: str
    audience: str
    asked_at: Instant
    until: float
    waiting: list[asyncio.Future[CallerIdentity | None]] = []

    def answer(self, identity: CallerIdentity | None) -> None:
        for waiter in self.waiting:
            if not waiter.done():  # a waiter may have been cancelled
                waiter.set_result(identity)

    def fail(self, error: Exception) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # retrieved: no warning if the waiter is cancelled now


class _Verdicts:
    """Cached verdicts on tokens, the oldest first."""

    def __init__(self, kept_for: Seconds) -> None:
        self._kept_for = kept_for
        self._known: OrderedDict[bytes, tuple[CallerIdentity | None, Instant]] = OrderedDict()

    def keep(self, key: bytes, identity: CallerIdentity | None, now: Instant, left: Seconds) -> None:
        """``left`` is the time until the token ends."""
        # A verdict ends with its token, but lives at least as long as a refusal: clocks differ by seconds.
        self._known[key] = identity, Instant(now + min(self._kept_for, max(left, REFUSED_FOR)))
        # Assigning to an existing key leaves it at its old place.
        self._known.move_to_end(key)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def has(self, key: bytes, now: Instant) -> bool:
        return key in self._known and now < self._known[key][1]

    def find(self, key: bytes, now: Instant) -> CallerIdentity | None:
        return self._known[key][0] if self.has(key, now) else None


class TokenAuthenticator:
    """Authenticates tokens by ``review``. ``run`` must be running: it sends the reviews."""

    def __init__(self, review: Reviewer, clock: Clock) -> None:
        self._review = review
        self._clock = clock
        # Separate, so that a flood of bad tokens does not push out good ones.
        self._accepted, self._refused = _Verdicts(ACCEPTED_FOR), _Verdicts(REFUSED_FOR)
        self._open: dict[bytes, _Question] = {}
        # Bounded: a request beyond this gets 503 at once instead of waiting in vain.
        self._waiting: asyncio.Queue[_Question] = asyncio.Queue(QUEUE)

    async def run(self) -> None:
        """Asks the API server for ever."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(CONCURRENCY):
                    tasks.create_task(self._ask())
        finally:
            # Agents must not wait for an answer that never comes: another scheduler may answer already.
            for question in self._open.values():
                question.fail(ApiUnknownError(refusals.ENDS))
            self._open.clear()

    def remembered(self, authorization: str, audience: str) -> CallerIdentity | None:
        """The owner of the token in an ``Authorization`` header, if a recent verdict says so."""
        token = bearer_token(authorization)
        if token is None:
            return None
        return self._accepted.find(_key(token, audience), self._clock.now())

    def is_refused(self, authorization: str | None, audience: str) -> bool:
        """Return True if the token in an ``Authorization`` header is certainly invalid, judged without a review."""
        token = bearer_token(authorization)
        if token is None:
            return True
        key, now = _key(token, audience), self._clock.now()
        if self._accepted.has(key, now):
            return False
        return self._refused.has(key, now) or plausible_until(token, audience, self._clock.wall()) is None

    async def identify(self, authorization: str | None, audience: str) -> CallerIdentity | None:
        """The owner of the token in an ``Authorization`` header; None if it is invalid.

        Raises ``OverloadedError``, or ``cluster.api.ApiError`` if the API server gives no answer.
        """
        token = bearer_token(authorization)
        if token is None:
            return None
        key, now = _key(token, audience), self._clock.now()
        for verdicts in (self._accepted, self._refused):
            if verdicts.has(key, now):
                return verdicts.find(key, now)
        # One review per token, however many requests show it meanwhile.
        question = self._open.get(key)
        if question is None:
            until = plausible_until(token, audience, self._clock.wall())
            if until is None:
                return None
            question = self._put(_Question(key, token, audience, now, until))
        answer: asyncio.Future[CallerIdentity | None] = asyncio.get_running_loop().create_future()
        question.waiting.append(answer)
        return await answer

    def _put(self, question: _Question) -> _Question:
        try:
            self._waiting.put_nowait(question)
        except asyncio.QueueFull:
            raise OverloadedError from None
        self._open[question.key] = question
        return question

    async def _ask(self) -> Never:
        while True:
            question = await self._waiting.get()
            try:
                # An agent that has waited this long gives up soon: its review would only delay the others.
                if self._clock.now() - question.asked_at > LONGEST_WAIT:
                    raise OverloadedError
                identity = identity_in(await self._review(question.token, question.audience), question.audience)
            except (ApiError, OverloadedError) as error:
                question.fail(error)
            else:
                verdicts = self._refused if identity is None else self._accepted
                left = Seconds(question.until - self._clock.wall())
                verdicts.keep(question.key, identity, self._clock.now(), left)
                question.answer(identity)
            # Last: until the verdict is kept, requests with this token join the open question.
            del self._open[question.key]


def _key(token: str, audience: str) -> bytes:
    # Only a hash is kept: a dump of the memory must not reveal tokens.
    return hashlib.sha256(f"{audience}\n{token}".encode()).digest()
