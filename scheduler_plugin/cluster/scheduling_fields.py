"""Decodes the fields of pods, VirtualMachines, nodes and volumes that constraints refer to.

Unreadable fields constrain nothing: the VM is still scaled, and kube-scheduler refuses nodes that break a constraint
missed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, TypeVar

import msgspec

from protocol.field_errors import field_message
from scheduler_plugin.cluster import scheduling_shapes as shapes
from scheduler_plugin.constraints import limits, model
from scheduler_plugin.texts import explanations

EVERY_POD_TOLERATES: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
"""Tolerations that the API server adds to every pod; such nodes are excluded by their conditions."""

CONSTRAINING: Final = ("affinity", "nodeSelector", "targetArchitecture", "tolerations", "topologySpreadConstraints")

ARCHITECTURE: Final = "kubernetes.io/arch"
"""On a node: its architecture. NeonVM's controller requires the VM's in an affinity of the pod."""


S = TypeVar("S")


def pod_constraints(spec: Mapping[str, object]) -> model.PodConstraints:
    """Node constraints in the ``spec`` of a VirtualMachine, which has a pod's fields."""
    # Fast path: most VMs have none and share one empty value.
    if not any(spec.get(key) for key in CONSTRAINING):
        return model.UNCONSTRAINED
    try:
        constraints = _constraints(msgspec.convert(spec, shapes.ConstrainingSpec))
    except (ValueError, RecursionError) as error:
        # The VM is still scaled.
        return model.PodConstraints(unreadable=f"spec: {field_message(error)}")
    if limits.are_too_many(constraints):
        return model.PodConstraints(unreadable=explanations.TOO_MANY_CONSTRAINTS)
    return constraints


def pod_traits(
    labels: Mapping[str, str], spec: Mapping[str, object], *, is_terminating: bool, others: model.ResourceCounts = ()
) -> model.PodTraits:
    """The pod's properties that constraints of other pods refer to, without unreadable parts."""
    try:
        placed = msgspec.convert(spec, shapes.PlacedSpec)
    except (ValueError, RecursionError):
        # kube-scheduler checks the real object.
        placed = shapes.PlacedSpec()
    ports = [port for container in placed.containers or () for port in container.ports or ()]
    return placed_traits(labels, placed, ports, is_terminating=is_terminating, others=others)


def placed_traits(
    labels: model.Labels,
    spec: shapes.Placed,
    ports: Sequence[model.HostPort],
    *,
    is_terminating: bool,
    others: model.ResourceCounts,
) -> model.PodTraits:
    """The pod's properties that constraints of other pods refer to.

    ``others`` are its requests except CPU and memory.
    """
    affinity = spec.affinity or shapes.Affinity()
    anti_affinity = _pod_terms(affinity.pod_anti_affinity)
    traits = model.PodTraits(
        # Anyone may create pods with 80,000 labels, and other lists as long, which would all be cached.
        labels=labels if len(labels) <= limits.MAX_PARTS else dict(islice(labels.items(), limits.MAX_PARTS)),
        # kube-scheduler checks the real object.
        anti_affinity=() if limits.are_too_many_terms(anti_affinity) else anti_affinity,
        host_ports=tuple(port for port in ports if port.port)[: limits.MAX_PARTS],
        volumes=tuple(_claims(spec)[: limits.MAX_PARTS]),
        # Without the API server's defaults, so that most pods equal PLAIN_POD.
        tolerations=tuple(
            toleration
            for toleration in (spec.tolerations or ())[: limits.MAX_PARTS]
            if toleration.key not in EVERY_POD_TOLERATES
        ),
        is_terminating=is_terminating,
        other_requests=others[: limits.MAX_PARTS],
    )
    # Shared to save memory.
    return model.PLAIN_POD if traits == model.PLAIN_POD else traits


def prefers(spec: shapes.PreferringSpec) -> bool:
    """Return True if a pod has node preferences: preferred affinity or a ScheduleAnyway spread."""
    if spec.affinity is None and not spec.topology_spread_constraints:
        return False
    affinity = spec.affinity or shapes.Affinity()
    affinities = (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
    if any(part is not None and part.preferred for part in affinities):
        return True
    # ScheduleAnyway is a preference; DoNotSchedule is a filter.
    return any(spread.when_unsatisfiable != "DoNotSchedule" for spread in spec.topology_spread_constraints or ())


def node_traits(
    labels: Mapping[str, str], taints: object, conditions: object, allocatable: Mapping[str, int] | None = None
) -> model.NodeTraits:
    """A node's labels, ``spec.taints``, ``status.conditions``, and resources except CPU and memory.

    Skips unreadable entries.
    """
    states = {condition.type: condition.status for condition in _listed(conditions, shapes.NodeCondition)}
    faults = [explanations.NOT_READY] if states.get("Ready", "True") != "True" else []
    faults += [words for kind, words in explanations.FAULTS.items() if states.get(kind) == "True"]
    return model.NodeTraits(labels, tuple(_listed(taints, model.Taint)), tuple(faults), allocatable or {})


def volume_terms(affinity: object) -> tuple[model.NodeTerm, ...]:
    """Alternatives of a PersistentVolume's ``spec.nodeAffinity``; none if any node reaches it or it is unreadable."""
    try:
        parsed = msgspec.convert(affinity or {}, shapes.VolumeAffinity)
    except (ValueError, RecursionError):
        return ()
    # No required terms: reachable from every node.
    return _node_terms(parsed.required) or ()


def _listed(value: object, kind: type[S]) -> list[S]:
    converted = []
    for shape in value if isinstance(value, list) else ():
        try:
            converted.append(msgspec.convert(shape, kind))
        except (ValueError, RecursionError):
            continue
    return converted


def _constraints(spec: shapes.ConstrainingSpec) -> model.PodConstraints:
    affinity = spec.affinity or shapes.Affinity()
    nodes = affinity.node_affinity or shapes.NodeAffinity()
    labels = (spec.node_selector or {}) | ({ARCHITECTURE: spec.target_architecture} if spec.target_architecture else {})
    pod_affinity, pod_anti_affinity = (
        affinity.pod_affinity or shapes.PodAffinitySpec(),
        affinity.pod_anti_affinity or shapes.PodAffinitySpec(),
    )
    return model.PodConstraints(
        tolerations=spec.tolerations or (),
        node_selector=tuple(
            # Sorted, so that equal selectors compare equal.
            model.Requirement(key, "In", (value,))
            for key, value in sorted(labels.items())
        ),
        node_terms=_node_terms(nodes.required),
        affinity=_pod_terms(pod_affinity),
        anti_affinity=_pod_terms(pod_anti_affinity),
        spreads=tuple(
            _spread(spread)
            for spread in spec.topology_spread_constraints or ()
            # ScheduleAnyway filters nothing.
            if spread.when_unsatisfiable == "DoNotSchedule"
        ),
        preferred_nodes=tuple(
            model.Weighted(preferred.weight, preferred.preference) for preferred in nodes.preferred or ()
        ),
        preferred_pods=(
            *(
                model.Weighted(preferred.weight, _pod_term(preferred.pod_affinity_term))
                for preferred in pod_affinity.preferred or ()
            ),
            # Preferred anti-affinity is affinity with a negative weight.
            *(
                model.Weighted(-preferred.weight, _pod_term(preferred.pod_affinity_term))
                for preferred in pod_anti_affinity.preferred or ()
            ),
        ),
    )


def _selector(selector: shapes.Selector | None) -> tuple[model.Requirement, ...] | None:
    if selector is None:
        return None
    labels = sorted((selector.match_labels or {}).items())
    return tuple(model.Requirement(key, "In", (value,)) for key, value in labels) + selector.match_expressions


def _node_terms(selector: shapes.NodeTerms | None) -> tuple[model.NodeTerm, ...] | None:
    return None if selector is None else selector.node_selector_terms or ()


def _pod_terms(affinity: shapes.PodAffinitySpec | None) -> tuple[model.PodTerm, ...]:
    return () if affinity is None else tuple(_pod_term(term) for term in affinity.required or ())


def _pod_term(term: shapes.PodTermShape) -> model.PodTerm:
    return model.PodTerm(
        term.topology_key,
        _selector(term.label_selector),
        tuple(term.namespaces or ()),
        _selector(term.namespace_selector),
        tuple(term.match_label_keys or ()),
        tuple(term.mismatch_label_keys or ()),
    )


def _spread(spread: shapes.SpreadShape) -> model.Spread:
    return model.Spread(
        spread.topology_key,
        spread.max_skew,
        _selector(spread.label_selector),
        # The API's default.
        1 if spread.min_domains is None else spread.min_domains,
        # API defaults: affinity is honored unless Ignore, taints only if Honor.
        honors_affinity=spread.node_affinity_policy != "Ignore",
        honors_taints=spread.node_taints_policy == "Honor",
        match_label_keys=tuple(spread.match_label_keys or ()),
    )


def _claims(spec: shapes.Placed) -> list[str]:
    """Names of the pod's PersistentVolumeClaims, without ephemeral ones: each pod gets a new claim."""
    claims = [volume.persistent_volume_claim for volume in spec.volumes or ()]
    return [claim.claim_name for claim in claims if claim is not None]
