"""Pods, VirtualMachines, nodes and volumes of the Kubernetes API, with the fields that constraints refer to.

Fields are spelled as in the API; all except those that define a constraint are optional.
"""

from __future__ import annotations

import msgspec

from scheduler_plugin.constraints.model import HostPort, NodeTerm, Requirement, Toleration


class _Camel(msgspec.Struct, frozen=True, rename="camel"):
    """Camel-case field names, as in the API."""


class Selector(_Camel, frozen=True):
    """A label selector."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] = ()


class NodeTerms(_Camel, frozen=True):
    """A node selector."""

    # Alternatives; the expressions within a term must all match.
    node_selector_terms: tuple[NodeTerm, ...] | None = None


class PreferredNodes(_Camel, frozen=True):
    """A preferred node affinity."""

    weight: int
    preference: NodeTerm


# The API's names are too long, so each field is renamed.
class NodeAffinity(msgspec.Struct, frozen=True):
    """``nodeAffinity``."""

    required: NodeTerms | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[PreferredNodes] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class PodTermShape(_Camel, frozen=True):
    """A term of pod (anti-)affinity."""

    topology_key: str
    label_selector: Selector | None = None
    namespaces: list[str] | None = None
    namespace_selector: Selector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class PreferredPods(_Camel, frozen=True):
    """A preferred term of pod (anti-)affinity."""

    weight: int
    pod_affinity_term: PodTermShape


class PodAffinitySpec(msgspec.Struct, frozen=True):
    """``podAffinity`` and ``podAntiAffinity``."""

    required: list[PodTermShape] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[PreferredPods] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(_Camel, frozen=True):
    """``spec.affinity``."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinitySpec | None = None
    pod_anti_affinity: PodAffinitySpec | None = None


class SpreadShape(_Camel, frozen=True):
    """One of ``topologySpreadConstraints``."""

    topology_key: str
    max_skew: int
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: Selector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


class ConstrainingSpec(_Camel, frozen=True):
    """Fields that a pod's spec and a VirtualMachine's spec share, and the latter's ``targetArchitecture``."""

    affinity: Affinity | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topology_spread_constraints: list[SpreadShape] | None = None
    target_architecture: str | None = None


class NodeCondition(_Camel, frozen=True):
    """One of a node's ``status.conditions``."""

    type: str
    status: str


class ContainerPorts(_Camel, frozen=True):
    """A container with its ports."""

    ports: list[HostPort] | None = None


class VolumeClaim(_Camel, frozen=True):
    """The source of a volume that is a PersistentVolumeClaim."""

    claim_name: str


class Volume(_Camel, frozen=True):
    """One of ``spec.volumes``."""

    # Other sources tie no pod to nodes.
    persistent_volume_claim: VolumeClaim | None = None


class Placed(_Camel, frozen=True):
    """Fields of a pod's spec that constraints of other pods refer to, except ports."""

    volumes: list[Volume] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    affinity: Affinity | None = None


class PlacedSpec(Placed, frozen=True):
    """``Placed`` with the ports of all containers."""

    containers: list[ContainerPorts] | None = None


class VolumeAffinity(_Camel, frozen=True):
    """``spec.nodeAffinity`` of a PersistentVolume."""

    required: NodeTerms | None = None


class PreferringSpec(_Camel, frozen=True):
    """Fields of a pod's spec with node preferences."""

    affinity: Affinity | None = None
    topology_spread_constraints: list[SpreadShape] | None = None
