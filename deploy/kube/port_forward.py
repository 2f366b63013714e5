"""HTTP GET to a port of a pod through the API server's port-forward, which arrives from the pod's loopback address.

The API server authorizes ``pods/portforward``, so a program in the pod can trust loopback. A request through the pod
proxy is authorized too, but the pod cannot tell.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import httptools
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from protocol.kubernetes.api import ApiUnknownError, readable_error
from protocol.kubernetes.refusals import read_refusal
from protocol.messages import ObjectName
from protocol.runtime.credentials import CredentialsError
from protocol.runtime.http_connection import FRAMES
from protocol.units import Seconds

_PROTOCOL: Final = Subprotocol("v4.channel.k8s.io")
_CONNECTION: Final = 0
MAX_RESPONSE: Final = 64 * 1024 * 1024
"""Maximum size of a response in bytes, including headers and framing."""
_MAX_ERROR: Final = 1024


@dataclass(frozen=True, slots=True)
class PortForward:
    """Port-forward through the API server at ``server`` (a URL), through ``proxy`` unless it is empty."""

    server: str
    tls: ssl.SSLContext | bool
    token: Callable[[], str | None]
    headers: Sequence[tuple[str, str]] = ()
    proxy: str = ""

    async def get(self, pod: ObjectName, port: int, path: str, deadline: Seconds) -> tuple[int, bytes]:
        """Status and body of a GET. Raises ``ApiError``: refused if the API server does not forward it."""
        # http:// becomes ws://, and https:// becomes wss://.
        url = f"ws{self.server.removeprefix('http')}/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/portforward"
        try:
            token = self.token()
            async with (
                asyncio.timeout(deadline),
                connect(
                    f"{url}?ports={port}",
                    ssl=self.tls if isinstance(self.tls, ssl.SSLContext) else None,
                    subprotocols=[_PROTOCOL],
                    additional_headers=[*self.headers, *([("Authorization", f"Bearer {token}")] if token else ())],
                    proxy=self.proxy or None,
                    max_size=MAX_RESPONSE,
                    # One response needs neither compression nor pings.
                    compression=None,
                    ping_interval=None,
                    close_timeout=1,
                ) as connection,
            ):
                return await _get(connection, path)
        except InvalidStatus as error:
            response = error.response
            raise readable_error(read_refusal(response.status_code, bytes(response.body or b""))) from None
        except (OSError, TimeoutError, WebSocketException, httptools.HttpParserError, CredentialsError) as error:
            raise ApiUnknownError(f"port-forward to {pod}:{port}: {str(error) or 'timed out'}") from error


async def _get(connection: ClientConnection, path: str) -> tuple[int, bytes]:
    response = _PodResponse()
    parser = httptools.HttpResponseParser(response)
    # Without keep-alive, the response ends with the connection at the latest; compressed bodies are not supported.
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: identity\r\nConnection: close\r\n\r\n"
    await connection.send(bytes([_CONNECTION]) + request.encode())
    opened, size = set[int](), 0
    async for message in connection:
        if not isinstance(message, bytes) or not message:
            continue
        # Each message begins with its channel: 0 carries the connection's data, 1 its errors.
        channel, content = message[0], message[1:]
        if channel not in opened:
            opened.add(channel)
            # The first message of each channel starts with the port, in two bytes.
            content = content[2:]
        if channel != _CONNECTION and content:
            raise ConnectionError(content[:_MAX_ERROR].decode(errors="replace"))
        # Counted here, because the parser buffers incomplete headers.
        size += len(content)
        if size > MAX_RESPONSE:
            raise ConnectionError(f"the response exceeds {MAX_RESPONSE} bytes")
        if content:
            parser.feed_data(content)
        if response.is_complete:
            break
    # A body without a length is complete when the connection ends.
    if response.is_complete or response.ends_with_connection:
        return parser.get_status_code(), bytes(response.body)
    raise ConnectionError("the pod closed the connection")


class _PodResponse:
    def __init__(self) -> None:
        # Not a list of chunks: a chunk of a few bytes would take ten times its size in memory.
        self.body = bytearray()
        self._is_framed = self._has_head = False
        self.is_complete = False

    @property
    def ends_with_connection(self) -> bool:
        """True if the headers are complete and do not delimit the body."""
        return self._has_head and not self._is_framed

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002 - httptools' signature
        """Note whether a header delimits the body."""
        self._is_framed = self._is_framed or name.lower() in FRAMES

    def on_headers_complete(self) -> None:
        """Note that the headers are complete."""
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        """Append a chunk of the body."""
        self.body += body

    def on_message_complete(self) -> None:
        """Note that the response is complete."""
        self.is_complete = True
