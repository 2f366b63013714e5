"""The scheduler client of a node's agent: requests due at the same time go in one batch (decision 55).

Rules that hold here:

- A request above its permit is sent alone and immediately.
- Others wait for at most ``BATCH_DELAY``, or ``OFFER_WAIT`` during an offer. Each gets its own answer or error.
- No request is sent twice, unless the scheduler rejected its batch unread: then it is sent alone.
- If a standby refuses an offer, the requests that waited for it fail, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Never

from agent.adapters.batch_connection import BatchConnection, BatchRefusedError
from agent.adapters.scheduler_client import HttpScheduler, permit_in, refusal_in, undecodable
from agent.ports import PortError
from protocol.codec import PluginResponseView, encode_request
from protocol.messages import AgentRequest
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Instant, Seconds
from protocol.versions import AGENT_SPEAKS
from protocol.wire.wire_batches import EncodedAnswer, MalformedBatchError, decode_answers

BATCH_DELAY: Final = Seconds(0.01)
"""A request waits this long for others: the VMs of a node share a schedule, and are planned one after the other."""

OFFER_RETRY: Final = Seconds(60.0)
"""Delay before batches are offered again to a scheduler that did not accept them: it may have been upgraded."""

AFTER_FAILURE: Final = Seconds(5.0)
"""Delay before the next connection if the scheduler granted no permit on the last one."""

RECONNECT: Final = Seconds(0.5)
"""Delay before the next connection if the last one failed or its scheduler was not ready; equals the first delay of the
agents' backoff.
"""

OFFER_WAIT: Final = Seconds(1.0)
"""A request waits at most this long for another's offer. After a restart of the scheduler, all VMs of a node send a
request at the same time: one connects, and the others follow in a batch.
"""

_NOT_READY: Final = 503

_UNREAD_STATUSES: Final = frozenset({400, 404, 405, 413})
"""Statuses of a batch that the scheduler did not read."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    body: bytes
    answer: asyncio.Future[EncodedAnswer]


class NodeScheduler:
    """Sends requests one by one with ``single``, or in batches over ``connection``; ``run`` must be running.

    ``messages`` counts messages with one request (``alone``) and batches (``together``).
    """

    def __init__(self, single: HttpScheduler, connection: BatchConnection, clock: Clock) -> None:
        self.messages: Counter[str] = Counter(alone=0, together=0)
        self._single = single
        self._connection = connection
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._is_due = asyncio.Event()
        self._is_busy = False
        self._offer_is_over = asyncio.Event()
        self._offer_is_over.set()
        self._offer_at = clock.now()
        self._standby: PortError | None = None

    async def ask(self, request: AgentRequest, slot_size: Bytes) -> PluginResponseView:
        """See ``SchedulerClient``."""
        try:
            if not _is_urgent(request):
                await self._wait_for_offer()
                # While a batch is in flight, send requests singly, so that none waits for the answer to another.
                if not self._is_busy and self._connection.most > len(self._waiting):
                    return await self._in_batch(request, slot_size)
                if not self._is_busy and not self._connection.most and self._clock.now() >= self._offer_at:
                    return await self._offer(request, slot_size)
        # The scheduler did not read the request, so this does not send it twice.
        except BatchRefusedError:
            pass
        self.messages["alone"] += 1
        return await self._single.ask(request, slot_size)

    async def run(self) -> Never:
        """Send batches, one at a time, until cancelled."""
        try:
            while True:
                await self._is_due.wait()
                # The VMs of the node are planned one after the other; later ones join this batch.
                await self._clock.sleep(BATCH_DELAY)
                # Clear only now: requests that joined must not cause another, empty batch.
                self._is_due.clear()
                waiting, self._waiting = self._waiting, []
                self._is_busy = True
                await self._send(waiting)
                self._is_busy = False
        finally:
            self._connection.close()

    async def _in_batch(self, request: AgentRequest, slot_size: Bytes) -> PluginResponseView:
        queued = _Waiting(_encoded(request, slot_size), asyncio.get_running_loop().create_future())
        self._waiting.append(queued)
        self._is_due.set()
        return permit_in(await queued.answer, AGENT_SPEAKS, slot_size)

    async def _wait_for_offer(self) -> None:
        """Wait for another VM's offer, if any. Raises its ``PortError`` if a standby refused it."""
        if self._offer_is_over.is_set():
            return
        await self._clock.wait(self._offer_is_over, Instant(self._clock.now() + OFFER_WAIT))
        # The standby would refuse this request, too, and all VMs of the node keep retrying until there is a leader.
        if self._offer_is_over.is_set() and self._standby is not None:
            raise self._standby

    async def _offer(self, request: AgentRequest, slot_size: Bytes) -> PluginResponseView:
        # Set before the attempt, so that no other VM of the node makes an offer meanwhile.
        self._offer_at = Instant(self._clock.now() + AFTER_FAILURE)
        self.messages["alone"] += 1
        self._offer_is_over.clear()
        self._standby = None
        try:
            answer = await self._connection.offer(_encoded(request, slot_size))
            # ``Retry-After: 0`` comes from a standby or a terminating process.
            if answer.status == _NOT_READY and answer.retry_after is not None and not answer.retry_after:
                self._standby = refusal_in(answer)
        except PortError:
            self._offer_at = Instant(self._clock.now() + RECONNECT)
            raise
        finally:
            self._offer_is_over.set()
        if self._connection.most:
            self._offer_at = self._clock.now()  # reconnect immediately if this connection ends
        # This scheduler granted a permit but does not support batches.
        elif answer.status == 200:
            self._offer_at = Instant(self._clock.now() + OFFER_RETRY)
            self._connection.close()
        elif answer.status == _NOT_READY:
            self._offer_at = Instant(self._clock.now() + RECONNECT)
        return permit_in(answer, AGENT_SPEAKS, slot_size)

    async def _send(self, waiting: Sequence[_Waiting]) -> None:
        try:
            self.messages["together"] += 1
            response = await self._connection.ask([request.body for request in waiting])
            outcomes = self._outcomes(response, len(waiting))
        except (PortError, BatchRefusedError) as error:
            outcomes = [error] * len(waiting)
        for request, outcome in zip(waiting, outcomes, strict=True):
            if request.answer.done():
                continue  # its runner has ended
            if isinstance(outcome, EncodedAnswer):
                request.answer.set_result(outcome)
            else:
                request.answer.set_exception(outcome)

    def _outcomes(self, response: EncodedAnswer, count: int) -> Sequence[EncodedAnswer | Exception]:
        """The outcome of each request. Raises ``PortError`` or ``BatchRefusedError`` if the whole batch failed."""
        if response.status in _UNREAD_STATUSES:
            self._connection.close()
            self._offer_at = Instant(self._clock.now() + OFFER_RETRY)
            raise BatchRefusedError
        if response.status != 200:
            raise refusal_in(response)
        try:
            answers = decode_answers(response.body, count)
        except MalformedBatchError as error:
            self._connection.close()
            raise undecodable(error) from None
        return [undecodable(answer) if isinstance(answer, MalformedBatchError) else answer for answer in answers]


def _is_urgent(request: AgentRequest) -> bool:
    """Return True if the VM needs the answer soon: the request exceeds its last permit."""
    return request.last_permit is None or not request.resources.within(request.last_permit)


def _encoded(request: AgentRequest, slot_size: Bytes) -> bytes:
    return encode_request(AGENT_SPEAKS, request, slot_size)
