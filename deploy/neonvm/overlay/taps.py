"""Taps of the node, and the sockets at which runner pods are handed theirs.

Each place that the device plugin gives to a pod has a folder with a socket. The kubelet mounts it read-only into that
pod alone, so a pod can leave nothing on the node, and is known by the socket at which it calls: the kubelet says, by
its PodResources API v1, which pod has which place. The kernel removes a tap that nobody holds open.
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

from deploy.neonvm.devices.wire import KUBELET_SOCKET, Grant, is_place
from deploy.neonvm.objects.pod_form import FLAT_MOUNT, FLAT_RESOURCE
from deploy.neonvm.ports import NetworkError
from deploy.neonvm.runner.flat_tap import SOCKET, TapOffer
from deploy.neonvm.texts import network as texts
from deploy.neonvm.texts.devices import GRPC_ERROR
from protocol.kubernetes.protobuf import Fields, message_classes
from protocol.messages import ObjectName

LOG: Final = logging.getLogger("neonvm.network")

_SECONDS: Final = 10.0  # for a pod to be served before the next one may call
_PAUSE: Final = 0.5

Serve = Callable[[str, socket.socket], Awaitable[None]]
"""Serves the pod that has the named place, over its connection."""


def hand_over(connection: socket.socket, descriptor: int, offer: TapOffer) -> None:
    """Gives the tap to the runner that has called. Raises ``OSError``."""
    socket.send_fds(connection, [msgspec.json.encode(offer)], [descriptor])


class TapSockets:
    """The sockets below ``root``, one for each place; ``close`` ends them all."""

    def __init__(self, root: Path, serve: Serve) -> None:
        self._root = root
        self._serve = serve
        self._listening: dict[str, asyncio.Task[Never]] = {}

    def restore(self) -> None:
        """Listens again at the places that an earlier process has made. Raises ``OSError``."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._root.chmod(0o755)  # an earlier version let everybody write here
        for folder in self._root.iterdir():
            if is_place(folder.name):
                self._listen(folder)
                continue
            try:
                _remove(folder)  # left by a version that let pods write here
            except OSError as error:
                LOG.warning(texts.LEFTOVER, extra={"folder": folder.name, "reason": str(error)})

    def make(self, place: str) -> Path:
        """A new folder for the pod that gets ``place``. Raises ``OSError``."""
        # An earlier pod may still hold a connection or the folder of this place: both must lead nowhere from now on.
        if (task := self._listening.pop(place, None)) is not None:
            task.cancel()
        # The name comes from the kubelet, and becomes a path that is deleted.
        if not is_place(place):
            raise OSError(texts.NO_PLACE.format(place=place))
        folder = self._root / place
        _remove(folder)
        folder.mkdir(mode=0o755)
        self._listen(folder)
        return folder

    def _listen(self, folder: Path) -> None:
        # SEQPACKET keeps the offer and its descriptor in one message.
        path, listener = folder / SOCKET, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            path.unlink(missing_ok=True)
            listener.setblocking(False)
            listener.bind(str(path))
            # The pod's user is not root and not known; only this pod sees the socket at all.
            path.chmod(0o666)
            listener.listen(1)
        except BaseException:
            listener.close()
            raise
        task = asyncio.ensure_future(self._accept(folder.name, listener))
        # The task may be cancelled before it first runs, so it cannot close the listener itself.
        task.add_done_callback(lambda _: listener.close())
        self._listening[folder.name] = task

    async def _accept(self, place: str, listener: socket.socket) -> Never:
        loop, is_failing = asyncio.get_running_loop(), False
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                # Too many files are open, for example: the pod keeps calling, so it is served later. Logged once in a
                # row.
                if not is_failing:
                    LOG.warning(texts.CALL_LOST, extra={"place": place, "reason": str(error)})
                is_failing = True
                await asyncio.sleep(_PAUSE)
                continue
            is_failing = False
            with connection, suppress(TimeoutError, OSError):
                async with asyncio.timeout(_SECONDS):
                    await self._serve(place, connection)
            await asyncio.sleep(_PAUSE)  # a pod that calls again and again costs no more than this

    def close(self) -> None:
        """Stops listening. Folders stay: pods that wait call the next process."""
        for task in self._listening.values():
            task.cancel()
        self._listening.clear()


def _remove(path: Path) -> None:
    """Removes whatever is there, and follows no link. Raises ``OSError``."""
    # A pod of an earlier version could leave a link to any folder of the node.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


COUNT: Final = 1000
"""More than a node has pods."""

_CALL_SECONDS: Final = 5.0  # for one call
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)
"""Each call connects by itself: a shared subchannel would back off for long after a kubelet's restart."""


def grants(sockets: TapSockets, places: list[list[str]]) -> list[Grant]:
    """A folder with a socket of its own for each container that takes a place. Raises ``OSError``."""
    # A container asks for one place at most, so the first id is the only one.
    return [Grant(mounts={FLAT_MOUNT: str(sockets.make(ids[0]))} if ids else {}) for ids in places]


class PlaceHolders:
    """Asks the kubelet, at its socket in ``folder``, which pod has a place."""

    def __init__(self, folder: Path) -> None:
        self._address = f"unix:{folder / KUBELET_SOCKET}"

    async def __call__(self, place: str) -> ObjectName | None:
        """None unless it is exactly one. Raises ``NetworkError``."""
        async with grpc.aio.insecure_channel(self._address, options=_OPTIONS) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(LIST)
            try:
                pods = holders(await call(LIST_REQUEST, timeout=_CALL_SECONDS), FLAT_RESOURCE, place)
            except grpc.aio.AioRpcError as error:
                details = GRPC_ERROR.format(code=error.code().name, details=error.details())
                raise NetworkError(texts.POD_UNKNOWN.format(place=place, error=details)) from error
            except MalformedAnswerError as error:
                raise NetworkError(str(error)) from error
        # A place that the kubelet has given to two pods at once, or to none yet, proves nothing.
        return pods[0] if len(pods) == 1 else None


LIST: Final = "/v1.PodResourcesLister/List"
# The request has no fields, so its serialized form is empty.
LIST_REQUEST: Final = b""

_MESSAGES: Final[dict[str, Fields]] = {
    "ListPodResourcesResponse": (("pod_resources", 1, "many PodResources"),),
    # Fields that are not needed are left out: protobuf skips unknown ones.
    "PodResources": (("name", 1, "string"), ("namespace", 2, "string"), ("containers", 3, "many ContainerResources")),
    "ContainerResources": (("name", 1, "string"), ("devices", 2, "many ContainerDevices")),
    "ContainerDevices": (("resource_name", 1, "string"), ("device_ids", 2, "many string")),
}
MESSAGES: Final = message_classes("podresources.v1", _MESSAGES, "proto3")
"""The message classes by name."""


class MalformedAnswerError(ValueError):
    """The kubelet's answer cannot be read."""


def holders(response: bytes, resource: str, place: str) -> list[ObjectName]:
    """The pods that have ``place`` of ``resource``. Raises ``MalformedAnswerError``."""
    # Any: the class is made at run time, and no type knows its fields.
    message: Any = MESSAGES["ListPodResourcesResponse"]()
    try:
        message.ParseFromString(response)
    except DecodeError as error:
        # A stale or foreign server at the socket must not end the program.
        raise MalformedAnswerError(texts.BAD_ANSWER.format(error=error)) from None
    return [
        ObjectName(pod.namespace, pod.name)
        for pod in message.pod_resources
        if any(
            devices.resource_name == resource and place in devices.device_ids
            for container in pod.containers
            for devices in container.devices
        )
    ]
