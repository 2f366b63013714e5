"""Inter-pod affinity and anti-affinity, as in kube-scheduler's InterPodAffinity plugin.

A term refers to topology domains: a node is in a pod's domain if it has the same value of the topology key as the pod's
node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from scheduler_plugin.constraints.cluster_view import ClusterView, PlacedPod, namespaces_of, resolved
from scheduler_plugin.constraints.model import Labels, PodConstraints, PodTerm
from scheduler_plugin.constraints.selectors import matches, selects
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


def pod_affinity(constraints: PodConstraints, namespace: str, labels: Labels, view: ClusterView) -> PodAffinity:
    """The pod's affinity, computed once for all nodes."""
    affinity = PodAffinity()
    if constraints.affinity:
        _attract(affinity, [resolved(term, labels) for term in constraints.affinity], namespace, labels, view)
    for term in constraints.anti_affinity:
        affinity.repelled.update(_domains(resolved(term, labels), namespace, view))
    # Anti-affinity is symmetric: terms of placed pods repel the new one too.
    for repulsion in view.repulsions(labels):
        if _is_about(repulsion.term, repulsion.namespace, namespace, labels, view, unknown=False):
            affinity.repelled_by_others.update(_values(repulsion.term.topology_key, repulsion.nodes, view))
    for preference in constraints.preferred_pods:
        for domain in _domains(resolved(preference.term, labels), namespace, view):
            affinity.preferred[domain] += preference.weight
    return affinity


def _attract(affinity: PodAffinity, terms: list[PodTerm], namespace: str, labels: Labels, view: ClusterView) -> None:
    # As in kube-scheduler, a pod counts only if all terms select it.
    matching = [
        pod
        for pod in view.candidates(terms[0].selector, namespaces_of(terms[0], namespace))
        if all(_is_about(term, namespace, pod.namespace, pod.traits.labels, view, unknown=True) for term in terms)
    ]
    affinity.affinity_keys = tuple(term.topology_key for term in terms)
    affinity.attracted = [
        {value for _, value in _values(key, (pod.node for pod in matching), view)} for key in affinity.affinity_keys
    ]
    # As in kube-scheduler, the first pod of a self-selecting group fits any node with the topology keys.
    selects_itself = all(_is_about(term, namespace, namespace, labels, view, unknown=True) for term in terms)
    affinity.is_first = selects_itself and not any(affinity.attracted)


def _domains(term: PodTerm, namespace: str, view: ClusterView) -> Iterator[Domain]:
    """Topology domains of the pods that the term matches, one per pod."""
    about: list[PlacedPod] = [
        pod
        for pod in view.candidates(term.selector, namespaces_of(term, namespace))
        if _is_about(term, namespace, pod.namespace, pod.traits.labels, view, unknown=False)
    ]
    return _values(term.topology_key, (pod.node for pod in about), view)


def _values(key: str, nodes: Iterable[str], view: ClusterView) -> Iterator[Domain]:
    for node in nodes:
        value = view.nodes[node].labels.get(key)
        if value is not None:
            yield key, value


def _is_about(  # noqa: PLR0913 - a term, two pods, and the cluster that they are in
    term: PodTerm, owner: str, namespace: str, labels: Labels, view: ClusterView, *, unknown: bool
) -> bool:
    """Return True if the term of a pod in namespace ``owner`` selects a pod with these labels in ``namespace``.

    ``unknown`` is the result if that depends on unknown namespace labels.
    """
    return selects(term.selector, labels) and _covers(term, owner, namespace, view, unknown=unknown)


def _covers(term: PodTerm, owner: str, namespace: str, view: ClusterView, *, unknown: bool) -> bool:
    if not term.namespaces and term.namespace_selector is None:
        return namespace == owner
    if namespace in term.namespaces:
        return True
    # An empty selector selects all namespaces, None selects none.
    if not term.namespace_selector:
        return term.namespace_selector is not None
    namespace_labels = None if view.namespaces is None else view.namespaces.get(namespace)
    # With unknown namespace labels nothing is excluded.
    return unknown if namespace_labels is None else matches(term.namespace_selector, namespace_labels)
