"""The scheduler's port for agents over HTTP (S4.4, B.4, B.11): one wire version, one POST for each request.

Rules that hold here:

- One request, one deadline, one outcome; nothing is repeated here.
- The status decides whose fault it is; see ``scheduler_answers``.
"""

from __future__ import annotations

import asyncio

import httpx2 as httpx

from agent import texts
from agent.adapters.http_errors import no_answer
from agent.adapters.scheduler_answers import SchedulerAnswer, retry_after
from agent.ports import TokenSource
from protocol.codec import PluginResponseView, encode_request
from protocol.messages import AgentRequest
from protocol.units import Bytes, Seconds
from protocol.versions import AGENT_SPEAKS, ProtocolVersion


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
        """Sends one request and returns the answer. Raises ``PortError``."""
        body = encode_request(self._version, request, slot_size)
        try:
            async with asyncio.timeout(self._deadline):
                answer = await self._client.post(self._url, content=body, headers=self._headers())
        # The scheduler may have taken the request although its answer is lost; the core takes that into account.
        except (httpx.HTTPError, OSError) as error:
            raise no_answer(texts.SCHEDULER.format(url=self._url), error, self._deadline) from None
        wait = retry_after(answer.headers.get("Retry-After", ""))
        return SchedulerAnswer(answer.status_code, answer.content, wait).permit(self._version, slot_size)

    def _headers(self) -> dict[str, str]:
        # Read for each request: the kubelet replaces the token now and then.
        token = self._identity()
        identity = {} if token is None else {"Authorization": f"Bearer {token}"}
        return {"Content-Type": "application/json", **identity}
