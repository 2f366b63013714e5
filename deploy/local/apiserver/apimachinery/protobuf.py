"""The protobuf form of the few kinds that kubectl sends in it (``kubectl create configmap``, ``create token``, drain).

Kubernetes wraps an object as ``k8s\\0`` and an envelope of apiVersion, kind and the object's own bytes. Which field has
which number is said by the tables below; a kind that is not in ``KINDS`` is not read (415), and JSON always is.
Answers are JSON: every client that sends protobuf accepts it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from deploy.local.apiserver.apimachinery.errors import bad_request, unsupported_media_type
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.apimachinery.media_types import PROTOBUF

_MAGIC: Final = b"k8s\x00"

Wire = int | bytes
"""What a field holds on the wire: a varint, or a length and that many bytes."""


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a message: its JSON name, how it is read, and whether it repeats."""

    name: str
    read: Callable[[Wire], Any]
    many: bool = False


Message = dict[int, _Field]


def _text(value: Wire) -> Any:
    return value.decode() if isinstance(value, bytes) else str(value)


def _binary(value: Wire) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else ""


def _number(value: Wire) -> Any:
    return value - 2**64 if isinstance(value, int) and value >= 2**63 else value


def _flag(value: Wire) -> Any:
    return bool(value)


def _message(fields: Message) -> Callable[[Wire], Any]:
    return lambda value: read_message(value, fields) if isinstance(value, bytes) else {}


def _time(value: Wire) -> Any:
    seconds = dict(_wire_fields(value)).get(1, 0) if isinstance(value, bytes) else 0
    moment = datetime.fromtimestamp(seconds, UTC) if isinstance(seconds, int) and seconds else None
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None


def _string(name: str, many: bool = False) -> _Field:
    return _Field(name, _text, many)


def _map(name: str, read: Callable[[Wire], Any] = _text) -> _Field:
    """A map: repeated entries of key and value."""

    def entry(value: Wire) -> Any:
        parts = dict(_wire_fields(value)) if isinstance(value, bytes) else {}
        return _Entry(_text(parts.get(1, b"")), read(parts.get(2, b"")))

    return _Field(name, entry, many=True)


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    value: Any


_OWNER: Final[Message] = {
    1: _string("kind"),
    3: _string("name"),
    4: _string("uid"),
    5: _string("apiVersion"),
    6: _Field("controller", _flag),
    7: _Field("blockOwnerDeletion", _flag),
}
_META: Final[Message] = {
    1: _string("name"),
    2: _string("generateName"),
    3: _string("namespace"),
    5: _string("uid"),
    6: _string("resourceVersion"),
    7: _Field("generation", _number),
    8: _Field("creationTimestamp", _time),
    11: _map("labels"),
    12: _map("annotations"),
    13: _Field("ownerReferences", _message(_OWNER), many=True),
    14: _string("finalizers", many=True),
}
_METADATA: Final = _Field("metadata", _message(_META))
_REFERENCE: Final[Message] = {1: _string("kind"), 2: _string("apiVersion"), 3: _string("name"), 4: _string("uid")}
_LOCAL_REFERENCE: Final[Message] = {1: _string("name")}
_OBJECT_REFERENCE: Final[Message] = {
    1: _string("kind"),
    2: _string("namespace"),
    3: _string("name"),
    4: _string("uid"),
    5: _string("apiVersion"),
}
_PRECONDITIONS: Final[Message] = {1: _string("uid"), 2: _string("resourceVersion")}
_DELETE_OPTIONS: Final[Message] = {
    1: _Field("gracePeriodSeconds", _number),
    2: _Field("preconditions", _message(_PRECONDITIONS)),
    3: _Field("orphanDependents", _flag),
    4: _string("propagationPolicy"),
    5: _string("dryRun", many=True),
}
_TOKEN_SPEC: Final[Message] = {
    1: _string("audiences", many=True),
    3: _Field("boundObjectRef", _message(_REFERENCE)),
    4: _Field("expirationSeconds", _number),
}

KINDS: Final[dict[tuple[str, str], Message]] = {
    ("v1", "ConfigMap"): {
        1: _METADATA,
        2: _map("data"),
        3: _map("binaryData", _binary),
        4: _Field("immutable", _flag),
    },
    ("v1", "Secret"): {
        1: _METADATA,
        2: _map("data", _binary),
        3: _string("type"),
        4: _map("stringData"),
        5: _Field("immutable", _flag),
    },
    ("v1", "Namespace"): {1: _METADATA, 2: _Field("spec", _message({1: _string("finalizers", many=True)}))},
    ("v1", "ServiceAccount"): {
        1: _METADATA,
        2: _Field("secrets", _message(_OBJECT_REFERENCE), many=True),
        3: _Field("imagePullSecrets", _message(_LOCAL_REFERENCE), many=True),
        4: _Field("automountServiceAccountToken", _flag),
    },
    ("v1", "DeleteOptions"): _DELETE_OPTIONS,
    ("policy/v1", "Eviction"): {1: _METADATA, 2: _Field("deleteOptions", _message(_DELETE_OPTIONS))},
    ("authentication.k8s.io/v1", "TokenRequest"): {1: _METADATA, 2: _Field("spec", _message(_TOKEN_SPEC))},
}
"""The kinds that are read, by apiVersion and kind."""


def decode_protobuf(raw: bytes) -> JsonObject:
    """The object of an envelope. Raises a 415 for a kind that is not read, a 400 for bytes that are no envelope."""
    if not raw.startswith(_MAGIC):
        raise bad_request("the body of the request is not Kubernetes protobuf")
    try:
        envelope = dict(_wire_fields(raw[len(_MAGIC) :]))
        head = envelope.get(1, b"")
        names = dict(_wire_fields(head)) if isinstance(head, bytes) else {}
        api_version, kind = _text(names.get(1, b"")), _text(names.get(2, b""))
        fields = KINDS.get((api_version, kind))
        if fields is None:
            raise unsupported_media_type(f"{PROTOBUF} of {api_version} {kind}", ("application/json",))
        inner = envelope.get(2, b"")
        body = read_message(inner, fields) if isinstance(inner, bytes) else {}
    except (IndexError, UnicodeDecodeError) as error:
        raise bad_request(f"the body of the request is not readable as protobuf: {error}") from None
    return {"apiVersion": api_version, "kind": kind, **body}


def read_message(raw: bytes, fields: Message) -> JsonObject:
    """A message as JSON; fields that the table does not name are left out, empty texts as well."""
    result: JsonObject = {}
    for number, value in _wire_fields(raw):
        known = fields.get(number)
        if known is None:
            continue
        read = known.read(value)
        if isinstance(read, _Entry):
            result.setdefault(known.name, {})[read.key] = read.value
        elif known.many:
            result.setdefault(known.name, []).append(read)
        elif read not in ("", None):
            result[known.name] = read
    return result


def _wire_fields(raw: bytes) -> Iterator[tuple[int, Wire]]:
    """Number and content of every field. Raises ``IndexError`` where the bytes end too early."""
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, position = _varint(raw, position)
            yield number, value
            continue
        size, position = (8, position) if kind == 1 else (4, position) if kind == 5 else _varint(raw, position)
        if position + size > len(raw):
            raise IndexError("a field ends after the message")
        if kind == 2:
            yield number, raw[position : position + size]
        position += size


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            return value, position
