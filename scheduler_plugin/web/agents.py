"""Agents over HTTP: decode, call the service, encode. No decisions here (S4.4, B.1).

200 with a ``PluginResponse``; otherwise ``{"error": ...}`` with 400 (malformed), 401, 403, 404 (unknown pod), 409
(another agent is active), 413 (too long) or 503 with ``Retry-After``.

A batch gets 200 with one entry per request, in order; an error if it is malformed or its sender is unknown. An entry
that is not done after ``BATCH_WAIT``, because its permit is being written, gets 503 and does not delay other VMs. The
write goes on.
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
from protocol.wire import wire_batches
from scheduler_plugin.service.permits import AT_ONCE, CallerRefusedError, Granted
from scheduler_plugin.service.service import Service
from scheduler_plugin.telemetry import LOG
from scheduler_plugin.texts import logs, refusals
from scheduler_plugin.web.hot_paths import BodyError, HotRequest, HotResponse

MAX_BODY: Final = 64 * 1024
"""An agent's request has a few hundred bytes."""

BATCH_WAIT: Final = Seconds(0.25)
"""Maximum wait for unfinished entries of a batch: the API server usually writes within 0.1 s."""

_OFFERED: Final = {wire_batches.OFFER: str(wire_batches.MAX_REQUESTS)}

_ENCODER: Final = msgspec.json.Encoder()

_REFUSALS: Final = (MalformedMessageError, wire_batches.MalformedBatchError, BodyError, CallerRefusedError)


def precheck(service: Service, authorization: str | None, address: str) -> HotResponse | None:
    """Response to a client that cannot be an agent, before its request is read."""
    try:
        service.permits.precheck(authorization, address)
    except CallerRefusedError as refusal:
        return _refused(service, refusal)
    return None


def request(service: Service, request: HotRequest) -> HotResponse | Awaitable[HotResponse]:
    """Handle one agent's request of any protocol version."""
    # Only for agents that know batches; older ones ignore the header. Also with a refusal: the VMs of a node would
    # otherwise ask a starting scheduler one by one.
    headers = _OFFERED if request.knows_batches else {}
    try:
        wire = decode_request(request.body())
        outcome = service.permits.ask(wire, request.authorization, request.address)
    except _REFUSALS as error:
        return _refused(service, _refusal(error), headers)
    if isinstance(outcome, Granted):
        return HotResponse(_encoded(wire, outcome), headers=headers)
    return _respond_later(service, wire, outcome, headers)


async def _respond_later(
    service: Service, wire: WireRequest, waiting: Awaitable[Granted], headers: Mapping[str, str]
) -> HotResponse:
    try:
        return HotResponse(_encoded(wire, await waiting), headers=headers)
    except CallerRefusedError as refusal:
        return _refused(service, refusal, headers)


async def batch(service: Service, request: HotRequest) -> HotResponse:
    """Handle many requests of one agent, each as if it had come alone."""
    try:
        entries = wire_batches.decode_batch(request.body())
        # One identity for the whole batch.
        identity = service.permits.identity_if_known(request.authorization, request.address)
        if identity is None:
            identity = await service.permits.identify(request.authorization, request.address)
    except _REFUSALS as error:
        return _refused(service, _refusal(error))
    service.context.telemetry.batches.observe(len(entries))
    # Decide in order without waiting; only waits run concurrently.
    return await _batch_response(service, [_entry(service, entry, identity) for entry in entries])


def _entry(service: Service, body: bytes, identity: CallerIdentity) -> bytes | asyncio.Task[bytes]:
    """The response to one request of a batch, or the task that computes it. Its errors do not affect other entries."""
    try:
        wire = decode_request(body)
        outcome = service.permits.judge(wire, identity)
        if isinstance(outcome, Granted):
            return wire_batches.granted_entry(_encoded(wire, outcome))
    except _REFUSALS as error:
        return _refused_entry(service, _refusal(error))
    except Exception:  # noqa: BLE001 - the boundary between VMs: it is written down and answered
        return _failed_entry()
    # A separate task goes on after the batch's response was sent.
    return asyncio.ensure_future(_entry_later(service, wire, outcome))


async def _entry_later(service: Service, wire: WireRequest, waiting: Awaitable[Granted]) -> bytes:
    try:
        return wire_batches.granted_entry(_encoded(wire, await waiting))
    except CallerRefusedError as refusal:
        return _refused_entry(service, refusal)
    except Exception:  # noqa: BLE001 - the boundary between VMs: it is written down and answered
        return _failed_entry()


async def _batch_response(service: Service, results: list[bytes | asyncio.Task[bytes]]) -> HotResponse:
    """The response to a batch, after ``BATCH_WAIT`` at most; unfinished entries go on in the background."""
    tasks = [answer for answer in results if not isinstance(answer, bytes)]
    if tasks:
        try:
            await _wait_until_done(service, tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
    entries = [answer if isinstance(answer, bytes) else _finished_or_busy(service, answer) for answer in results]
    unfinished = [task for task in tasks if not task.done()]
    # A permit proves that the caller is an agent, so its connection keeps its slot.
    is_agent = any(wire_batches.is_granted(entry) for entry in entries)
    return HotResponse(
        wire_batches.encode_batch(entries),
        rest=_hold_until_done(unfinished) if unfinished else None,
        authenticates=is_agent,
    )


async def _wait_until_done(service: Service, tasks: list[asyncio.Task[bytes]]) -> None:
    clock, done = service.context.clock, asyncio.Event()
    until = Instant(clock.now() + BATCH_WAIT)
    gathered = asyncio.gather(*tasks)
    # ``asyncio.wait_for`` would cancel the tasks, and tests could not replace its clock.
    gathered.add_done_callback(lambda _: done.set())
    await clock.wait(done, until)


def _finished_or_busy(service: Service, task: asyncio.Task[bytes]) -> bytes:
    if task.done():
        return task.result()
    return _refused_entry(service, CallerRefusedError(503, refusals.WRITE_IN_PROGRESS, AT_ONCE))


def _refused_entry(service: Service, refusal: CallerRefusedError) -> bytes:
    service.context.telemetry.refusals.labels(str(refusal.status)).inc()
    return wire_batches.refused_entry(refusal.status, str(refusal), refusal.retry_after)


def _failed_entry() -> bytes:
    LOG.exception(logs.ENTRY_FAILED)
    return wire_batches.refused_entry(500, refusals.FAILED)


def _refused(service: Service, refusal: CallerRefusedError, offered: Mapping[str, str] = {}) -> HotResponse:
    service.context.telemetry.refusals.labels(str(refusal.status)).inc()
    headers = dict(offered)
    if refusal.retry_after is not None:
        # The header takes whole seconds.
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


def _encoded(wire: WireRequest, granted: Granted) -> bytes:
    # Older versions count memory in slots.
    return encode_response(wire.version, granted.response, granted.slot_size)


async def _hold_until_done(tasks: list[asyncio.Task[bytes]]) -> None:
    """Keep references to the tasks until they end; their agents ask again."""
    await asyncio.gather(*tasks)
