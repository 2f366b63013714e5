"""The device plugin's gRPC service, which the kubelet calls."""

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
    allocate_response,
    device_list,
    requested_devices,
)
from deploy.neonvm.texts import devices as texts

LOG: Final = logging.getLogger("neonvm.devices")

DRIVERS: Final = Path("/sys/class/misc")
"""The node's misc drivers, visible in every container."""

Context = grpc.aio.ServicerContext[bytes, bytes]


def present_devices(names: Sequence[str], drivers: Path = DRIVERS) -> list[str]:
    """The paths of the devices ``names`` whose drivers are loaded on the node."""
    # This container's /dev does not show the node's devices.
    return [f"/dev/{name}" for name in names if (drivers / name).exists()]


class Plugin:
    """Offers ``count`` devices of a resource. ``watchers`` is the number of connected kubelets.

    ``grant`` receives the device IDs that each container requests, and returns a ``Grant`` for each; it may raise
    ``OSError``.
    """

    def __init__(self, count: int, grant: Callable[[list[list[str]]], Iterable[Grant]]) -> None:
        self._device_list = device_list(count)
        self._grant = grant
        self.watchers = 0

    def handler(self) -> grpc.GenericRpcHandler:
        """Handler for a ``grpc.aio`` server."""
        unary = grpc.unary_unary_rpc_method_handler
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "GetDevicePluginOptions": unary(self.options),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.list_and_watch),
            "Allocate": unary(self.allocate),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def options(self, _: bytes, __: Context) -> bytes:
        """The plugin's options: it has no optional calls."""
        return NO_OPTIONS

    async def list_and_watch(self, _: bytes, __: Context) -> AsyncIterator[bytes]:
        """Send the list of devices, which never changes, and keep the stream open."""
        self.watchers += 1
        try:
            yield self._device_list
            # If the stream ends, the kubelet considers the plugin gone.
            await asyncio.Event().wait()
        finally:
            self.watchers -= 1

    async def allocate(self, request: bytes, context: Context) -> bytes:
        """Grant each container its devices and mounts."""
        try:
            return allocate_response(self._grant(requested_devices(request)))
        except MalformedPluginMessageError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except OSError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


def grant_all_devices(
    devices: Callable[[], Sequence[str]], telemetry: DeviceTelemetry, requests: list[list[str]]
) -> list[Grant]:
    """Grant all of the node's ``devices`` (paths) to each container."""
    paths = list(devices())
    telemetry.allocated(len(requests))
    LOG.info(texts.ALLOCATED, extra={"devices": paths, "containers": len(requests)})
    return [Grant(paths)] * len(requests)
