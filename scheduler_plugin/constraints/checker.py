"""Checks nodes for a VM's target pod against all its constraints and preferences.

An obstacle is a reason for which kube-scheduler would refuse the node. Unknown facts are no obstacle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from protocol.messages import ObjectName
from scheduler_plugin.constraints.cluster_view import ClusterView, PlacedPod
from scheduler_plugin.constraints.cost import CostLimit, Turn, cheaper, costs_of, queries_of, with_nodes
from scheduler_plugin.constraints.model import (
    UNCONSTRAINED,
    HostPort,
    Labels,
    NodeTerm,
    NodeTraits,
    PodConstraints,
    PodTraits,
    ResourceCounts,
)
from scheduler_plugin.constraints.pod_affinity import PodAffinity, pod_affinity
from scheduler_plugin.constraints.selectors import (
    any_matches,
    discouragements,
    node_matches,
    preferred_weight,
    untolerated,
)
from scheduler_plugin.constraints.topology_spread import SpreadLimit, spread_limits
from scheduler_plugin.texts import explanations, refusals

EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::", ""})

VolumeTerms = tuple[tuple[NodeTerm, ...], ...]
"""Alternatives of node affinity, for each bound volume."""

Shape = tuple[PodConstraints, VolumeTerms, ResourceCounts]
"""The constraints of a pod that other pods affect only by their number and requests."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod to place, with the ``traits`` of the pod that it replaces. ``vm``: the name of its VM, if known."""

    namespace: str
    constraints: PodConstraints = UNCONSTRAINED
    traits: PodTraits = field(default_factory=PodTraits)
    volumes: VolumeTerms = ()
    vm: str = ""


@dataclass(frozen=True, slots=True)
class NodeConstraints:
    """A candidate's constraints on each node.

    ``by_node`` caches results that depend on the pod and one node. ``ignores_pods``: other pods matter only by the
    resources that they use. ``prefers``: it has preferences among nodes.
    """

    candidate: Candidate
    affinity: PodAffinity
    spreads: tuple[SpreadLimit, ...]
    by_node: dict[str, str | None]
    view: ClusterView
    ignores_pods: bool
    prefers: bool

    @property
    def shape(self) -> Shape:
        """Cache key of pods that fit the same nodes if other pods do not matter."""
        return self.candidate.constraints, self.candidate.volumes, self.candidate.traits.other_requests

    def obstacle(self, name: str) -> str | None:
        """The reason why the pod cannot be placed on the node; None if there is none."""
        if name not in self.by_node:
            traits = self.view.nodes.get(name)
            self.by_node[name] = None if traits is None else node_obstacle(self.candidate, name, traits)
        # Not cached: it changes with each placed pod.
        why = self.by_node[name] or self._by_resources(name)
        # Expensive; skipped for pods without inter-pod constraints.
        if why is not None or self.ignores_pods:
            return why
        node = self.view.nodes.get(name)
        return None if node is None else self._by_pods(name, node)

    def preference(self, name: str) -> tuple[int, int]:
        """Sort key of the node, best first."""
        node = self.view.nodes.get(name)
        if node is None:
            return 0, 0
        constraints = self.candidate.constraints
        weight = preferred_weight(constraints.preferred_nodes, name, node) + self.affinity.weight(node.labels)
        # Negative: the lowest key is the best.
        return discouragements(node.taints, constraints.tolerations), -weight

    def _by_resources(self, name: str) -> str | None:
        """The reason why the node lacks devices, other resources or pod slots."""
        if name in self.view.full:
            return refusals.TOO_MANY_PODS
        requests = self.candidate.traits.other_requests
        lacking = self.view.lacking_resource(name, requests) if requests and name in self.view.nodes else None
        return None if lacking is None else refusals.INSUFFICIENT.format(resource=lacking)

    def _by_pods(self, name: str, node: NodeTraits) -> str | None:
        why = self.affinity.obstacle(node.labels)
        why = why or next((reason for limit in self.spreads if (reason := limit.obstacle(node.labels))), None)
        return why or self._port(name)

    def _port(self, name: str) -> str | None:
        wanted = self.candidate.traits.host_ports
        if not wanted:
            return None
        taken = port_taken(wanted, (port for pod in self.view.pods_on(name) for port in pod.traits.host_ports))
        return None if taken is None else refusals.PORT_TAKEN.format(port=taken.port)


def node_obstacle(candidate: Candidate, name: str, node: NodeTraits) -> str | None:
    """The reason why the pod cannot be placed on the node, independent of other pods."""
    if node.faults:
        return explanations.NODE_STATE.format(faults=" and ".join(node.faults))
    taint = untolerated(node.taints, candidate.constraints.tolerations)
    if taint is not None:
        return refusals.UNTOLERATED_TAINT.format(taint=taint)
    if not node_matches(candidate.constraints, name, node):
        return refusals.NODE_AFFINITY
    if not all(any_matches(terms, name, node) for terms in candidate.volumes):
        return refusals.VOLUME_AFFINITY
    return None


_TOO_COSTLY: Final = PodConstraints(unreadable=explanations.COSTLY_CONSTRAINTS)


class ConstraintChecker:
    """Checks candidates against one view of the cluster."""

    def __init__(self, view: ClusterView, limit: CostLimit | None = None) -> None:
        self._view = view
        self._cached: dict[tuple[PodConstraints, VolumeTerms], dict[str, str | None]] = {}
        self._limit = limit or CostLimit()

    def check(self, candidate: Candidate) -> NodeConstraints:
        """Constraints of ``candidate`` on every node. Valid until pods are added to the view."""
        constraints, namespace, labels = candidate.constraints, candidate.namespace, candidate.traits.labels
        turn = self._limit.turn(ObjectName(namespace, candidate.vm), self._costs(candidate), self._view)
        if turn is Turn.NEVER:
            # kube-scheduler checks the rest, and the planner avoids the nodes that it refuses.
            return self.check(replace(candidate, constraints=cheaper(constraints)))
        if turn is Turn.LATER:
            by_node: dict[str, str | None] = dict.fromkeys(self._view.nodes, explanations.COSTLY_CONSTRAINTS)
            # A shape of their own: others with these constraints may be checked in this round.
            refused = Candidate(namespace, _TOO_COSTLY, candidate.traits)
            return NodeConstraints(refused, PodAffinity(), (), by_node, self._view, ignores_pods=True, prefers=False)
        by_node = self._cached.setdefault((constraints, candidate.volumes), {})
        affinity = pod_affinity(constraints, namespace, labels, self._view)
        spreads = spread_limits(constraints, namespace, labels, self._view)
        return NodeConstraints(
            candidate,
            affinity,
            spreads,
            by_node,
            self._view,
            ignores_pods=not (affinity.excludes_nodes or spreads or candidate.traits.host_ports),
            prefers=bool(affinity.preferred or constraints.preferred_nodes) or self._view.discourages,
        )

    def _costs(self, candidate: Candidate) -> Iterator[int]:
        constraints = candidate.constraints
        # Pods with the same constraints share results that depend on one node only.
        if (constraints, candidate.volumes) not in self._cached:
            yield with_nodes(constraints, self._view)
        queries = queries_of(constraints, candidate.namespace, candidate.traits.labels)
        yield from costs_of(queries, len(constraints.spreads), self._view)

    def place(self, candidate: Candidate, node: str) -> None:
        """Add the pod to the node for later checks."""
        self._view.add(PlacedPod(node, candidate.namespace, candidate.traits))


def port_taken(wanted: Iterable[HostPort], taken: Iterable[HostPort]) -> HostPort | None:
    """The first wanted port that is taken; None if all are free."""
    # Iterated once per wanted port.
    in_use = list(taken)
    return next((port for port in wanted if any(_clash(port, other) for other in in_use)), None)


def _clash(one: HostPort, other: HostPort) -> bool:
    if (one.port, one.protocol) != (other.port, other.protocol):
        return False
    # 0.0.0.0 and [::] conflict with every address.
    return one.address == other.address or bool({one.address, other.address} & EVERY_ADDRESS)


@dataclass(frozen=True, slots=True)
class ConstraintContext:
    """Facts other than nodes and pods that constraints refer to.

    ``namespaces`` are labels by namespace, None if unknown. ``claims`` has the bound volume of each
    PersistentVolumeClaim, ``volumes`` the node affinity of volumes that have one. Unknown volumes constrain nothing.
    ``is_current``: the watch of pods is up to date.
    """

    namespaces: Mapping[ObjectName, Labels] | None = None
    claims: Mapping[ObjectName, str] = field(default_factory=dict)
    volumes: Mapping[ObjectName, tuple[NodeTerm, ...]] = field(default_factory=dict)
    is_current: bool = True

    @property
    def namespace_labels(self) -> dict[str, Labels] | None:
        """Labels by namespace; None if unknown."""
        return None if self.namespaces is None else {name.name: labels for name, labels in self.namespaces.items()}

    def terms_of(self, namespace: str, claims: tuple[str, ...]) -> VolumeTerms:
        """Node terms of the volumes of these claims."""
        # PersistentVolumes have no namespace.
        volumes = (ObjectName("", self.claims.get(ObjectName(namespace, claim), "")) for claim in claims)
        return tuple(terms for volume in volumes if (terms := self.volumes.get(volume)))


EMPTY_CONTEXT = ConstraintContext()
