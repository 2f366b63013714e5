"""The kubelet's PodResources API v1, as far as the network program asks it: which pod has which place (pure)."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import DecodeError

from protocol.kubernetes.protobuf import Fields, message_classes
from protocol.messages import ObjectName

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
        raise MalformedAnswerError(f"expected a ListPodResourcesResponse: {error}") from None
    return [
        ObjectName(pod.namespace, pod.name)
        for pod in message.pod_resources
        if any(
            devices.resource_name == resource and place in devices.device_ids
            for container in pod.containers
            for devices in container.devices
        )
    ]
