"""The sockets at which runner pods get their taps.

Each device ID of the device plugin has a folder with a socket, which the kubelet mounts read-only into one pod only. So
the socket identifies the caller: the kubelet's PodResources API (v1) reports the device IDs of each pod. The kernel
removes a tap when its last descriptor is closed.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Never

import grpc
import msgspec
from google.protobuf.message import DecodeError

from deploy.neonvm.devices.wire import KUBELET_SOCKET, Grant, is_device_id
from deploy.neonvm.objects.pod_form import FLAT_MOUNT, FLAT_RESOURCE
from deploy.neonvm.ports import NetworkError
from deploy.neonvm.runner.flat_tap import SOCKET, TapOffer
from deploy.neonvm.texts import network as texts
from deploy.neonvm.texts.devices import GRPC_ERROR
from protocol.kubernetes.protobuf import Fields, message_classes
from protocol.messages import ObjectName

LOG: Final = logging.getLogger("neonvm.network")

_SECONDS: Final = 10.0  # per connection
_PAUSE: Final = 0.5

Serve = Callable[[str, socket.socket], Awaitable[None]]
"""Serves a connection of the pod that has the device ID."""


def send_tap(connection: socket.socket, descriptor: int, offer: TapOffer) -> None:
    """Send the tap's descriptor to the runner. Raises ``OSError``."""
    socket.send_fds(connection, [msgspec.json.encode(offer)], [descriptor])


class TapSockets:
    """The sockets in ``root``, one per device ID."""

    def __init__(self, root: Path, serve: Serve) -> None:
        self._root = root
        self._serve = serve
        self._listening: dict[str, asyncio.Task[Never]] = {}

    def restore(self) -> None:
        """Listen again at the sockets of an earlier process. Raises ``OSError``."""
        self._root.mkdir(parents=True, exist_ok=True)
        for folder in self._root.iterdir():
            if is_device_id(folder.name):
                self._listen(folder)

    def make(self, device: str) -> Path:
        """Create a new folder and socket for the pod that gets ``device``. Raises ``OSError``."""
        # An earlier pod may still have a connection or the old folder; both must stop working.
        if (task := self._listening.pop(device, None)) is not None:
            task.cancel()
        # The ID comes from the kubelet and becomes a path that is deleted.
        if not is_device_id(device):
            raise OSError(texts.INVALID_DEVICE.format(device=device))
        folder = self._root / device
        _remove(folder)
        folder.mkdir(mode=0o755)
        self._listen(folder)
        return folder

    def _listen(self, folder: Path) -> None:
        # SEQPACKET: the offer and its descriptor are one message.
        path, listener = folder / SOCKET, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            path.unlink(missing_ok=True)
            listener.setblocking(False)
            listener.bind(str(path))
            # The pod runs as an unknown user; only this pod sees the socket.
            path.chmod(0o666)
            listener.listen(1)
        except BaseException:
            listener.close()
            raise
        task = asyncio.ensure_future(self._accept(folder.name, listener))
        # Not in the task itself, which may be cancelled before it runs.
        task.add_done_callback(lambda _: listener.close())
        self._listening[folder.name] = task

    async def _accept(self, device: str, listener: socket.socket) -> Never:
        loop, is_failing = asyncio.get_running_loop(), False
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                # For example too many open files; the pod retries. Only the first of consecutive failures is logged.
                if not is_failing:
                    LOG.warning(texts.ACCEPT_FAILED, extra={"device": device, "reason": str(error)})
                is_failing = True
                await asyncio.sleep(_PAUSE)
                continue
            is_failing = False
            with connection, suppress(TimeoutError, OSError):
                async with asyncio.timeout(_SECONDS):
                    await self._serve(device, connection)
            await asyncio.sleep(_PAUSE)  # rate limit

    def close(self) -> None:
        """Stop listening. The folders stay, so waiting pods reach the next process."""
        for task in self._listening.values():
            task.cancel()
        self._listening.clear()


def _remove(path: Path) -> None:
    """Remove a file or folder without following links. Raises ``OSError``."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


COUNT: Final = 1000
"""Number of devices; more than a node has pods."""

_CALL_SECONDS: Final = 5.0
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)
"""A shared subchannel would stay in backoff after a restart of the kubelet."""


def grant_sockets(sockets: TapSockets, requests: list[list[str]]) -> list[Grant]:
    """Mount a new socket folder into each container that requests a device. Raises ``OSError``."""
    # A container requests at most one device.
    return [Grant(mounts={FLAT_MOUNT: str(sockets.make(ids[0]))} if ids else {}) for ids in requests]


async def pod_with_device(folder: Path, device: str) -> ObjectName | None:
    """The pod that has ``device``, from the kubelet's PodResources API at its socket in ``folder``; None unless it is
    exactly one. Raises ``NetworkError``.
    """
    async with grpc.aio.insecure_channel(f"unix:{folder / KUBELET_SOCKET}", options=_OPTIONS) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(LIST)
        try:
            pods = pods_with_device(await call(LIST_REQUEST, timeout=_CALL_SECONDS), FLAT_RESOURCE, device)
        except grpc.aio.AioRpcError as error:
            details = GRPC_ERROR.format(code=error.code().name, details=error.details())
            raise NetworkError(texts.POD_UNKNOWN.format(device=device, error=details)) from error
    return pods[0] if len(pods) == 1 else None


LIST: Final = "/v1.PodResourcesLister/List"
# The request has no fields.
LIST_REQUEST: Final = b""

_MESSAGES: Final[dict[str, Fields]] = {
    "ListPodResourcesResponse": (("pod_resources", 1, "many PodResources"),),
    # Needed fields only: protobuf skips unknown ones.
    "PodResources": (("name", 1, "string"), ("namespace", 2, "string"), ("containers", 3, "many ContainerResources")),
    "ContainerResources": (("name", 1, "string"), ("devices", 2, "many ContainerDevices")),
    "ContainerDevices": (("resource_name", 1, "string"), ("device_ids", 2, "many string")),
}
MESSAGES: Final = message_classes("podresources.v1", _MESSAGES, "proto3")
"""Message classes by name."""


def pods_with_device(response: bytes, resource: str, device: str) -> list[ObjectName]:
    """The pods that have ``device`` of ``resource``. Raises ``NetworkError``."""
    # Any: the class is created at run time.
    message: Any = MESSAGES["ListPodResourcesResponse"]()
    try:
        message.ParseFromString(response)
    except DecodeError as error:
        raise NetworkError(texts.BAD_RESPONSE.format(error=error)) from None
    return [
        ObjectName(pod.namespace, pod.name)
        for pod in message.pod_resources
        if any(
            devices.resource_name == resource and device in devices.device_ids
            for container in pod.containers
            for devices in container.devices
        )
    ]
