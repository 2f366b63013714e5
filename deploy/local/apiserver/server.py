"""One API server with one data directory: its parts, its HTTP application, and its start and shutdown."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from deploy.local.apiserver.apimachinery.environment import Environment
from deploy.local.apiserver.apimachinery.errors import StatusError
from deploy.local.apiserver.authn.identity import ADMIN, Authenticator, Identity
from deploy.local.apiserver.controllers.garbage_collector import GarbageCollector
from deploy.local.apiserver.discovery import documents
from deploy.local.apiserver.registry.api import Api, RequestTarget, WriteOptions
from deploy.local.apiserver.resources.builtins import BUILTINS
from deploy.local.apiserver.resources.catalog import Catalog
from deploy.local.apiserver.routes.discovery_routes import discovery_routes
from deploy.local.apiserver.routes.resource_routes import ResourceRoutes
from deploy.local.apiserver.routes.responses import json_response, refusal
from deploy.local.apiserver.storage.database import ObjectDatabase
from deploy.local.apiserver.storage.store import ObjectStore
from deploy.local.private_file import secret_file
from protocol.runtime.serving.prompt_server import PromptServer

_log = logging.getLogger(__name__)

HISTORY_LIMIT: Final = 4096
"""Number of changes per resource that a watch can replay."""

INITIAL_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")

_ALL_METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]


async def _healthy(_: Request) -> Response:
    return PlainTextResponse("ok")


async def _version(_: Request) -> Response:
    return json_response(documents.VERSION)


async def _refused(_: Request, error: Exception) -> Response:
    if not isinstance(error, StatusError):
        raise error
    return refusal(error)


async def _internal_error(request: Request, error: Exception) -> Response:
    _log.error("internal error", extra={"method": request.method, "path": request.url.path}, exc_info=error)
    return refusal(StatusError(500, "InternalError", f"Internal error occurred: {error!r}"))


def create_app(api: Api, authenticator: Authenticator, closing: asyncio.Event) -> Starlette:
    """The HTTP application. Setting ``closing`` ends every watch."""
    # The bound method, because Starlette would call the instance as an ASGI application.
    resources: Callable[[Request], Awaitable[Response]] = ResourceRoutes(api, authenticator, closing).__call__
    return Starlette(
        routes=[
            *(Route(path, _healthy) for path in ("/healthz", "/readyz", "/livez")),
            Route("/version", _version),
            *discovery_routes(api.catalog, authenticator),
            # A catch-all route: CRDs add and remove resources at run time.
            Route("/{path:path}", resources, methods=_ALL_METHODS),
        ],
        exception_handlers={StatusError: _refused, Exception: _internal_error},
    )


@dataclass(frozen=True, slots=True)
class ApiServer:
    """An API server that is ready to serve. Call ``close`` when done."""

    app: Starlette
    api: Api
    authenticator: Authenticator
    garbage_collector: GarbageCollector
    closing: asyncio.Event

    async def run_controllers(self) -> None:
        """Run the garbage collector until the server closes."""
        async with asyncio.TaskGroup() as tasks:
            # The collector runs until it is cancelled.
            collecting = tasks.create_task(self.garbage_collector.run())
            await self.closing.wait()
            collecting.cancel()

    def stop_watches(self) -> None:
        """End every watch, so that connections can be closed."""
        self.closing.set()
        # Waiting watches check `closing` only when they wake.
        self.api.store.wake_all()

    def close(self) -> None:
        """Close the store."""
        self.api.store.close()


def build(data_dir: Path | None, tokens: Mapping[str, Identity], environment: Environment) -> ApiServer:
    """An API server with ``data_dir`` (None: in memory) that accepts ``tokens``."""
    if data_dir is not None:
        data_dir.mkdir(parents=True, exist_ok=True)
    store = ObjectStore(ObjectDatabase(data_dir / "state.db" if data_dir else None), HISTORY_LIMIT)
    api = Api(store, Catalog(BUILTINS), environment)
    _create_namespaces(api)
    # Tokens of a server in memory need not outlive it.
    key = secret_file(data_dir / "signing.key") if data_dir else secrets.token_urlsafe(32)
    authenticator = Authenticator(store, environment, key.encode(), tokens)
    closing = asyncio.Event()
    app = create_app(api, authenticator, closing)
    return ApiServer(app, api, authenticator, GarbageCollector(api), closing)


def _create_namespaces(api: Api) -> None:
    resource = api.catalog.builtin("namespaces")
    for name in INITIAL_NAMESPACES:
        try:
            api.create(RequestTarget(resource), {"metadata": {"name": name}}, WriteOptions())
        except StatusError as error:
            # The data directory of an earlier run has them already.
            if error.reason != "AlreadyExists":
                raise


def admin_tokens(token: str) -> Mapping[str, Identity]:
    """The administrator's token, for ``build``."""
    return {token: ADMIN}


class LocalApiServer(PromptServer):
    """A uvicorn server that ends its long-lived responses when it stops."""

    def __init__(self, app: ASGIApp, stop_streams: Callable[[], None], context: ssl.SSLContext | None) -> None:
        """Serve ``app``, with TLS if ``context`` is not None; ``stop_streams`` must end every endless response."""
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                http="h11",  # limits the size of request headers, unlike httptools, which uvicorn prefers if installed
                lifespan="off",
                timeout_keep_alive=75,
                timeout_graceful_shutdown=2,
                ws="none",
                server_header=False,
                ssl_context_factory=None if context is None else lambda *_: context,
            )
        )
        self._stop_streams = stop_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the streams, then close the connections."""
        # Watches do not end on their own and would keep their connections open.
        self._stop_streams()
        await super().shutdown(sockets)


def listen(address: str) -> socket.socket:
    """Listen at ``HOST:PORT``. Raises ``ValueError`` if malformed, ``OSError`` if the address cannot be used."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or len(port) > 5:
        raise ValueError(f"expected HOST:PORT, got {address!r}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's algorithm only if the socket has an explicit protocol.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((host.strip("[]"), int(port)))
    listening.listen(1024)
    listening.setblocking(False)
    return listening
