"""The scheduler's port for agents over HTTP (S4.4, B.4, B.11): one wire version, one POST for each request.

Rules that hold here:

- One request, one deadline, one outcome; nothing is repeated here. The answer to a request that went out may be lost,
  and the core takes that into account.
- What the status says decides whose fault it is; see ``_FAULTS``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import httpx

from agent.adapters.http_errors import no_answer, reason_in
from agent.core.events import Fault
from agent.ports import PortError, SchedulerError, TokenSource
from protocol.codec import MalformedResponseError, PluginResponseView, decode_response, encode_request
from protocol.messages import AgentRequest
from protocol.units import Bytes, Seconds
from protocol.versions import AGENT_SPEAKS, ProtocolVersion

LARGEST: Final = 64 * 1024

_FAULTS: Final[Mapping[int, tuple[Fault, str]]] = {
    400: (Fault.AGENT, "the scheduler does not understand this agent"),
    401: (Fault.AGENT, "the scheduler does not accept this agent's token"),
    403: (Fault.AGENT, "the scheduler does not let this agent speak for this pod"),
    404: (Fault.SCHEDULER, "the scheduler does not know this pod"),
    503: (Fault.SCHEDULER, "the scheduler is not ready"),
}


class HttpScheduler:
    """The scheduler at ``url``, which understands ``version``."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        identity: TokenSource,
        deadline: Seconds,
        version: ProtocolVersion = AGENT_SPEAKS,
    ) -> None:
        self._client = client
        self._url = url
        self._identity = identity
        self._deadline = deadline
        self._version = version

    async def ask(self, request: AgentRequest, slot_size: Bytes) -> PluginResponseView:
        """Sends one request and returns the answer. Raises ``SchedulerError``."""
        body = encode_request(self._version, request, slot_size)
        try:
            async with asyncio.timeout(self._deadline):
                answer = await self._client.post(self._url, content=body, headers=self._headers())
        except (httpx.HTTPError, OSError) as error:
            lost = no_answer(f"the scheduler at {self._url}", error, self._deadline)
            raise SchedulerError(lost.fault, lost.reason) from None
        except PortError as error:
            raise SchedulerError(error.fault, error.reason) from None
        return _read(answer, self._version, slot_size)

    def _headers(self) -> dict[str, str]:
        token = self._identity.token()
        identity = {} if token is None else {"Authorization": f"Bearer {token}"}
        return {"Content-Type": "application/json", **identity}


def _read(answer: httpx.Response, version: ProtocolVersion, slot_size: Bytes) -> PluginResponseView:
    if answer.status_code != httpx.codes.OK:
        fault, what = _FAULTS.get(answer.status_code, (Fault.SCHEDULER, f"the scheduler answers {answer.status_code}"))
        raise SchedulerError(fault, f"{what}: {reason_in(answer.content)}", _retry_after(answer))
    if len(answer.content) > LARGEST:
        raise SchedulerError(Fault.SCHEDULER, f"the scheduler's answer has more than {LARGEST} bytes")
    try:
        return decode_response(version, answer.content, slot_size)
    except MalformedResponseError as error:
        raise SchedulerError(Fault.SCHEDULER, f"the scheduler's answer makes no sense: {error}") from None


def _retry_after(answer: httpx.Response) -> Seconds | None:
    """The header's seconds; a date or anything else is not heeded."""
    text = answer.headers.get("Retry-After", "")
    return Seconds(float(text)) if text.isascii() and text.isdecimal() else None
