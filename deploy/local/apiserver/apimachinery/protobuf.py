"""Decoding of the few kinds that kubectl sends as protobuf (``kubectl create configmap``, ``create token``, drain).

Kubernetes' encoding is ``k8s\\0`` and an envelope of apiVersion, kind and the object's own bytes. Kinds that are not in
``KINDS`` get a 415. Responses are always JSON: every client that sends protobuf accepts it.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from deploy.local.apiserver.apimachinery.errors import bad_request, unsupported_media_type
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.apimachinery.media_types import PROTOBUF
from protocol.kubernetes.protobuf import KUBERNETES, message_classes

KINDS: Final = {
    ("v1", "ConfigMap"): "ConfigMap",
    ("v1", "Secret"): "Secret",
    ("v1", "Namespace"): "Namespace",
    ("v1", "ServiceAccount"): "ServiceAccount",
    ("v1", "DeleteOptions"): "DeleteOptions",
    ("policy/v1", "Eviction"): "Eviction",
    ("authentication.k8s.io/v1", "TokenRequest"): "TokenRequest",
}
"""The supported apiVersions and kinds, and their protobuf messages."""

_MAGIC: Final = b"k8s\x00"
_MESSAGES: Final = message_classes("kubernetes", KUBERNETES, "proto2")


def decode_protobuf(raw: bytes) -> JsonObject:
    """Decode an envelope to its object. Raises a 415 for an unsupported kind, a 400 for invalid bytes."""
    if not raw.startswith(_MAGIC):
        raise bad_request("the body of the request is not Kubernetes protobuf")
    try:
        # Any: the class is generated at run time, so its fields have no types.
        envelope: Any = _parsed("Unknown", raw[len(_MAGIC) :])
        api_version, kind = envelope.typeMeta.apiVersion, envelope.typeMeta.kind
        message = KINDS.get((api_version, kind))
        if message is None:
            raise unsupported_media_type(f"{PROTOBUF} of {api_version} {kind}", ("application/json",))
        body = _read(_parsed(message, envelope.raw))
    # OverflowError: a time outside Python's range of years.
    except (DecodeError, ValueError, OverflowError) as error:
        raise bad_request(f"the body of the request is not readable as protobuf: {error}") from None
    return {"apiVersion": api_version, "kind": kind, **body}


def _parsed(kind: str, raw: bytes) -> Message:
    message = _MESSAGES[kind]()
    message.ParseFromString(raw)
    return message


def _read(message: Message) -> JsonObject:
    body: JsonObject = {}
    for field, value in message.ListFields():
        decoded = _field(field, value)
        # Go writes empty strings for unset fields.
        if decoded not in ("", None):
            body[field.name] = decoded
    return body


def _field(field: FieldDescriptor, value: Any) -> Any:
    kind = field.message_type
    # Before `is_repeated`, which is true for maps too.
    if kind is not None and kind.GetOptions().map_entry:
        inner = kind.fields_by_name["value"]
        return {key: _one(inner, element) for key, element in value.items()}
    if field.is_repeated:
        return [_one(field, element) for element in value]
    return _one(field, value)


def _one(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return _time(value.seconds) if field.message_type.name == "Time" else _read(value)
    # In JSON, Kubernetes writes bytes as base64.
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _time(seconds: int) -> str | None:
    # Go's zero time means unset.
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else None
