"""The agents' side over HTTP: decode, ask the service, encode. No decisions here (S4.4, B.1).

200 with a ``PluginResponse``; otherwise ``{"error": ...}`` with 400 (malformed), 401, 403, 404 (unknown pod), 409
(another agent speaks for the VM), 413 (too long) or 503 with ``Retry-After``.

A batch is answered with 200 and one entry for each request, in their order; with an error if it is no batch, or its
sender is not known. An entry that is not done after ``HELD`` (its permit is being written) gets 503, so that it does
not hold up other VMs, and its work goes on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Mapping
from typing import Final

import msgspec

from protocol.codec import MalformedMessageError, WireRequest, decode_request, encode_response
from protocol.kubernetes.access_reviews import CallerIdentity
from protocol.units import Instant, Seconds
from protocol.wire.wire_batches import (
    MOST_REQUESTS,
    OFFER,
    MalformedBatchError,
    decode_batch,
    encode_batch,
    granted_entry,
    is_granted,
    refused_entry,
)
from scheduler_plugin.service.permits import AT_ONCE, CallerRefusedError, Granted
from scheduler_plugin.service.service import Service
from scheduler_plugin.telemetry import LOG
from scheduler_plugin.texts import logs, refusals
from scheduler_plugin.web.bodies import BodyError
from scheduler_plugin.web.hot_paths import HotRequest, HotResponse

LONGEST_BODY: Final = 64 * 1024
"""An agent's request is a few hundred bytes; anything longer is not one."""

HELD: Final = Seconds(0.25)
"""How long the answer to a batch waits for unfinished entries: the API server usually writes within 0.1 s."""

_OFFERED: Final = {OFFER: str(MOST_REQUESTS)}

_ENCODER: Final = msgspec.json.Encoder()

_REFUSALS: Final = (MalformedMessageError, MalformedBatchError, BodyError, CallerRefusedError)


class AgentRoutes:
    """``POST /`` and ``POST /permits`` over one service."""

    def __init__(self, service: Service) -> None:
        self._context = service.context
        self._permits = service.permits

    def introduction(self, authorization: str | None, address: str) -> HotResponse | None:
        """Response to a client that cannot be an agent, before its request is read."""
        try:
            self._permits.introduce(authorization, address)
        except CallerRefusedError as refusal:
            return self._refused(refusal)
        return None

    def request(self, request: HotRequest) -> HotResponse | Awaitable[HotResponse]:
        """One agent's request of any wire version."""
        try:
            wire = decode_request(request.body())
            outcome = self._permits.ask(wire, request.authorization, request.address)
        except _REFUSALS as error:
            return self._refused(_refusal(error))
        # Offered only to agents that say they know batches: older ones do not know the header.
        headers = _OFFERED if request.knows_batches else {}
        return _answer(wire, outcome, headers) if isinstance(outcome, Granted) else self._later(wire, outcome, headers)

    async def _later(self, wire: WireRequest, waiting: Awaitable[Granted], headers: Mapping[str, str]) -> HotResponse:
        try:
            return _answer(wire, await waiting, headers)
        except CallerRefusedError as refusal:
            return self._refused(refusal)

    async def batch(self, request: HotRequest) -> HotResponse:
        """Many requests of one agent, each judged as if it had come alone."""
        try:
            entries = decode_batch(request.body())
            # One identity for the whole batch: all its requests come from one agent.
            identity = self._permits.known(request.authorization, request.address)
            if identity is None:
                identity = await self._permits.identify(request.authorization)
        except _REFUSALS as error:
            return self._refused(_refusal(error))
        self._context.telemetry.batches.observe(len(entries))
        # Judged one after the other without waiting: only what they have to wait for runs concurrently.
        return await self._together([self._entry(entry, identity) for entry in entries])

    def _entry(self, body: bytes, identity: CallerIdentity) -> bytes | asyncio.Task[bytes]:
        """The answer to one request of a batch, or the task that makes it. Its errors do not affect other entries."""
        try:
            wire = decode_request(body)
            outcome = self._permits.judge(wire, identity)
            if isinstance(outcome, Granted):
                return granted_entry(encode_response(wire.version, outcome.response, outcome.slot_size))
        except _REFUSALS as error:
            return self._refused_entry(_refusal(error))
        except Exception:  # noqa: BLE001 - the boundary between VMs: it is written down and answered
            return self._failed_entry()
        # A task of its own: it goes on when the answer to the batch does not wait for it any longer.
        return asyncio.ensure_future(self._entry_later(wire, outcome))

    async def _entry_later(self, wire: WireRequest, waiting: Awaitable[Granted]) -> bytes:
        try:
            granted = await waiting
            return granted_entry(encode_response(wire.version, granted.response, granted.slot_size))
        except CallerRefusedError as refusal:
            return self._refused_entry(refusal)
        except Exception:  # noqa: BLE001 - the boundary between VMs: it is written down and answered
            return self._failed_entry()

    async def _together(self, found: list[bytes | asyncio.Task[bytes]]) -> HotResponse:
        """The answer to a batch, after ``HELD`` at the latest; unfinished entries go on in the background."""
        tasks = [answer for answer in found if not isinstance(answer, bytes)]
        if tasks:
            try:
                await self._until_done(tasks)
            except asyncio.CancelledError:
                for task in tasks:
                    task.cancel()
                raise
        entries = [answer if isinstance(answer, bytes) else self._now(answer) for answer in found]
        unfinished = [task for task in tasks if not task.done()]
        # A permit proves that the caller is an agent; the connection then keeps its place.
        is_agent = any(is_granted(entry) for entry in entries)
        return HotResponse(
            encode_batch(entries), rest=_ended(unfinished) if unfinished else None, authenticates=is_agent
        )

    async def _until_done(self, tasks: list[asyncio.Task[bytes]]) -> None:
        clock, done = self._context.clock, asyncio.Event()
        until = Instant(clock.now() + HELD)
        gathered = asyncio.gather(*tasks)
        # ``asyncio.wait_for`` would cancel the tasks at the time-out, and tests could not replace its clock.
        gathered.add_done_callback(lambda _: done.set())
        await clock.wait(done, until)

    def _now(self, task: asyncio.Task[bytes]) -> bytes:
        if task.done():
            return task.result()
        return self._refused_entry(CallerRefusedError(503, refusals.STILL_WRITTEN, AT_ONCE))

    def _refused_entry(self, refusal: CallerRefusedError) -> bytes:
        self._context.telemetry.refusals.labels(str(refusal.status)).inc()
        return refused_entry(refusal.status, str(refusal), refusal.retry_after)

    def _failed_entry(self) -> bytes:
        LOG.exception(logs.ENTRY_FAILED)
        return refused_entry(500, refusals.FAILED)

    def _refused(self, refusal: CallerRefusedError) -> HotResponse:
        self._context.telemetry.refusals.labels(str(refusal.status)).inc()
        headers = {}
        if refusal.retry_after is not None:
            # Whole seconds: the header allows no fractions.
            headers["retry-after"] = str(math.ceil(refusal.retry_after))
            if not refusal.retry_after:  # the next connection reaches the new leader
                headers["connection"] = "close"
        if refusal.status == 401:
            headers["www-authenticate"] = "Bearer"
        return HotResponse(_ENCODER.encode({"error": str(refusal)}), refusal.status, headers)


def _refusal(error: Exception) -> CallerRefusedError:
    if isinstance(error, CallerRefusedError):
        return error
    return CallerRefusedError(error.status if isinstance(error, BodyError) else 400, str(error))


def _answer(wire: WireRequest, granted: Granted, headers: Mapping[str, str]) -> HotResponse:
    # In the request's version; older ones count memory in slots.
    return HotResponse(encode_response(wire.version, granted.response, granted.slot_size), headers=headers)


async def _ended(tasks: list[asyncio.Task[bytes]]) -> None:
    """Keep a reference to the tasks until they end; agents that ask again get their outcomes."""
    await asyncio.gather(*tasks)
