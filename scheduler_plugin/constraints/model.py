"""Placement constraints of pods, and the properties of nodes and placed pods that they refer to.

Values only. A selector is a tuple of requirements that must all hold: ``()`` selects everything, None nothing. The
structs are decoded from the API's JSON as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec

T = TypeVar("T")
Labels = Mapping[str, str]


class Requirement(msgspec.Struct, frozen=True, gc=False):
    """One requirement on labels, with Kubernetes' ``operator`` (In, NotIn, Exists, DoesNotExist, Gt, Lt)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


Requirements = tuple[Requirement, ...]
Selector = Requirements | None


@dataclass(frozen=True, slots=True)
class Weighted(Generic[T]):
    """A preference with its weight; negative weights repel."""

    weight: int
    term: T


class Taint(msgspec.Struct, frozen=True, gc=False):
    """A node's taint; ``effect`` is NoSchedule, NoExecute or PreferNoSchedule."""

    key: str
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class Toleration(msgspec.Struct, frozen=True, gc=False):
    """A pod's toleration. An empty ``effect`` matches all effects, an empty ``key`` with Exists all taints."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class NodeTerm(msgspec.Struct, frozen=True, gc=False):
    """One alternative of node affinity: requirements on the node's labels and fields (``metadata.name``)."""

    labels: Requirements = msgspec.field(default=(), name="matchExpressions")
    fields: Requirements = msgspec.field(default=(), name="matchFields")


@dataclass(frozen=True, slots=True)
class PodTerm:
    """One term of pod (anti-)affinity.

    It applies to pods that ``selector`` selects in ``namespaces`` and in those that ``namespace_selector`` selects, or
    in the owner's namespace if there are neither.
    """

    topology_key: str
    selector: Selector = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: Selector = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """A topology spread constraint with DoNotSchedule."""

    topology_key: str
    max_skew: int
    selector: Selector = None
    min_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False
    match_label_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodConstraints:
    """A pod's requirements on its node. ``node_terms`` are alternatives, None if there are none.

    ``unreadable`` is the part that could not be read; then the rest is empty and excludes nothing.
    """

    tolerations: tuple[Toleration, ...] = ()
    node_selector: Requirements = ()
    node_terms: tuple[NodeTerm, ...] | None = None
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    spreads: tuple[Spread, ...] = ()
    preferred_nodes: tuple[Weighted[NodeTerm], ...] = ()
    preferred_pods: tuple[Weighted[PodTerm], ...] = ()
    unreadable: str = ""


class HostPort(msgspec.Struct, frozen=True, gc=False):
    """A host port of a pod (0: the container's port has none); ``address`` 0.0.0.0 is every address."""

    port: int = msgspec.field(default=0, name="hostPort")
    protocol: str = "TCP"
    address: str = msgspec.field(default="0.0.0.0", name="hostIP")


ResourceCounts = tuple[tuple[str, int], ...]
"""Amounts by resource name, without CPU and memory: devices, huge pages and so on."""

PODS: Final = "pods"
"""The resource with the maximum number of pods on a node."""


@dataclass(frozen=True, slots=True)
class NodeTraits:
    """A node as constraints see it.

    ``faults`` are conditions that rule out the node, by name. ``other_allocatable`` are its allocatable resources
    except CPU and memory, including ``PODS``.
    """

    labels: Labels = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    faults: tuple[str, ...] = ()
    other_allocatable: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodTraits:
    """A pod as constraints of others see it, and what ties it to its node other than constraints.

    ``volumes`` are its PersistentVolumeClaims, ``tolerations`` its own ones without the defaults of every pod.
    ``is_terminating``: it has a deletion timestamp. ``other_requests`` are its requests except CPU and memory.
    """

    labels: Labels = field(default_factory=dict)
    anti_affinity: tuple[PodTerm, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    volumes: tuple[str, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    is_terminating: bool = False
    other_requests: ResourceCounts = ()


UNCONSTRAINED = PodConstraints()
PLAIN_NODE = NodeTraits()
PLAIN_POD = PodTraits()
