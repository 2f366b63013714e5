"""The kubelet's device plugin API v1beta1, as far as this plugin speaks it: methods and messages (pure).

What the kubelet calls a device is here a place for one pod: there are more of them than pods, so they limit nothing,
and only let a pod ask for whatever the node has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import DecodeError

from deploy.neonvm.texts import devices as texts
from protocol.kubernetes.protobuf import Fields, message_classes

VERSION: Final = "v1beta1"
SERVICE: Final = "v1beta1.DevicePlugin"
REGISTER: Final = "/v1beta1.Registration/Register"
KUBELET_SOCKET: Final = "kubelet.sock"
"""The kubelet's own socket, in the folder of the plugins'. It makes a new one with each start."""

_PLACE: Final = "place-"
NO_OPTIONS: Final = b""
"""No call before a container starts, and no preference for which place it gets."""

_MESSAGES: Final[dict[str, Fields]] = {
    "RegisterRequest": (("version", 1, "string"), ("endpoint", 2, "string"), ("resource_name", 3, "string")),
    "ListAndWatchResponse": (("devices", 1, "many Device"),),
    "Device": (("ID", 1, "string"), ("health", 2, "string")),
    "AllocateRequest": (("container_requests", 1, "many ContainerAllocateRequest"),),
    "ContainerAllocateRequest": (("devices_ids", 1, "many string"),),
    "AllocateResponse": (("container_responses", 1, "many ContainerAllocateResponse"),),
    "ContainerAllocateResponse": (("mounts", 2, "many Mount"), ("devices", 3, "many DeviceSpec")),
    "Mount": (("container_path", 1, "string"), ("host_path", 2, "string"), ("read_only", 3, "bool")),
    "DeviceSpec": (("container_path", 1, "string"), ("host_path", 2, "string"), ("permissions", 3, "string")),
}
MESSAGES: Final = message_classes("v1beta1", _MESSAGES, "proto3")
"""The message classes by name."""


class MalformedPluginMessageError(ValueError):
    """The kubelet's request cannot be read."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A container's devices, to read and write, and folders of the node by path inside, read-only."""

    devices: Sequence[str] = ()
    mounts: Mapping[str, str] = field(default_factory=dict)


def _message(name: str, **fields: str) -> Any:
    # Any: the classes are made at run time, and no type knows their fields.
    return MESSAGES[name](**fields)


def registration(resource: str, endpoint: str) -> bytes:
    """Tells the kubelet that ``resource`` is offered at the socket ``endpoint``, a name in its folder."""
    # The endpoint is a bare name: the kubelet looks for it in its own folder of plugins.
    request = _message("RegisterRequest", version=VERSION, endpoint=endpoint, resource_name=resource)
    return bytes(request.SerializeToString())


def listed(count: int) -> bytes:
    """This many places. They are healthy as long as this program is, also on a node that has nothing to hand out."""
    places = _message("ListAndWatchResponse")
    for number in range(count):
        places.devices.add(ID=f"{_PLACE}{number}", health="Healthy")
    return bytes(places.SerializeToString())


def is_place(name: str) -> bool:
    """Return True for the name of a place, as ``listed`` writes it."""
    # Exact, because the name becomes a path on the node.
    return name.startswith(_PLACE) and name.removeprefix(_PLACE).isdecimal()


def places_in(request: bytes) -> list[list[str]]:
    """The places that the kubelet has chosen for each container. Raises ``MalformedPluginMessageError``."""
    message = _message("AllocateRequest")
    try:
        message.ParseFromString(request)
    except DecodeError as error:
        raise MalformedPluginMessageError(texts.BAD_REQUEST.format(error=error)) from None
    return [list(container.devices_ids) for container in message.container_requests]


def allocation(grants: Iterable[Grant]) -> bytes:
    """The answer that grants each container its devices and mounts; a grant may be empty."""
    response = _message("AllocateResponse")
    for grant in grants:
        container = response.container_responses.add()
        for path in grant.devices:
            container.devices.add(container_path=path, host_path=path, permissions="rw")
        for inside, outside in grant.mounts.items():
            # Read-only, so that a pod can leave nothing on the node.
            container.mounts.add(container_path=inside, host_path=outside, read_only=True)
    return bytes(response.SerializeToString())
