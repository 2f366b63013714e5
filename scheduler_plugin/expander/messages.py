"""The protobuf messages of the Cluster Autoscaler's expander, described by one table (S2.8a).

Rules that hold here:

- Fields 2 (nodes) and 4 (pods) carry embedded messages in older releases, 3 and 5 carry the same messages as bytes in
  newer ones. On the wire the two are alike, so all four are declared as bytes.
- Of Pod and Node only the fields that a decision needs are declared; protobuf skips the rest.
- Descriptors live in a pool of their own: they cannot collide with generated code of the same package.
- Names are those of the wire; the Protocols are what type checkers see of the classes.
"""
# ruff: noqa: N802, N803, N815 - names of the wire and of protobuf

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

METHOD: Final = "/grpcplugin.Expander/BestOptions"
SERVICE: Final = "grpcplugin.Expander"

_PACKAGE: Final = "grpcplugin"
_F = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {"string": _F.TYPE_STRING, "bytes": _F.TYPE_BYTES, "int32": _F.TYPE_INT32}

# message -> (field, number, type); "many T" repeats, "map T" maps strings to T; any other name is a message below.
_MESSAGES: Final[dict[str, tuple[tuple[str, int, str], ...]]] = {
    "BestOptionsRequest": (
        ("options", 1, "many Option"),
        ("nodeMap", 2, "map bytes"),
        ("nodeBytesMap", 3, "map bytes"),
    ),
    "BestOptionsResponse": (("options", 1, "many Option"),),
    "Option": (
        ("nodeGroupId", 1, "string"),
        ("nodeCount", 2, "int32"),
        ("debug", 3, "string"),
        ("pod", 4, "many bytes"),
        ("podBytes", 5, "many bytes"),
    ),
    "Pod": (("metadata", 1, "ObjectMeta"), ("spec", 2, "PodSpec")),
    "Node": (("metadata", 1, "ObjectMeta"), ("status", 3, "NodeStatus")),
    "ObjectMeta": (
        ("name", 1, "string"),
        ("namespace", 3, "string"),
        ("uid", 5, "string"),
        ("labels", 11, "map string"),
    ),
    "PodSpec": (
        ("containers", 2, "many Container"),
        ("initContainers", 20, "many Container"),
        ("overhead", 32, "map Quantity"),
    ),
    "Container": (("resources", 8, "Requirements"), ("restartPolicy", 24, "string")),
    "Requirements": (("requests", 2, "map Quantity"),),
    "Quantity": (("string", 1, "string"),),
    "NodeStatus": (("capacity", 1, "map Quantity"), ("allocatable", 2, "map Quantity")),
}


class QuantityMessage(Protocol):
    """A Kubernetes quantity."""

    string: str


class RequirementsMessage(Protocol):
    """What a container asks for."""

    requests: Mapping[str, QuantityMessage]


class ContainerMessage(Protocol):
    """A container of a pod."""

    resources: RequirementsMessage
    restartPolicy: str


class PodSpecMessage(Protocol):
    """What a pod runs."""

    containers: Sequence[ContainerMessage]
    initContainers: Sequence[ContainerMessage]
    overhead: Mapping[str, QuantityMessage]


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
    """What a node has."""

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


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="expander.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            _add_field(message, field, number, kind)
    return file


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str) -> None:
    form, _, element = kind.rpartition(" ")
    field = message.field.add(name=name, number=number, label=_F.LABEL_REPEATED if form else _F.LABEL_OPTIONAL)
    if form == "map":
        entry = message.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, element)
        element = f"{message.name}.{entry.name}"
    if element in _TYPES:
        field.type = _TYPES[element]
    else:
        field.type, field.type_name = _F.TYPE_MESSAGE, f".{_PACKAGE}.{element}"


def _classes() -> dict[str, type[Message]]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


MESSAGES: Final = _classes()
"""The message classes by name."""
