"""The scheduler client of a node's agent: requests due at the same time go in one batch (decision 55).

Rules that hold here:

- A request beyond its permit goes alone and at once.
- Others wait for at most ``GATHER``, or ``FOLLOW`` during an offer. Each gets its own answer or error.
- No request is sent twice, unless the scheduler refused its batch unread: then it is sent alone.
- An offer that a standby refused fails for all that followed it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Never

from agent.adapters.scheduler_client import HttpScheduler, SchedulerAnswer, undecodable
from agent.adapters.scheduler_line import LineClosedError, SchedulerLine
from agent.ports import PortError
from protocol.codec import PluginResponseView, encode_request
from protocol.messages import AgentRequest
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Instant, Seconds
from protocol.versions import AGENT_SPEAKS
from protocol.wire.wire_batches import MalformedBatchError, decode_answers

GATHER: Final = Seconds(0.01)
"""How long a request waits for others: the VMs of a node share a rhythm, and are planned one after the other."""

OFFER_AGAIN: Final = Seconds(60.0)
"""Delay before batches are offered again to a scheduler that did not accept them: it may have been upgraded."""

AFTER_FAILURE: Final = Seconds(5.0)
"""Delay before the next connection if one reached a scheduler that granted no permit."""

RECONNECT: Final = Seconds(0.5)
"""Delay before the next connection if one failed or its scheduler was not ready: as the first delay of the agents'
backoff.
"""

FOLLOW: Final = Seconds(1.0)
"""How long a request waits for the offer of another. After a restart of the scheduler, all VMs of a node ask at once:
one connects, and the others follow in a batch.
"""

_NOT_READY: Final = 503

_NOT_TAKEN: Final = frozenset({400, 404, 405, 413})
"""Statuses of a batch that the scheduler did not read."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    body: bytes
    answer: asyncio.Future[SchedulerAnswer]


class NodeScheduler:
    """Sends requests with ``alone``, or in batches over ``line``; ``run`` must be running.

    ``messages`` counts messages sent ``alone`` and ``together``.
    """

    def __init__(self, alone: HttpScheduler, line: SchedulerLine, clock: Clock) -> None:
        self.messages: Counter[str] = Counter(alone=0, together=0)
        self._alone = alone
        self._line = line
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._is_due = asyncio.Event()
        self._is_busy = False
        self._offer_is_over = asyncio.Event()
        self._offer_is_over.set()
        self._offer_at = clock.now()
        self._standby: PortError | None = None

    async def ask(self, request: AgentRequest, slot_size: Bytes) -> PluginResponseView:
        """Send one request and return its answer. Raises ``PortError``."""
        try:
            if not _wants_more(request):
                await self._follow()
                # While a batch is in flight, requests go alone, so that none waits for the answer to another.
                if not self._is_busy and self._line.most > len(self._waiting):
                    return await self._together(request, slot_size)
                if not self._is_busy and not self._line.most and self._clock.now() >= self._offer_at:
                    return await self._offer(request, slot_size)
        # The scheduler did not read the request, so sending it alone is not a repetition.
        except LineClosedError:
            pass
        self.messages["alone"] += 1
        return await self._alone.ask(request, slot_size)

    async def run(self) -> Never:
        """Send batches, one after the other, until cancelled."""
        try:
            while True:
                await self._is_due.wait()
                # The VMs of the node are planned one after the other; later ones join this batch.
                await self._clock.sleep(GATHER)
                # Only now: those that joined must not cause another batch, which would be empty.
                self._is_due.clear()
                waiting, self._waiting = self._waiting, []
                self._is_busy = True
                await self._send(waiting)
                self._is_busy = False
        finally:
            self._line.close()

    async def _together(self, request: AgentRequest, slot_size: Bytes) -> PluginResponseView:
        queued = _Waiting(_encoded(request, slot_size), asyncio.get_running_loop().create_future())
        self._waiting.append(queued)
        self._is_due.set()
        return (await queued.answer).permit(AGENT_SPEAKS, slot_size)

    async def _follow(self) -> None:
        """Wait for the offer of another VM. Raises its ``PortError`` if a standby refused it."""
        if self._offer_is_over.is_set():
            return
        await self._clock.wait(self._offer_is_over, Instant(self._clock.now() + FOLLOW))
        # It would refuse this request, too, and the VMs of a whole node ask again and again until it leads.
        if self._offer_is_over.is_set() and self._standby is not None:
            raise self._standby

    async def _offer(self, request: AgentRequest, slot_size: Bytes) -> PluginResponseView:
        # Set before the attempt, so that no other VM of the node offers batches meanwhile.
        self._offer_at = Instant(self._clock.now() + AFTER_FAILURE)
        self.messages["alone"] += 1
        self._offer_is_over.clear()
        self._standby = None
        try:
            answer = await self._line.offer(_encoded(request, slot_size))
            # ``Retry-After: 0``: a standby, or a process that ends.
            if answer.status == _NOT_READY and answer.retry_after is not None and not answer.retry_after:
                self._standby = answer.refusal()
        except PortError:
            self._offer_at = Instant(self._clock.now() + RECONNECT)
            raise
        finally:
            self._offer_is_over.set()
        if self._line.most:
            self._offer_at = self._clock.now()  # reconnect at once if this connection ends
        # This scheduler granted a permit but does not know batches.
        elif answer.status == 200:
            self._offer_at = Instant(self._clock.now() + OFFER_AGAIN)
            self._line.close()
        elif answer.status == _NOT_READY:
            self._offer_at = Instant(self._clock.now() + RECONNECT)
        return answer.permit(AGENT_SPEAKS, slot_size)

    async def _send(self, waiting: Sequence[_Waiting]) -> None:
        try:
            self.messages["together"] += 1
            response = await self._line.ask([request.body for request in waiting])
            outcomes = self._outcomes(response, len(waiting))
        except (PortError, LineClosedError) as error:
            outcomes = [error] * len(waiting)
        for request, outcome in zip(waiting, outcomes, strict=True):
            if request.answer.done():
                continue  # the runner that asked has ended
            if isinstance(outcome, SchedulerAnswer):
                request.answer.set_result(outcome)
            else:
                request.answer.set_exception(outcome)

    def _outcomes(self, response: SchedulerAnswer, count: int) -> Sequence[SchedulerAnswer | Exception]:
        """The outcome of each request. Raises ``PortError`` or ``LineClosedError`` if the whole batch failed."""
        if response.status in _NOT_TAKEN:
            self._line.close()
            self._offer_at = Instant(self._clock.now() + OFFER_AGAIN)
            raise LineClosedError
        if response.status != 200:
            raise response.refusal()
        try:
            answers = decode_answers(response.body, count)
        except MalformedBatchError as error:
            self._line.close()
            raise undecodable(error) from None
        return [
            undecodable(answer)
            if isinstance(answer, MalformedBatchError)
            else SchedulerAnswer(answer.status, answer.body, answer.retry_after)
            for answer in answers
        ]


def _wants_more(request: AgentRequest) -> bool:
    """Return True if a VM waits for the answer: the request exceeds its last permit."""
    return request.last_permit is None or not request.resources.within(request.last_permit)


def _encoded(request: AgentRequest, slot_size: Bytes) -> bytes:
    return encode_request(AGENT_SPEAKS, request, slot_size)
