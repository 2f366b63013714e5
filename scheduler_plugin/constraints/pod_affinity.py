"""Inter-pod affinity and anti-affinity, as in kube-scheduler's InterPodAffinity plugin.

A term refers to topology domains: a node is in a pod's domain if it has the same value of the topology key as the pod's
node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from scheduler_plugin.constraints.cluster_view import ClusterView
from scheduler_plugin.constraints.model import Labels, PodConstraints, PodTerm
from scheduler_plugin.constraints.pod_queries import PodQuery, is_about, resolved
from scheduler_plugin.texts import refusals

Domain = tuple[str, str]
"""A topology key and its value."""


@dataclass(slots=True)
class PodAffinity:
    """Inter-pod affinity of one unplaced pod, against placed pods."""

    affinity_keys: tuple[str, ...] = ()
    attracted: list[set[str]] = field(default_factory=list)
    is_first: bool = False
    repelled: set[Domain] = field(default_factory=set)
    repelled_by_others: set[Domain] = field(default_factory=set)
    preferred: Counter[Domain] = field(default_factory=Counter)

    @property
    def excludes_nodes(self) -> bool:
        """True if it excludes any node."""
        return bool(self.affinity_keys or self.repelled or self.repelled_by_others)

    def obstacle(self, labels: Labels) -> str | None:
        """The reason why a node with these labels is excluded; None if it is not."""
        if not self._is_attracted(labels):
            return refusals.POD_AFFINITY
        if any(labels.get(key) == value for key, value in self.repelled):
            return refusals.POD_ANTI_AFFINITY
        if any(labels.get(key) == value for key, value in self.repelled_by_others):
            return refusals.OTHERS_ANTI_AFFINITY
        return None

    def weight(self, labels: Labels) -> int:
        """Weight of a node with these labels."""
        return sum(weight for (key, value), weight in self.preferred.items() if labels.get(key) == value)

    def _is_attracted(self, labels: Labels) -> bool:
        if self.is_first:
            return all(key in labels for key in self.affinity_keys)
        pairs = zip(self.affinity_keys, self.attracted, strict=True)
        return all(labels.get(key) in values for key, values in pairs)


def affinity_query(terms: Iterable[PodTerm], namespace: str, labels: Labels) -> PodQuery:
    """The pods that required affinity refers to. As in kube-scheduler, a pod counts only if all terms select it."""
    return PodQuery(tuple(_selecting(term, labels) for term in terms), namespace, unknown=True)


def term_query(term: PodTerm, namespace: str, labels: Labels) -> PodQuery:
    """The pods that a term of anti-affinity or of a preference refers to."""
    return PodQuery((_selecting(term, labels),), namespace)


def _selecting(term: PodTerm, labels: Labels) -> PodTerm:
    return replace(resolved(term, labels), topology_key="")


def pod_affinity(constraints: PodConstraints, namespace: str, labels: Labels, view: ClusterView) -> PodAffinity:
    """The pod's affinity, computed once for all nodes."""
    affinity = PodAffinity()
    if constraints.affinity:
        _attract(affinity, constraints.affinity, namespace, labels, view)
    for term in constraints.anti_affinity:
        affinity.repelled.update(_values(term.topology_key, view.nodes_with(term_query(term, namespace, labels)), view))
    # Anti-affinity is symmetric: terms of placed pods repel the new one too.
    for repulsion in view.repulsions(labels):
        if is_about(repulsion.term, repulsion.namespace, namespace, labels, view.namespaces, unknown=False):
            repelling = dict.fromkeys(repulsion.nodes, 1)
            affinity.repelled_by_others.update(_values(repulsion.term.topology_key, repelling, view))
    for preference in constraints.preferred_pods:
        counted = view.nodes_with(term_query(preference.term, namespace, labels))
        for domain, pods in _values(preference.term.topology_key, counted, view).items():
            affinity.preferred[domain] += preference.weight * pods
    return affinity


def _attract(
    affinity: PodAffinity, terms: tuple[PodTerm, ...], namespace: str, labels: Labels, view: ClusterView
) -> None:
    query = affinity_query(terms, namespace, labels)
    counted = view.nodes_with(query)
    affinity.affinity_keys = tuple(term.topology_key for term in terms)
    affinity.attracted = [{value for _, value in _values(key, counted, view)} for key in affinity.affinity_keys]
    # As in kube-scheduler, the first pod of a self-selecting group fits any node with the topology keys.
    selects_itself = query.selects(namespace, labels, view.namespaces, is_terminating=False)
    affinity.is_first = selects_itself and not any(affinity.attracted)


def _values(key: str, counted: Mapping[str, int], view: ClusterView) -> Counter[Domain]:
    """Topology domains of the nodes, with their numbers of pods."""
    domains = Counter[Domain]()
    for node, pods in counted.items():
        value = view.nodes[node].labels.get(key)
        if value is not None and pods:
            domains[key, value] += pods
    return domains
