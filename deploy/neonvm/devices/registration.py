"""Keeps a plugin registered with the kubelet of its node.

A kubelet that starts removes all sockets of plugins and makes its own again. So the plugin serves and registers
again if the kubelet's socket is new or its own is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Never

import grpc

from deploy.neonvm.devices.plugin import Plugin
from deploy.neonvm.devices.wire import KUBELET_SOCKET, REGISTER, registration
from deploy.neonvm.texts import devices as texts
from protocol.backoff import Backoff, Retries
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

LOG: Final = logging.getLogger("neonvm.devices")

LOOK: Final = Seconds(1.0)
UNWATCHED: Final = Seconds(10.0)
"""A kubelet follows within milliseconds; one that does not follow for this long has lost the plugin."""

_REGISTER_SECONDS: Final = 5.0
_BACKOFF: Final = Backoff(Seconds(1.0), Seconds(30.0))


class RegistrationError(Exception):
    """The kubelet does not take the plugin, or its folder cannot be used."""


@dataclass(frozen=True, slots=True)
class DeviceOffer:
    """The resource that is offered, and the folder of the kubelet's and its plugins' sockets."""

    resource: str
    folder: Path

    @property
    def endpoint(self) -> str:
        """The name of our socket in the folder."""
        return f"{self.resource.replace('/', '_')}.sock"


class Registration:
    """One plugin on one node. ``run`` works until cancelled. ``registered`` gets the outcome of each attempt: ``done``
    or ``failed``.
    """

    def __init__(self, offer: DeviceOffer, plugin: Plugin, clock: Clock, registered: Callable[[str], None]) -> None:
        self._offer = offer
        self._plugin = plugin
        self._clock = clock
        self._count = registered
        self._server: grpc.aio.Server | None = None
        self._known: tuple[int, int] | None = None
        self._watched_at = Instant(0.0)

    @property
    def is_registered(self) -> bool:
        """True if the kubelet has taken the plugin and follows it."""
        return self._known is not None and self._plugin.watchers > 0

    async def run(self) -> Never:
        """Registers, and again whenever that is needed."""
        retries = Retries(_BACKOFF)
        try:
            while True:
                pause = LOOK
                try:
                    await self.look()
                    retries.succeeded()
                except (RegistrationError, OSError) as error:
                    pause = retries.failed(self._clock.jitter())
                    self._count("failed")
                    LOG.warning(texts.NOT_TAKEN, extra={"reason": str(error)})
                await self._clock.sleep(pause)
        finally:
            await self._withdraw()

    async def look(self) -> None:
        """Registers if the kubelet does not know the plugin. Raises ``RegistrationError``."""
        kubelet = _identity(self._offer.folder / KUBELET_SOCKET)
        if self._plugin.watchers:
            self._watched_at = self._clock.now()
        # No kubelet runs; the next one will not know the plugin.
        if kubelet is None:
            self._known = None
        elif kubelet != self._known or self._is_lost():
            self._known = None
            # The kubelet connects to the socket while it answers the registration, so the plugin serves first.
            await self._serve_anew()
            await self._register()
            self._known, self._watched_at = kubelet, self._clock.now()

    def _is_lost(self) -> bool:
        if _identity(self._offer.folder / self._offer.endpoint) is None:
            return True
        # A kubelet whose stream has ended offers nothing, until the plugin registers again.
        return self._clock.now() - self._watched_at > UNWATCHED

    async def _serve_anew(self) -> None:
        await self._withdraw()
        self._server = server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        server.add_generic_rpc_handlers((self._plugin.handler(),))
        try:
            server.add_insecure_port(f"unix:{self._offer.folder / self._offer.endpoint}")
        except RuntimeError as error:
            raise RegistrationError(texts.NO_SOCKET.format(folder=self._offer.folder, error=error)) from error
        await server.start()

    async def _register(self) -> None:
        request = registration(self._offer.resource, self._offer.endpoint)
        async with grpc.aio.insecure_channel(f"unix:{self._offer.folder / KUBELET_SOCKET}") as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(REGISTER)
            try:
                await call(request, timeout=_REGISTER_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise RegistrationError(
                    texts.GRPC_ERROR.format(code=error.code().name, details=error.details())
                ) from error
        self._count("done")
        LOG.info(texts.REGISTERED, extra={"resource": self._offer.resource})

    async def _withdraw(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)
        # Without the socket the node stops offering the resource at once; pods keep what they have.
        (self._offer.folder / self._offer.endpoint).unlink(missing_ok=True)


def _identity(socket: Path) -> tuple[int, int] | None:
    """Identity of a socket, different from that of an earlier one at the same path; None if there is none."""
    try:
        stat = socket.stat()
    except FileNotFoundError:
        return None
    # The file system may reuse an inode number at once.
    return stat.st_ino, stat.st_ctime_ns
