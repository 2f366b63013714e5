"""JSON messages of kube-scheduler's extender protocol. Keys are names of Go fields.

Go ignores their case, and old schedulers write ``nodenames``, which must not read as no nodes.
"""

from __future__ import annotations

from typing import Annotated, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T", bound=msgspec.Struct)


class NodeList(msgspec.Struct, frozen=True):
    """Whole nodes, each as its JSON text."""

    items: list[msgspec.Raw] | None = None


class ExtenderArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """Arguments of ``/filter`` and ``/prioritize``: a pod, and node names or whole nodes."""

    pod: msgspec.Raw
    nodes: NodeList | None = None
    node_names: list[str] | None = None


class FilterArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """``ExtenderArgs`` with undecoded node names: there are thousands, and usually one is looked up."""

    pod: msgspec.Raw
    nodes: NodeList | None = None
    node_names: msgspec.Raw = msgspec.Raw(b"[]")


class RequestedNodes:
    """The node names of a call, looked up without decoding them all."""

    def __init__(self, names: msgspec.Raw) -> None:
        self._text = bytes(names)

    def __contains__(self, name: object) -> bool:
        """Return True if the call contains the name; names with JSON escapes are not found."""
        # With quotes, so that no part of a longer name matches.
        return msgspec.json.encode(name) in self._text

    def names(self) -> list[str]:
        """All names. Raises ``ValueError``."""
        # Go encodes a nil slice as null.
        return _NAMES.decode(self._text) or []


_NAMES: Final = msgspec.json.Decoder(list[str] | None)


class RawNodeList(msgspec.Struct, frozen=True):
    """Whole nodes, returned unchanged."""

    kind: str
    apiVersion: str  # noqa: N815 - the name in the API
    items: list[msgspec.Raw]


class ExtenderFilterResult(msgspec.Struct, frozen=True, rename="pascal"):
    """Nodes that fit, and the reasons against the others."""

    nodes: RawNodeList | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str = ""


class HostPriority(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    """Score of a node, 0 to 10."""

    host: str
    score: int


class ExtenderBindingArgs(msgspec.Struct, frozen=True):
    """Pod to bind, and its node."""

    # With an empty name, the pod's path would be the path of all pods.
    pod_name: Annotated[str, msgspec.Meta(min_length=1)] = msgspec.field(name="PodName")
    pod_namespace: Annotated[str, msgspec.Meta(min_length=1)] = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class ExtenderBindingResult(msgspec.Struct, frozen=True, rename="pascal"):
    """Empty if the pod is bound, else the reason."""

    error: str


class VictimMetadata(msgspec.Struct, frozen=True):
    """Pod that would be evicted."""

    uid: str


class VictimPod(msgspec.Struct, frozen=True):
    """A whole pod that would be evicted."""

    metadata: VictimMetadata


class Victims(msgspec.Struct, frozen=True, rename="pascal"):
    """Whole pods that would be evicted from a node."""

    pods: list[VictimPod] | None = None
    num_pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class MetaPod(msgspec.Struct, frozen=True):
    """Pod that would be evicted."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True, rename="pascal"):
    """Pods that would be evicted from a node, by their UIDs."""

    pods: list[MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class ExtenderPreemptionArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """A pod, and the pods to evict for it by node."""

    pod: msgspec.Raw
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None


class ExtenderPreemptionResult(msgspec.Struct, frozen=True, rename="pascal"):
    """The nodes that would fit the pod after the evictions."""

    node_name_to_meta_victims: dict[str, MetaVictims]


class ArgsDecoder(Generic[T]):
    """Decodes the arguments of a verb, with any capitalization of their keys."""

    def __init__(self, kind: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._type = inspect.type_info(kind)
        self._keys = [f'"{name}"'.encode() for name in kind.__struct_encode_fields__]

    def decode(self, body: bytes) -> T:
        """Decode ``body``. Raises ``ValueError`` or ``RecursionError``."""
        # kube-scheduler writes all keys, before its long list of nodes.
        if not all(key in body for key in self._keys):
            body = _respelled(body, self._type)
        return self._decoder.decode(body)


def _respelled(body: bytes, kind: inspect.Type) -> bytes:
    """``body`` with the declared keys of ``kind`` only, or unchanged if it is no valid ``kind``.

    >>> _respelled(b'{"uid":"u","more":1}', inspect.type_info(MetaPod))
    b'{"UID":"u"}'
    """
    try:
        return msgspec.json.encode(_with_declared_keys(msgspec.Raw(body), kind))
    # Its decoder reports the error, with the path of the field.
    except (ValueError, RecursionError):
        return body


def _with_declared_keys(text: msgspec.Raw, kind: inspect.Type) -> object:
    if isinstance(kind, inspect.UnionType) and text != _NULL:
        kind = kind.types[0]  # the others are null
    if isinstance(kind, inspect.ListType):
        return [_with_declared_keys(item, kind.item_type) for item in _LIST.decode(text)]
    if isinstance(kind, inspect.DictType):
        return {key: _with_declared_keys(value, kind.value_type) for key, value in _MEMBERS.decode(text).items()}
    if isinstance(kind, inspect.StructType):
        fields = {field.encode_name.lower(): field for field in kind.fields}
        members = {key.lower(): value for key, value in _MEMBERS.decode(text).items()}
        return {
            field.encode_name: _with_declared_keys(members[key], field.type)
            for key, field in fields.items()
            if key in members
        }
    return text


_NULL: Final = msgspec.Raw(b"null")
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
