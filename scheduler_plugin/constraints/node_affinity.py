"""nodeSelector, node affinity, and the node affinity of volumes."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_plugin.constraints.model import NodeTerm, NodeTraits, PodConstraints, Weighted
from scheduler_plugin.constraints.selectors import meets


def term_matches(term: NodeTerm, name: str, node: NodeTraits) -> bool:
    """Return True if the alternative holds for the node of that name; an empty one holds for no node."""
    # Kubernetes: an empty nodeSelectorTerm matches nothing, unlike an empty label selector.
    if not term.labels and not term.fields:
        return False
    return meets(term.labels, node.labels) and meets(term.fields, {"metadata.name": name})


def any_matches(terms: Iterable[NodeTerm], name: str, node: NodeTraits) -> bool:
    """Return True if one of the alternatives holds."""
    return any(term_matches(term, name, node) for term in terms)


def node_matches(constraints: PodConstraints, name: str, node: NodeTraits) -> bool:
    """Return True if nodeSelector and required node affinity hold."""
    if not meets(constraints.node_selector, node.labels):
        return False
    return constraints.node_terms is None or any_matches(constraints.node_terms, name, node)


def preferred_weight(terms: Iterable[Weighted[NodeTerm]], name: str, node: NodeTraits) -> int:
    """The sum of the weights of the preferred terms that hold."""
    return sum(preference.weight for preference in terms if term_matches(preference.term, name, node))
