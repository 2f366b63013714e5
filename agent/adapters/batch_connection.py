"""A connection to the scheduler for batches of requests (decision 55).

Each connection begins with a single request that offers batches, and carries them only if the scheduler accepts. So a
scheduler that does not support batches never gets one, not even after a downgrade.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from agent import texts
from agent.adapters.http_errors import no_answer
from agent.adapters.scheduler_client import retry_after
from agent.core.events import Fault
from agent.ports import PortError, TokenSource
from protocol.runtime.http_connection import BrokenConnectionError, HttpConnection, LongAnswerError
from protocol.runtime.keep_alive import open_connection
from protocol.units import Seconds
from protocol.wire.wire_batches import LONGEST_BATCH, MAX_REQUESTS, OFFER, PATH, EncodedAnswer, encode_batch

_PORTS: Final = {"https": 443, "http": 80}
_OFFER: Final = OFFER.encode()


class BatchRefusedError(Exception):
    """The connection does not accept batches, or the scheduler rejected one unread: send the requests one by one."""


class BatchConnection:
    """A connection to the scheduler at ``url``; ``tls`` is for https only."""

    def __init__(self, url: str, tls: ssl.SSLContext, identity: TokenSource, deadline: Seconds) -> None:
        self._batch_size = 0
        self._url = url
        self._tls = tls if url.startswith("https:") else None
        self._identity = identity
        self._deadline = deadline
        self._connection: HttpConnection | None = None

    @property
    def most(self) -> int:
        """Maximum requests per batch; 0 if batches are not accepted."""
        return self._batch_size if self._connection is not None and self._connection.is_reusable else 0

    async def offer(self, request: bytes) -> EncodedAnswer:
        """Send one request over a new connection, and offer batches. Raises ``PortError``."""
        # A new connection, because the process behind an old one may no longer be the leader.
        self.close()
        return await self._exchange("/", request, offers=True)

    async def ask(self, requests: Sequence[bytes]) -> EncodedAnswer:
        """Send a batch of at most ``most`` requests. Raises ``PortError`` and ``BatchRefusedError``."""
        # The connection may have ended since the batch was collected.
        if len(requests) > self.most:
            raise BatchRefusedError
        return await self._exchange(PATH, encode_batch(requests), offers=False)

    def close(self) -> None:
        """Close the connection; batches need a new offer."""
        self._batch_size = 0
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _exchange(self, path: str, body: bytes, *, offers: bool) -> EncodedAnswer:
        deadline = asyncio.get_running_loop().time() + self._deadline
        try:
            message = self._message(path, body, offers=offers)
            connection = self._connection or await self._open(deadline)
            answer, content = await connection.exchange(message, deadline, LONGEST_BATCH)
        except LongAnswerError:
            what = texts.SCHEDULER_SAYS_TOO_MUCH.format(most=LONGEST_BATCH)
            raise PortError(Fault.SCHEDULER, what) from None
        except (BrokenConnectionError, OSError, ValueError) as error:
            raise no_answer(texts.SCHEDULER.format(url=self._url), error, self._deadline) from None
        finally:
            # After a failure or cancellation, a late response could be mistaken for the response to the next request.
            if self._connection is not None and not self._connection.is_reusable:
                self.close()
        if offers:
            self._batch_size = _accepted_size(answer.extra)
        return EncodedAnswer(answer.status, content, retry_after(answer.retry_after))

    async def _open(self, deadline: float) -> HttpConnection:
        url = urlsplit(self._url)
        where = url.hostname or "", url.port or _PORTS[url.scheme]
        async with asyncio.timeout_at(deadline):
            self._connection = await open_connection(*where, self._tls, _OFFER)
        return self._connection

    def _message(self, path: str, body: bytes, *, offers: bool) -> bytes:
        url, token = urlsplit(self._url), self._identity()
        lines = [
            f"POST {url.path.rstrip('/')}{path} HTTP/1.1",
            f"Host: {url.netloc}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *([f"Authorization: Bearer {token}"] if token is not None else []),
            *([f"{OFFER}: 1"] if offers else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body


def _accepted_size(offered: str) -> int:
    """The batch size that the scheduler accepts, at most ``MAX_REQUESTS``; 0 if its header is not a number."""
    # The length is limited, because converting many digits is expensive.
    return min(int(offered), MAX_REQUESTS) if offered.isascii() and offered.isdecimal() and len(offered) < 6 else 0
