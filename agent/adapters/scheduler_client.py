"""The HTTP client of the scheduler (S4.4, B.4, B.11): one wire version, and one POST per request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import httpx2 as httpx

from agent import texts
from agent.adapters.http_errors import no_answer, reason_in
from agent.core.events import Fault
from agent.ports import PortError, TokenSource
from protocol.codec import MalformedMessageError, PluginResponseView, decode_response, encode_request
from protocol.messages import AgentRequest
from protocol.units import Bytes, Seconds
from protocol.versions import AGENT_SPEAKS, ProtocolVersion
from protocol.wire.wire_batches import EncodedAnswer

LARGEST: Final = 64 * 1024

_FAULTS: Final[Mapping[int, tuple[Fault, str]]] = {
    400: (Fault.AGENT, texts.REQUEST_UNDECODABLE),
    401: (Fault.AGENT, texts.AGENT_REJECTED),
    403: (Fault.AGENT, texts.POD_NOT_AUTHORIZED),
    404: (Fault.SCHEDULER, texts.POD_UNKNOWN),
    409: (Fault.AGENT, texts.OTHER_AGENT),
    503: (Fault.SCHEDULER, texts.NOT_READY),
}

_CONFLICT: Final = 409


def refusal_in(answer: EncodedAnswer) -> PortError:
    """The error for an answer without a permit."""
    fault, what = _FAULTS.get(answer.status, (Fault.SCHEDULER, texts.SCHEDULER_SAYS.format(status=answer.status)))
    is_superseded = answer.status == _CONFLICT
    return PortError(fault, f"{what}: {reason_in(answer.body)}", answer.retry_after, is_superseded=is_superseded)


def permit_in(answer: EncodedAnswer, version: ProtocolVersion, slot_size: Bytes) -> PluginResponseView:
    """Decode the permit. Raises ``PortError``."""
    if answer.status != 200:
        raise refusal_in(answer)
    # A valid permit has a few hundred bytes.
    if len(answer.body) > LARGEST:
        raise PortError(Fault.SCHEDULER, texts.SCHEDULER_SAYS_TOO_MUCH.format(most=LARGEST))
    try:
        return decode_response(version, answer.body, slot_size)
    except MalformedMessageError as error:
        raise undecodable(error) from None


def undecodable(error: Exception) -> PortError:
    """The error for a response that cannot be decoded."""
    return PortError(Fault.SCHEDULER, texts.SCHEDULER_UNREADABLE.format(error=error))


def retry_after(text: str) -> Seconds | None:
    """Seconds from a ``Retry-After`` header; None for a date or anything else."""
    # ``isdecimal`` alone accepts digits of other scripts.
    return Seconds(float(text)) if text.isascii() and text.isdecimal() else None


@dataclass(frozen=True, slots=True)
class HttpScheduler:
    """The scheduler at ``url``, with the wire format ``version``."""

    client: httpx.AsyncClient
    url: str
    identity: TokenSource
    deadline: Seconds
    version: ProtocolVersion = AGENT_SPEAKS

    async def ask(self, request: AgentRequest, slot_size: Bytes) -> PluginResponseView:
        """See ``SchedulerClient``."""
        body = encode_request(self.version, request, slot_size)
        try:
            async with asyncio.timeout(self.deadline):
                answer = await self.client.post(self.url, content=body, headers=self._headers())
        # The scheduler may have applied the request although the answer is lost; the core allows for that.
        except (httpx.HTTPError, OSError) as error:
            raise no_answer(texts.SCHEDULER.format(url=self.url), error, self.deadline) from None
        wait = retry_after(answer.headers.get("Retry-After", ""))
        return permit_in(EncodedAnswer(answer.status_code, answer.content, wait), self.version, slot_size)

    def _headers(self) -> dict[str, str]:
        # Read for each request, because the kubelet rotates the token.
        token = self.identity()
        identity = {} if token is None else {"Authorization": f"Bearer {token}"}
        return {"Content-Type": "application/json", **identity}
