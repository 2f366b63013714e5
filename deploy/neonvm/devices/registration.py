"""Keeps a device plugin registered with the node's kubelet.

A kubelet that starts removes all plugins' sockets and creates its own again. So the plugin registers again if the
kubelet's socket is new or its own is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Never

import grpc

from deploy.neonvm.devices.plugin import Plugin
from deploy.neonvm.devices.wire import KUBELET_SOCKET, REGISTER, register_request
from deploy.neonvm.texts import devices as texts
from protocol.backoff import Backoff, Retries
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

LOG: Final = logging.getLogger("neonvm.devices")

CHECK_EVERY: Final = Seconds(1.0)
UNWATCHED: Final = Seconds(10.0)
"""Register again if the kubelet has not been connected for this long; it connects within milliseconds."""

_REGISTER_SECONDS: Final = 5.0
_BACKOFF: Final = Backoff(Seconds(1.0), Seconds(30.0))


class RegistrationError(Exception):
    """The kubelet rejected the plugin, or its folder cannot be used."""


class Registration:
    """Keeps ``plugin`` registered for the extended ``resource`` until ``run`` is cancelled. ``folder`` is the kubelet's
    device plugin folder. ``registered`` is called with ``done`` or ``failed`` after each attempt.
    """

    def __init__(
        self, resource: str, folder: Path, plugin: Plugin, clock: Clock, registered: Callable[[str], None]
    ) -> None:
        self._resource = resource
        self._folder = folder
        self._socket = folder / f"{resource.replace('/', '_')}.sock"
        self._plugin = plugin
        self._clock = clock
        self._count = registered
        self._server: grpc.aio.Server | None = None
        self._registered_with: tuple[int, int] | None = None
        self._watched_at = Instant(0.0)

    @property
    def is_registered(self) -> bool:
        """True if the kubelet has accepted the plugin and is connected."""
        return self._registered_with is not None and self._plugin.watchers > 0

    async def run(self) -> Never:
        """Register the plugin, and register it again whenever necessary."""
        retries = Retries(_BACKOFF)
        try:
            while True:
                pause = CHECK_EVERY
                try:
                    await self.check()
                    retries.succeeded()
                except (RegistrationError, OSError) as error:
                    pause = retries.failed(self._clock.jitter())
                    self._count("failed")
                    LOG.warning(texts.REGISTRATION_FAILED, extra={"reason": str(error)})
                await self._clock.sleep(pause)
        finally:
            await self._stop_server()

    async def check(self) -> None:
        """Register if the kubelet does not know the plugin. Raises ``RegistrationError``."""
        kubelet = _identity(self._folder / KUBELET_SOCKET)
        if self._plugin.watchers:
            self._watched_at = self._clock.now()
        # No kubelet is running.
        if kubelet is None:
            self._registered_with = None
        elif kubelet != self._registered_with or self._is_lost():
            self._registered_with = None
            # Serve first: the kubelet connects before it answers the registration.
            await self._restart_server()
            await self._register()
            self._registered_with, self._watched_at = kubelet, self._clock.now()

    def _is_lost(self) -> bool:
        return _identity(self._socket) is None or self._clock.now() - self._watched_at > UNWATCHED

    async def _restart_server(self) -> None:
        await self._stop_server()
        self._server = server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        server.add_generic_rpc_handlers((self._plugin.handler(),))
        try:
            server.add_insecure_port(f"unix:{self._socket}")
        except RuntimeError as error:
            raise RegistrationError(texts.NO_SOCKET.format(folder=self._folder, error=error)) from error
        await server.start()

    async def _register(self) -> None:
        request = register_request(self._resource, self._socket.name)
        async with grpc.aio.insecure_channel(f"unix:{self._folder / KUBELET_SOCKET}") as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(REGISTER)
            try:
                await call(request, timeout=_REGISTER_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise RegistrationError(
                    texts.GRPC_ERROR.format(code=error.code().name, details=error.details())
                ) from error
        self._count("done")
        LOG.info(texts.REGISTERED, extra={"resource": self._resource})

    async def _stop_server(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)
        # Without the socket, the kubelet stops offering the resource; pods keep their devices.
        self._socket.unlink(missing_ok=True)


def _identity(socket: Path) -> tuple[int, int] | None:
    """Identity of a socket, different from any earlier socket at the same path; None if it does not exist."""
    try:
        stat = socket.stat()
    except FileNotFoundError:
        return None
    # Inode numbers may be reused.
    return stat.st_ino, stat.st_ctime_ns
