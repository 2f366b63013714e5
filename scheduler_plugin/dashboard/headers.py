"""Security headers of all responses, and the check of host names."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.runtime.url_hosts import host_name
from scheduler_plugin.dashboard import texts

POLICY: Final = (
    # Only the page's own files: nothing external, nothing inline, no framing.
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class SafeHeaders:
    """Adds the headers to responses of ``app``; requests must be to one of ``hosts``, or to any if None."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                # No caching by default; the page's own files override this.
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        # Against DNS rebinding.
        if self._hosts is not None and host_of(scope) not in self._hosts:
            await PlainTextResponse(f"{texts.OTHER_HOST}\n", 421)(scope, receive, sending)
            return
        await self._app(scope, receive, sending)


def host_of(scope: Scope) -> str:
    """The name in the ``Host`` header, without port; empty unless there is exactly one such header."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    # With two headers a proxy may have checked the other one.
    if len(hosts) != 1:
        return ""
    return host_name(hosts[0].decode("latin-1"))
