"""The protobuf messages of the Cluster Autoscaler's expander, described by one table (S2.8a).

Names are those of the wire; the Protocols are what type checkers see of the classes.
"""
# ruff: noqa: N802, N803, N815 - names of the wire and of protobuf

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from protocol.kubernetes.protobuf import KUBERNETES, Fields, message_classes, only

METHOD: Final = "/grpcplugin.Expander/BestOptions"
SERVICE: Final = "grpcplugin.Expander"

_OF_KUBERNETES: Final = ("Pod", "PodSpec", "Container", "Requirements", "Quantity", "Node", "NodeStatus")
_MESSAGES: Final[dict[str, Fields]] = {
    "BestOptionsRequest": (
        ("options", 1, "many Option"),
        # Older releases embed the messages here, newer ones have their bytes in 3. On the wire the two are alike.
        ("nodeMap", 2, "map bytes"),
        ("nodeBytesMap", 3, "map bytes"),
    ),
    "BestOptionsResponse": (("options", 1, "many Option"),),
    "Option": (
        ("nodeGroupId", 1, "string"),
        ("nodeCount", 2, "int32"),
        ("debug", 3, "string"),
        # Likewise: embedded in older releases, bytes in 5 in newer ones.
        ("pod", 4, "many bytes"),
        ("podBytes", 5, "many bytes"),
    ),
    **{name: KUBERNETES[name] for name in _OF_KUBERNETES},
    # Only the fields that a decision needs; protobuf skips the rest.
    "ObjectMeta": only("ObjectMeta", "name", "namespace", "uid", "labels"),
}


class QuantityMessage(Protocol):
    """A Kubernetes quantity."""

    string: str


class RequirementsMessage(Protocol):
    """Requests of a container, or of a pod as a whole."""

    requests: Mapping[str, QuantityMessage]


class ContainerMessage(Protocol):
    """A container of a pod."""

    resources: RequirementsMessage
    restartPolicy: str


class PodSpecMessage(Protocol):
    """Containers of a pod."""

    containers: Sequence[ContainerMessage]
    initContainers: Sequence[ContainerMessage]
    overhead: Mapping[str, QuantityMessage]
    resources: RequirementsMessage


class MetaMessage(Protocol):
    """Identity and labels."""

    name: str
    namespace: str
    uid: str
    labels: Mapping[str, str]


class PodMessage(Protocol):
    """A pending pod."""

    metadata: MetaMessage
    spec: PodSpecMessage


class StatusMessage(Protocol):
    """Resources of a node."""

    capacity: Mapping[str, QuantityMessage]
    allocatable: Mapping[str, QuantityMessage]


class NodeMessage(Protocol):
    """The template of a group's nodes."""

    metadata: MetaMessage
    status: StatusMessage


class OptionMessage(Protocol):
    """One group that could grow."""

    nodeGroupId: str
    nodeCount: int
    pod: Sequence[bytes]
    podBytes: Sequence[bytes]


class RequestMessage(Protocol):
    """The question."""

    options: Sequence[OptionMessage]
    nodeMap: Mapping[str, bytes]
    nodeBytesMap: Mapping[str, bytes]


class OptionListMessage(Protocol):
    """The options of an answer."""

    def add(self, *, nodeGroupId: str, nodeCount: int, debug: str) -> object:
        """Appends one option."""


class ResponseMessage(Protocol):
    """The answer."""

    options: OptionListMessage

    def SerializeToString(self) -> bytes:
        """The bytes on the wire."""


MESSAGES: Final = message_classes("grpcplugin", _MESSAGES, "proto3")
"""The message classes by name."""
