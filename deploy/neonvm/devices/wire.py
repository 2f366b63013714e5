"""The kubelet's device plugin API v1beta1, as far as this plugin speaks it: methods and messages (pure).

What the kubelet calls a device is here a place for one pod: there are more of them than pods, so they limit nothing,
and only let a pod ask for whatever the node has.
"""
# ruff: noqa: N802 - names of the wire and of protobuf

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, cast

from google.protobuf.message import DecodeError

from protocol.kubernetes.protobuf import Fields, message_classes

VERSION: Final = "v1beta1"
SERVICE: Final = "v1beta1.DevicePlugin"
REGISTER: Final = "/v1beta1.Registration/Register"
KUBELET_SOCKET: Final = "kubelet.sock"
"""Where the kubelet hears plugins, in the folder of their sockets. It makes it anew with each start."""

NO_OPTIONS: Final = b""
"""No call before a container starts, and no wishes for which place it gets."""

_MESSAGES: Final[dict[str, Fields]] = {
    "RegisterRequest": (("version", 1, "string"), ("endpoint", 2, "string"), ("resource_name", 3, "string")),
    "ListAndWatchResponse": (("devices", 1, "many Device"),),
    "Device": (("ID", 1, "string"), ("health", 2, "string")),
    "AllocateRequest": (("container_requests", 1, "many ContainerAllocateRequest"),),
    "ContainerAllocateRequest": (("devices_ids", 1, "many string"),),
    "AllocateResponse": (("container_responses", 1, "many ContainerAllocateResponse"),),
    "ContainerAllocateResponse": (("devices", 3, "many DeviceSpec"),),
    "DeviceSpec": (("container_path", 1, "string"), ("host_path", 2, "string"), ("permissions", 3, "string")),
}
MESSAGES: Final = message_classes("v1beta1", _MESSAGES, "proto3")
"""The message classes by name."""


class MalformedRequestError(ValueError):
    """The kubelet's request cannot be read."""


class _Many(Protocol):
    """A repeated field."""

    def add(self, **fields: str) -> _ContainerResponse:
        """Appends one."""

    def __len__(self) -> int: ...


class _ContainerResponse(Protocol):
    """What one container gets."""

    devices: _Many


class _Message(Protocol):
    """Any of the messages, with the fields that are used of it."""

    devices: _Many
    container_requests: _Many
    container_responses: _Many

    def ParseFromString(self, serialized: bytes) -> int:
        """Reads the bytes of the wire."""

    def SerializeToString(self) -> bytes:
        """The bytes on the wire."""


def _message(name: str, **fields: str) -> _Message:
    return cast("_Message", MESSAGES[name](**fields))


def registration(resource: str, endpoint: str) -> bytes:
    """Tells the kubelet that ``resource`` is offered at the socket ``endpoint``, a name in its folder."""
    return _message("RegisterRequest", version=VERSION, endpoint=endpoint, resource_name=resource).SerializeToString()


def listed(count: int) -> bytes:
    """So many places. They are healthy as long as this program is, also on a node that has nothing to hand out."""
    places = _message("ListAndWatchResponse")
    for number in range(count):
        places.devices.add(ID=f"place-{number}", health="Healthy")
    return places.SerializeToString()


def containers_in(request: bytes) -> int:
    """For how many containers the kubelet asks. Raises ``MalformedRequestError``."""
    asked = _message("AllocateRequest")
    try:
        asked.ParseFromString(request)
    except DecodeError as error:
        raise MalformedRequestError(f"expected an AllocateRequest: {error}") from None
    return len(asked.container_requests)


def allocation(paths: Sequence[str], containers: int) -> bytes:
    """Gives each container all devices, each at its own path, to read and to write. There may be none."""
    given = _message("AllocateResponse")
    for _ in range(containers):
        _give(given.container_responses.add(), paths)
    return given.SerializeToString()


def _give(container: _ContainerResponse, paths: Iterable[str]) -> None:
    for path in paths:
        container.devices.add(container_path=path, host_path=path, permissions="rw")
