"""Scrapes the guest's node_exporter over HTTP (S4.3).

The guest is not trusted: a page that is late or exceeds ``LARGEST`` bytes is an error, and large pages are read less
often.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import SplitResult, urlencode, urlsplit

from agent import texts
from agent.adapters.exposition import COLLECTORS, read_sample
from agent.adapters.http_errors import no_answer
from agent.core.events import Fault
from agent.core.guest import GuestSample
from agent.ports import PortError
from protocol.runtime.http_connection import BrokenConnectionError, HttpConnection, LongAnswerError
from protocol.runtime.keep_alive import open_connection
from protocol.units import Seconds

LARGEST: Final = 1024 * 1024
"""Maximum page in bytes. A full page of node_exporter has about 100 KiB, and each CPU adds half a KiB."""

BYTES_PER_SECOND: Final = 512 * 1024
"""Maximum rate of reading a guest's pages: a hostile one takes 40 ms, in which the agent does nothing for other VMs."""

IDENTITY_ENCODING: Final = "Accept-Encoding: identity"
"""Compressing a small page costs the guest more than sending it, and a compressed one could decompress to any size."""


SELECTIONS: Final = (
    *(tuple(name for name in COLLECTORS if name not in off) for off in ((), ("textfile",), ("vmstat",))),
    tuple(name for name in COLLECTORS if name not in {"textfile", "vmstat"}),
    (),
)
"""Collectors to request. If the exporter rejects a selection, use the next; the empty one requests all."""


class NodeExporter:
    """The node_exporter of a guest at ``url`` (``http:``)."""

    def __init__(self, url: str, deadline: Seconds) -> None:
        self._url = url
        self._deadline = deadline
        self._refused = 0
        self._request = b""
        self._connection: HttpConnection | None = None
        self._paid_until = 0.0

    async def scrape(self) -> GuestSample:
        """Scrape the guest, after a pause if its last page was large. Raises ``PortError``."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._paid_until - loop.time()))
        try:
            page = await self._page(loop.time() + self._deadline)
        except LongAnswerError:
            self._paid_until = loop.time() + LARGEST / BYTES_PER_SECOND
            raise PortError(Fault.GUEST, texts.METRICS_TOO_LONG.format(most=LARGEST)) from None
        except (BrokenConnectionError, OSError, ValueError) as error:
            raise no_answer(texts.METRICS.format(url=self._url), error, self._deadline) from None
        self._paid_until = loop.time() + len(page) / BYTES_PER_SECOND
        return read_sample(page)

    def close(self) -> None:
        """Close the connection; the next scrape opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _page(self, deadline: float) -> bytes:
        """Fetch the page. Raises ``ValueError`` for a URL without an address."""
        connection = self._connection
        if connection is None or not connection.is_reusable:
            self.close()
            # A bare connection, kept open between scrapes: with httpx2, a scrape took more CPU than the rest of the
            # agent (decision 8).
            connection = self._connection = await self._open(deadline)
        try:
            answer, page = await connection.exchange(self._request, deadline, LARGEST)
        finally:
            if not connection.is_reusable:
                self.close()
        # node_exporter returns 400 if ``collect[]`` names a disabled collector; try the next selection from now on.
        if answer.status == 400 and SELECTIONS[self._refused]:
            self._refused += 1
            self.close()
        if answer.status != 200:
            raise PortError(Fault.GUEST, texts.METRICS_STATUS.format(url=self._url, status=answer.status))
        return page

    async def _open(self, deadline: float) -> HttpConnection:
        url = urlsplit(self._url)
        # Built once per connection: the request changes only with the selection.
        self._request = _request(url, SELECTIONS[self._refused])
        async with asyncio.timeout_at(deadline):
            return await open_connection(url.hostname or "", url.port or 80)


def _request(url: SplitResult, collectors: tuple[str, ...]) -> bytes:
    query = [part for part in (url.query, urlencode([("collect[]", name) for name in collectors])) if part]
    target = "?".join((url.path or "/", *(["&".join(query)] if query else [])))
    headers = f"Host: {url.netloc}\r\nUser-Agent: autoscale-agent\r\n{IDENTITY_ENCODING}\r\n\r\n"
    return f"GET {target} HTTP/1.1\r\n{headers}".encode()
