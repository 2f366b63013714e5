"""JSON messages of kube-scheduler's extender protocol. Keys are names of Go fields."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec


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
