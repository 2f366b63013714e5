"""Nodes and placed pods that constraints are checked against, with indexes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from scheduler_plugin.constraints.model import (
    PODS,
    Labels,
    NodeTraits,
    PodTerm,
    PodTraits,
    Requirement,
    ResourceCounts,
    Selector,
)
from scheduler_plugin.constraints.pod_queries import PodQuery, resolved
from scheduler_plugin.constraints.selectors import DISCOURAGING

MAX_REPULSIONS: Final = 1_000
"""Maximum number of different anti-affinity terms of placed pods in one namespace: each is compared with each VM that
may move.
"""


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod on a node."""

    node: str
    namespace: str
    traits: PodTraits


@dataclass(frozen=True, slots=True)
class PodsOnNode:
    """All pods on a node, and the subset with inter-pod constraints."""

    pods: tuple[PlacedPod, ...] = ()
    repelling: tuple[PlacedPod, ...] = ()

    @classmethod
    def of(cls, pods: Iterable[PlacedPod]) -> PodsOnNode:
        """The pods of one node."""
        placed = tuple(pods)
        return cls(placed, tuple(pod for pod in placed if pod.traits.anti_affinity))


@dataclass(frozen=True, slots=True)
class Repulsion:
    """A required anti-affinity term of placed pods in ``namespace`` on ``nodes``."""

    term: PodTerm
    namespace: str
    nodes: set[str]


class ClusterView:
    """Nodes and placed pods, which ``add`` may extend.

    ``namespaces`` are the labels of all namespaces, None if unknown. ``discourages``: some node has a PreferNoSchedule
    taint. ``taints`` is the number of all taints. ``full`` are the nodes at their maximum number of pods.
    """

    def __init__(
        self,
        nodes: Mapping[str, NodeTraits],
        pods: Iterable[PlacedPod] = (),
        namespaces: Mapping[str, Labels] | None = None,
    ) -> None:
        self.nodes = nodes
        self.namespaces = namespaces
        self.discourages = any(taint.effect == DISCOURAGING for node in nodes.values() for taint in node.taints)
        self.taints = sum(len(node.taints) for node in nodes.values())
        # A node without an allocatable number of pods is not full.
        self.full = {name for name, node in nodes.items() if node.other_allocatable.get(PODS, 1) < 1}
        self._pod_slots = {
            name: node.other_allocatable[PODS] for name, node in nodes.items() if PODS in node.other_allocatable
        }
        self._unrequested: dict[str, dict[str, int]] = {}
        self._pods: list[PlacedPod] | None = None
        self._by_label: dict[str, dict[str, list[PlacedPod]]] = {}
        self._by_namespace: dict[str, list[PlacedPod]] | None = None
        self._by_node: dict[str, Sequence[PlacedPod]] = {}
        self._counted: dict[PodQuery, Counter[str]] = {}
        self._repulsions: dict[tuple[PodTerm, str], Repulsion] = {}
        self._repelling: dict[tuple[str, str], list[Repulsion]] = {}
        self._repelling_any: list[Repulsion] = []
        self._terms_of: Counter[str] = Counter()
        for pod in pods:
            self.add(pod)

    def set_pods(self, node: str, placed: PodsOnNode) -> None:
        """Set the pods of a node that has none yet; ignored for unknown nodes."""
        if node not in self.nodes:
            return
        self._by_node[node] = placed.pods
        self._occupy(node, len(placed.pods))
        for pod in placed.repelling:
            self._repel_by(pod)

    def add(self, pod: PlacedPod) -> None:
        """Add a pod; ignored on unknown nodes."""
        if pod.node not in self.nodes:
            return
        self._by_node[pod.node] = (*self._by_node.get(pod.node, ()), pod)
        if self._pods is not None:
            self._pods.append(pod)
        if self._by_namespace is not None:
            self._by_namespace.setdefault(pod.namespace, []).append(pod)
        self._occupy(pod.node, 1)
        if pod.traits.other_requests and pod.node in self._unrequested:
            _subtract(self._unrequested[pod.node], pod.traits.other_requests)
        # Indexes are built on first use and then updated.
        for key, by_value in self._by_label.items():
            if key in pod.traits.labels:
                by_value.setdefault(pod.traits.labels[key], []).append(pod)
        for query, counted in self._counted.items():
            if self._is_selected(pod, query):
                counted[pod.node] += 1
        self._repel_by(pod)

    def pods_on(self, node: str) -> Sequence[PlacedPod]:
        """The pods of a node."""
        return self._by_node.get(node, ())

    @property
    def _all(self) -> list[PlacedPod]:
        # Built on first use: only affinity and spread need pods of other nodes.
        if self._pods is None:
            self._pods = list(chain.from_iterable(self._by_node.values()))
        return self._pods

    def lacking_resource(self, node: str, requested: ResourceCounts) -> str | None:
        """The first of the ``requested`` resources that a known node has too little of; None if none."""
        left = self._unrequested.get(node)
        if left is None:
            left = self._unrequested[node] = dict(self.nodes[node].other_allocatable)
            for pod in self.pods_on(node):
                _subtract(left, pod.traits.other_requests)
        return next((name for name, amount in requested if amount > left.get(name, 0)), None)

    def _occupy(self, node: str, pods: int) -> None:
        if node in self._pod_slots:
            self._pod_slots[node] -= pods
            if self._pod_slots[node] < 1:
                self.full.add(node)

    def nodes_with(self, query: PodQuery) -> Mapping[str, int]:
        """The number of selected pods on each node that has any."""
        counted = self._counted.get(query)
        if counted is None:
            candidates = chain.from_iterable(self._candidates(query))
            counted = self._counted[query] = Counter(pod.node for pod in candidates if self._is_selected(pod, query))
        return counted

    def known(self, query: PodQuery) -> Mapping[str, int] | None:
        """The result of an equal query of this round; None if there was none."""
        return self._counted.get(query)

    def count(self, query: PodQuery) -> int:
        """The number of pods to compare with the query: few if it requires a label value. Builds missing indexes."""
        return sum(map(len, self._candidates(query)))

    def unindexed(self, queries: Iterable[PodQuery]) -> int:
        """The number of pods to read for the indexes that the queries need and that do not exist yet."""
        narrow = (narrowing(query.terms[0].selector) for query in queries if query not in self._counted)
        keys = {requirement.key for requirement in narrow if requirement is not None} - self._by_label.keys()
        return len(keys) * len(self._all) if keys else 0

    def _is_selected(self, pod: PlacedPod, query: PodQuery) -> bool:
        labels, is_terminating = pod.traits.labels, pod.traits.is_terminating
        return query.selects(pod.namespace, labels, self.namespaces, is_terminating=is_terminating)

    def _candidates(self, query: PodQuery) -> list[Sequence[PlacedPod]]:
        """All pods that the first term may select, and others."""
        term = query.terms[0]
        if term.selector is None:
            return []
        narrow = narrowing(term.selector)
        if narrow is not None:
            by_value = self._indexed(narrow.key)
            return [by_value.get(value, ()) for value in dict.fromkeys(narrow.values)]
        if term.namespace_selector is not None:
            return [self._all]
        if self._by_namespace is None:
            self._by_namespace = {}
            for pod in self._all:
                self._by_namespace.setdefault(pod.namespace, []).append(pod)
        namespaces = dict.fromkeys(term.namespaces or (query.owner,))
        return [self._by_namespace.get(namespace, ()) for namespace in namespaces]

    def _indexed(self, key: str) -> dict[str, list[PlacedPod]]:
        """The pods with this label, by its value."""
        by_value = self._by_label.get(key)
        if by_value is None:
            by_value = self._by_label[key] = {}
            for pod in self._all:
                if key in pod.traits.labels:
                    by_value.setdefault(pod.traits.labels[key], []).append(pod)
        return by_value

    def repulsions(self, labels: Labels) -> Iterator[Repulsion]:
        """Anti-affinity of placed pods that may repel a pod with these labels."""
        yield from self._repelling_any
        for label in labels.items():
            yield from self._repelling.get(label, ())

    def _repel_by(self, pod: PlacedPod) -> None:
        for term in pod.traits.anti_affinity:
            self._repel(resolved(term, pod.traits.labels), pod)

    def _repel(self, term: PodTerm, pod: PlacedPod) -> None:
        # Replicas share one entry.
        repulsion = self._repulsions.get((term, pod.namespace))
        if repulsion is not None:
            repulsion.nodes.add(pod.node)
            return
        # kube-scheduler refuses nodes because of the rest.
        if self._terms_of[pod.namespace] >= MAX_REPULSIONS:
            return
        self._terms_of[pod.namespace] += 1
        made = self._repulsions[term, pod.namespace] = Repulsion(term, pod.namespace, {pod.node})
        narrow = narrowing(term.selector)
        if narrow is not None:
            for value in dict.fromkeys(narrow.values):
                self._repelling.setdefault((narrow.key, value), []).append(made)
        elif term.selector is not None:
            self._repelling_any.append(made)


def _subtract(left: dict[str, int], requested: ResourceCounts) -> None:
    for name, amount in requested:
        left[name] = left.get(name, 0) - amount


def narrowing(selector: Selector) -> Requirement | None:
    """The requirement by which pods are looked up; None if none names values."""
    return next((requirement for requirement in selector or () if requirement.operator == "In"), None)
