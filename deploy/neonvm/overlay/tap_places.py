"""The network program as the kubelet sees it: a resource of which each VM on the flat network takes one.

The kubelet says which pod has which place, by its PodResources API v1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from deploy.neonvm.devices.wire import Grant
from deploy.neonvm.objects.pod_form import FLAT_MOUNT, FLAT_RESOURCE
from deploy.neonvm.overlay.taps import TapSockets
from deploy.neonvm.ports import NetworkError
from deploy.neonvm.texts import network as texts
from deploy.neonvm.texts.devices import GRPC_ERROR
from protocol.kubernetes.protobuf import Fields, message_classes
from protocol.messages import ObjectName

COUNT: Final = 1000
"""More than a node has pods."""

_SECONDS: Final = 5.0  # for one call
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)
"""Each call connects by itself: a shared subchannel would back off for long after a kubelet's restart."""


def grants(sockets: TapSockets, places: list[list[str]]) -> list[Grant]:
    """A folder with a socket of its own for each container that takes a place. Raises ``OSError``."""
    # A container asks for one place at most, so the first id is the only one.
    return [Grant(mounts={FLAT_MOUNT: str(sockets.make(ids[0]))} if ids else {}) for ids in places]


class PlaceHolders:
    """Asks the kubelet, at its socket in ``folder``, which pod has a place."""

    def __init__(self, folder: Path) -> None:
        self._address = f"unix:{folder / SOCKET}"

    async def __call__(self, place: str) -> ObjectName | None:
        """None unless it is exactly one. Raises ``NetworkError``."""
        async with grpc.aio.insecure_channel(self._address, options=_OPTIONS) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(LIST)
            try:
                pods = holders(await call(LIST_REQUEST, timeout=_SECONDS), FLAT_RESOURCE, place)
            except grpc.aio.AioRpcError as error:
                details = GRPC_ERROR.format(code=error.code().name, details=error.details())
                raise NetworkError(texts.POD_UNKNOWN.format(place=place, error=details)) from error
            except MalformedAnswerError as error:
                raise NetworkError(str(error)) from error
        # A place that the kubelet has given to two pods at once, or to none yet, proves nothing.
        return pods[0] if len(pods) == 1 else None


LIST: Final = "/v1.PodResourcesLister/List"
SOCKET: Final = "kubelet.sock"
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
