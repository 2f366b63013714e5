"""The scheduler's port for the agent of a whole node: requests due together go in one message (decision 55).

Rules that hold here:

- A request for more than is permitted waits for nothing: it goes alone and at once.
- Others wait for ``GATHER`` at most, and each has an answer, or an error, of its own.
- No request is sent twice, unless its batch was refused without being looked at: then it is sent alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Never

from agent.adapters.scheduler_client import HttpScheduler, SchedulerAnswer, senseless
from agent.adapters.scheduler_line import LineClosedError, SchedulerLine
from agent.ports import PortError
from protocol.codec import PluginResponseView, encode_request
from protocol.messages import AgentRequest
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Instant, Seconds
from protocol.versions import AGENT_SPEAKS
from protocol.wire.wire_batches import MalformedBatchError, decode_answers

GATHER: Final = Seconds(0.01)
"""How long a request waits for others: the VMs of a node ask in one rhythm, and are planned one after the other."""

OFFER_AGAIN: Final = Seconds(60.0)
"""Wait before a scheduler that took no batches is offered them again: it may have been upgraded."""

AFTER_FAILURE: Final = Seconds(5.0)
"""Wait before the next connection if one could not be made, or led to a scheduler that gave no permit."""

_NOT_TAKEN: Final = frozenset({400, 404, 405, 413})
"""Statuses of a whole batch that mean that the scheduler has not looked at it."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    body: bytes
    answer: asyncio.Future[SchedulerAnswer]


class NodeScheduler:
    """Asks ``alone``, or over ``line`` for many VMs at once; ``run`` must be running.

    ``messages`` counts what was sent, by ``alone`` and ``together``.
    """

    def __init__(self, alone: HttpScheduler, line: SchedulerLine, clock: Clock) -> None:
        self.messages: Counter[str] = Counter(alone=0, together=0)
        self._alone = alone
        self._line = line
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._is_due = asyncio.Event()
        self._is_busy = False
        self._offer_at = clock.now()

    async def ask(self, request: AgentRequest, slot_size: Bytes) -> PluginResponseView:
        """Sends one request and returns the answer. Raises ``PortError``."""
        try:
            # While a batch is under way, requests go alone: no VM waits for the answer to another.
            if not self._is_busy and not _wants_more(request):
                if self._line.most > len(self._waiting):
                    return await self._together(request, slot_size)
                if not self._line.most and self._clock.now() >= self._offer_at:
                    return await self._offer(request, slot_size)
        # The scheduler has not looked at the request, so sending it alone repeats nothing.
        except LineClosedError:
            pass
        self.messages["alone"] += 1
        return await self._alone.ask(request, slot_size)

    async def run(self) -> Never:
        """Sends batches, one after the other, for ever."""
        try:
            while True:
                await self._is_due.wait()
                self._is_due.clear()
                # The VMs of the node are planned one after the other; those that follow join this batch.
                await self._clock.sleep(GATHER)
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

    async def _offer(self, request: AgentRequest, slot_size: Bytes) -> PluginResponseView:
        # Set before the attempt, so that the other VMs of the node do not offer as well while it is under way.
        self._offer_at = Instant(self._clock.now() + AFTER_FAILURE)
        self.messages["alone"] += 1
        answer = await self._line.offer(_encoded(request, slot_size))
        if self._line.most:
            self._offer_at = self._clock.now()  # if this connection ends, the next one is made at once
        # A permit but no word on batches: this scheduler knows none. One that gave no permit may be a standby.
        elif answer.status == 200:
            self._offer_at = Instant(self._clock.now() + OFFER_AGAIN)
            self._line.close()
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
            raise senseless(error) from None
        return [
            senseless(answer)
            if isinstance(answer, MalformedBatchError)
            else SchedulerAnswer(answer.status, answer.body, answer.retry_after)
            for answer in answers
        ]


def _wants_more(request: AgentRequest) -> bool:
    """Return True if a VM waits for the answer: the request exceeds its last permit."""
    return request.last_permit is None or not request.resources.within(request.last_permit)


def _encoded(request: AgentRequest, slot_size: Bytes) -> bytes:
    return encode_request(AGENT_SPEAKS, request, slot_size)
