"""Messages of the kubelet's device plugin API v1beta1 (pure).

Our devices are only units that pods can request: there are more of them than pods, and none stands for a device file.
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
"""The kubelet's socket in the device plugin folder; created at each start."""

_DEVICE_PREFIX: Final = "place-"
NO_OPTIONS: Final = b""
"""Empty DevicePluginOptions: no PreStartContainer, no GetPreferredAllocation."""

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
"""Message classes by name."""


class MalformedPluginMessageError(ValueError):
    """The kubelet's request cannot be decoded."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Devices of a container (read-write), and read-only mounts (path inside → folder on the node)."""

    devices: Sequence[str] = ()
    mounts: Mapping[str, str] = field(default_factory=dict)


def _message(name: str, **fields: str) -> Any:
    # Any: the classes are created at run time.
    return MESSAGES[name](**fields)


def register_request(resource: str, endpoint: str) -> bytes:
    """A request to register ``resource``, served at the socket ``endpoint`` (a file name in the kubelet's folder)."""
    request = _message("RegisterRequest", version=VERSION, endpoint=endpoint, resource_name=resource)
    return bytes(request.SerializeToString())


def device_list(count: int) -> bytes:
    """A list of ``count`` healthy devices."""
    devices = _message("ListAndWatchResponse")
    for number in range(count):
        devices.devices.add(ID=f"{_DEVICE_PREFIX}{number}", health="Healthy")
    return bytes(devices.SerializeToString())


def is_device_id(name: str) -> bool:
    """Return True if ``name`` is a device ID of ``device_list``."""
    # Exact: the ID becomes a path on the node.
    return name.startswith(_DEVICE_PREFIX) and name.removeprefix(_DEVICE_PREFIX).isdecimal()


def requested_devices(request: bytes) -> list[list[str]]:
    """The device IDs of each container in an AllocateRequest. Raises ``MalformedPluginMessageError``."""
    message = _message("AllocateRequest")
    try:
        message.ParseFromString(request)
    except DecodeError as error:
        raise MalformedPluginMessageError(texts.BAD_REQUEST.format(error=error)) from None
    return [list(container.devices_ids) for container in message.container_requests]


def allocate_response(grants: Iterable[Grant]) -> bytes:
    """The AllocateResponse with a grant, which may be empty, for each container."""
    response = _message("AllocateResponse")
    for grant in grants:
        container = response.container_responses.add()
        for path in grant.devices:
            container.devices.add(container_path=path, host_path=path, permissions="rw")
        for inside, outside in grant.mounts.items():
            container.mounts.add(container_path=inside, host_path=outside, read_only=True)
    return bytes(response.SerializeToString())
