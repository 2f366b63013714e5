"""Limits the time to check the constraints of VMs in one planning round: whoever may edit VMs writes their constraints.

- The unit is one comparison of a pod or node with one part of a constraint; a million take about a second.
- Constraints that cost little are always checked. All others share ``MAX_COMPARISONS`` per round.
"""

from __future__ import annotations

from typing import Final

from scheduler_plugin.constraints.cluster_view import ClusterView, namespaces_of, resolved
from scheduler_plugin.constraints.model import Labels, PodConstraints, PodTerm, Requirements, Selector
from scheduler_plugin.constraints.selectors import with_keys

MAX_COMPARISONS: Final = 300_000

CHEAP: Final = 1_000
CHEAP_PER_NODE: Final = 4
"""Comparisons that every VM may cost: ``CHEAP`` and, for each node, a few labels."""

_VALUES: Final = 50
"""Values of a requirement that take as long as one comparison."""


class CostLimit:
    """The comparisons that are left in this round."""

    def __init__(self) -> None:
        self._left = MAX_COMPARISONS

    def allows(self, comparisons: int, view: ClusterView) -> bool:
        """Return True if that many comparisons may be made; count them if they are not cheap."""
        if comparisons <= CHEAP + CHEAP_PER_NODE * len(view.nodes):
            return True
        if comparisons > self._left:
            return False
        self._left -= comparisons
        return True


def with_nodes(constraints: PodConstraints, view: ClusterView) -> int:
    """The approximate number of comparisons of a pod's constraints with all nodes."""
    terms = [*(constraints.node_terms or ()), *(preference.term for preference in constraints.preferred_nodes)]
    parts = sum(_parts(term.labels) + _parts(term.fields) for term in terms) + _parts(constraints.node_selector)
    return parts * len(view.nodes) + len(constraints.tolerations) * view.taints


def with_pods(constraints: PodConstraints, namespace: str, labels: Labels, view: ClusterView) -> int:
    """The approximate number of comparisons of the constraints of a pod in ``namespace`` with all pods."""
    terms = [*constraints.anti_affinity, *(preference.term for preference in constraints.preferred_pods)]
    # Pods that the first term may select are compared with all.
    terms += constraints.affinity[:1] * len(constraints.affinity)
    selectors = (with_keys(spread.selector, labels, spread.match_label_keys) for spread in constraints.spreads)
    of_spreads = sum(view.count(selector, (namespace,)) * _parts(selector) for selector in selectors)
    of_terms = sum(_of_term(term, namespace, labels, view) for term in terms)
    return of_terms + of_spreads + len(constraints.spreads) * len(view.nodes)


def _of_term(term: PodTerm, namespace: str, labels: Labels, view: ClusterView) -> int:
    selector = resolved(term, labels).selector
    return view.count(selector, namespaces_of(term, namespace)) * (_parts(selector) + _parts(term.namespace_selector))


def _parts(requirements: Requirements | Selector) -> int:
    return 1 + sum(1 + len(requirement.values) // _VALUES for requirement in requirements or ())
