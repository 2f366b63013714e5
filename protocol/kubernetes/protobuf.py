"""Field numbers of Kubernetes' protobuf messages, and message classes created from such tables at run time.

- A table contains only the fields that a program reads, because protobuf skips the rest and decodes faster.
- Each call of ``message_classes`` uses its own descriptor pool, so nothing collides with generated code.
- The agent does not import this module, the only one here that needs the package ``protobuf``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

Fields = tuple[tuple[str, int, str], ...]
"""Name, number and type of each field. ``many T`` is repeated, ``map T`` maps strings to T; message names are types."""


def _fields(text: str) -> Fields:
    """Parse comma-separated fields, each ``name number type``."""
    parts = (field.split(maxsplit=2) for field in text.split(","))
    return tuple((name, int(number), kind) for name, number, kind in parts)


KUBERNETES: Final[Mapping[str, Fields]] = {
    "Unknown": _fields("typeMeta 1 TypeMeta, raw 2 bytes"),
    "TypeMeta": _fields("apiVersion 1 string, kind 2 string"),
    "ObjectMeta": _fields(
        "name 1 string, generateName 2 string, namespace 3 string, uid 5 string, resourceVersion 6 string, "
        "generation 7 int64, creationTimestamp 8 Time, labels 11 map string, annotations 12 map string, "
        "ownerReferences 13 many OwnerReference, finalizers 14 many string"
    ),
    "OwnerReference": _fields(
        "kind 1 string, name 3 string, uid 4 string, apiVersion 5 string, controller 6 bool, blockOwnerDeletion 7 bool"
    ),
    "Time": _fields("seconds 1 int64, nanos 2 int32"),
    "Quantity": _fields("string 1 string"),
    "Pod": _fields("metadata 1 ObjectMeta, spec 2 PodSpec"),
    "PodSpec": _fields(
        "containers 2 many Container, initContainers 20 many Container, overhead 32 map Quantity, "
        "resources 40 Requirements"
    ),
    "Container": _fields("resources 8 Requirements, restartPolicy 24 string"),
    "Requirements": _fields("requests 2 map Quantity"),
    "Node": _fields("metadata 1 ObjectMeta, status 3 NodeStatus"),
    "NodeStatus": _fields("capacity 1 map Quantity, allocatable 2 map Quantity"),
    "ConfigMap": _fields("metadata 1 ObjectMeta, data 2 map string, binaryData 3 map bytes, immutable 4 bool"),
    "Secret": _fields(
        "metadata 1 ObjectMeta, data 2 map bytes, type 3 string, stringData 4 map string, immutable 5 bool"
    ),
    "Namespace": _fields("metadata 1 ObjectMeta, spec 2 NamespaceSpec"),
    "NamespaceSpec": _fields("finalizers 1 many string"),
    "ServiceAccount": _fields(
        "metadata 1 ObjectMeta, secrets 2 many ObjectReference, imagePullSecrets 3 many LocalObjectReference, "
        "automountServiceAccountToken 4 bool"
    ),
    "ObjectReference": _fields("kind 1 string, namespace 2 string, name 3 string, uid 4 string, apiVersion 5 string"),
    "LocalObjectReference": _fields("name 1 string"),
    "DeleteOptions": _fields(
        "gracePeriodSeconds 1 int64, preconditions 2 Preconditions, orphanDependents 3 bool, "
        "propagationPolicy 4 string, dryRun 5 many string"
    ),
    "Preconditions": _fields("uid 1 string, resourceVersion 2 string"),
    "Eviction": _fields("metadata 1 ObjectMeta, deleteOptions 2 DeleteOptions"),
    "TokenRequest": _fields("metadata 1 ObjectMeta, spec 2 TokenRequestSpec"),
    "TokenRequestSpec": _fields(
        "audiences 1 many string, boundObjectRef 3 BoundObjectReference, expirationSeconds 4 int64"
    ),
    "BoundObjectReference": _fields("kind 1 string, apiVersion 2 string, name 3 string, uid 4 string"),
}
"""The Kubernetes messages that this project reads, by our own name if Kubernetes has several with the same name."""

_F = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "string": _F.TYPE_STRING,
    "bytes": _F.TYPE_BYTES,
    "int32": _F.TYPE_INT32,
    "int64": _F.TYPE_INT64,
    "bool": _F.TYPE_BOOL,
}


def only(message: str, *fields: str) -> Fields:
    """A subset of a Kubernetes message's fields.

    >>> only("ObjectMeta", "name", "uid")
    (('name', 1, 'string'), ('uid', 5, 'string'))
    """
    return tuple(field for field in KUBERNETES[message] if field[0] in fields)


def message_classes(
    package: str, messages: Mapping[str, Fields], syntax: Literal["proto2", "proto3"]
) -> dict[str, type[Message]]:
    """Create the classes of ``messages``, by name. In proto2, which Kubernetes uses, a field set to zero counts as set.

    >>> classes = message_classes("example", {"Quantity": KUBERNETES["Quantity"]}, "proto3")
    >>> classes["Quantity"](string="1Gi").SerializeToString()
    b'\\n\\x031Gi'
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax=syntax)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            _add_field(message, field, number, kind, package)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str, package: str) -> None:
    form, _, element = kind.rpartition(" ")
    # In protobuf a map is a repeated nested message with the fields ``key`` and ``value``.
    field = message.field.add(name=name, number=number, label=_F.LABEL_REPEATED if form else _F.LABEL_OPTIONAL)
    if form == "map":
        # The name that protobuf's compiler would derive.
        entry = message.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string", package)
        _add_field(entry, "value", 2, element, package)
        element = f"{message.name}.{entry.name}"
    if element in _TYPES:
        field.type = _TYPES[element]
    else:
        # A leading dot makes the name absolute.
        field.type, field.type_name = _F.TYPE_MESSAGE, f".{package}.{element}"
