"""The device plugin as the kubelet calls it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import grpc

from deploy.neonvm.devices.telemetry import DeviceTelemetry
from deploy.neonvm.devices.wire import (
    NO_OPTIONS,
    SERVICE,
    Grant,
    MalformedPluginMessageError,
    allocation,
    listed,
    places_in,
)
from deploy.neonvm.texts import devices as texts

LOG: Final = logging.getLogger("neonvm.devices")

DRIVERS: Final = Path("/sys/class/misc")
"""Every container sees the node's drivers here, without access to its devices."""

Context = grpc.aio.ServicerContext[bytes, bytes]


def present(names: Sequence[str], drivers: Path = DRIVERS) -> list[str]:
    """Those of the node's devices whose drivers are loaded, as paths on the node."""
    # This container's own /dev does not show the node's devices; a driver in /sys does.
    return [f"/dev/{name}" for name in names if (drivers / name).exists()]


class Plugin:
    """Offers ``count`` places of a resource. ``watchers`` counts the kubelets that follow. ``grant`` says what the
    containers get for theirs; it may raise ``OSError``.
    """

    def __init__(self, count: int, grant: Callable[[list[list[str]]], Iterable[Grant]]) -> None:
        self._listed = listed(count)
        self._grant = grant
        self.watchers = 0

    def handler(self) -> grpc.GenericRpcHandler:
        """Handler for a ``grpc.aio`` server."""
        answered = grpc.unary_unary_rpc_method_handler
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "GetDevicePluginOptions": answered(self.options),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.list_and_watch),
            "Allocate": answered(self.allocate),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def options(self, _: bytes, __: Context) -> bytes:
        """The plugin wants no further calls."""
        return NO_OPTIONS

    async def list_and_watch(self, _: bytes, __: Context) -> AsyncIterator[bytes]:
        """All that is offered, once: it never changes. The stream lasts as long as the kubelet and this program."""
        self.watchers += 1
        try:
            yield self._listed
            # A stream that ends would tell the kubelet that the plugin is gone.
            await asyncio.Event().wait()
        finally:
            self.watchers -= 1

    async def allocate(self, request: bytes, context: Context) -> bytes:
        """Devices of each container."""
        try:
            return allocation(self._grant(places_in(request)))
        except MalformedPluginMessageError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except OSError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


def all_devices(
    devices: Callable[[], Sequence[str]], telemetry: DeviceTelemetry, places: list[list[str]]
) -> list[Grant]:
    """All devices of the node for each container. ``devices``: the paths of those that there are now."""
    paths = list(devices())
    telemetry.allocated(len(places))
    LOG.info(texts.ALLOCATED, extra={"devices": paths, "containers": len(places)})
    # The places are alike: which of them the kubelet has chosen does not matter.
    return [Grant(paths)] * len(places)
