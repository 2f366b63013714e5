"""Limits the time to check the constraints of VMs, which users write, in one planning round.

- The unit is one comparison of a pod or node with one part of a constraint; a million take about a second.
- Constraints that cost little are always checked. All others share ``MAX_COMPARISONS`` per round.
- VMs that do not fit into a round take turns, so that none is refused forever because of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from scheduler_plugin.constraints.cluster_view import ClusterView, narrowing
from scheduler_plugin.constraints.model import Labels, PodConstraints, Requirements
from scheduler_plugin.constraints.pod_affinity import affinity_query, term_query
from scheduler_plugin.constraints.pod_queries import PodQuery
from scheduler_plugin.constraints.topology_spread import spread_query

MAX_COMPARISONS: Final = 400_000
"""Enough for a selector with three labels that each of 100,000 VMs in one namespace has."""

CHEAP: Final = 1_000
CHEAP_PER_NODE: Final = 4
"""Comparisons that every VM may cost: ``CHEAP`` and, for each node, a few labels."""

_VALUES: Final = 50
"""Values of a requirement that take as long as one comparison."""

_READS: Final = 4
"""Pods or nodes that are read, without a comparison, in the time of one."""


class CostLimit:
    """The comparisons that are left in this round. VMs for which a round has too few come first in the next one."""

    def __init__(self) -> None:
        self._left, self._costly, self._first = MAX_COMPARISONS, 0, 0
        self._first_refused: int | None = None

    def start_round(self) -> None:
        """Start the next round: those before the first refused one have had their turn."""
        self._left, self._costly, self._first = MAX_COMPARISONS, 0, self._first_refused or 0
        self._first_refused = None

    def allows(self, costs: Iterable[int], view: ClusterView) -> bool:
        """Return True if a VM's comparisons may be made; count them if they are not cheap.

        ``costs`` are the costs of its steps: each is computed, which may do a part of the work, if the last is allowed.
        """
        total, paid, number = 0, 0, self._costly
        for cost in costs:
            total += cost
            if total <= CHEAP + CHEAP_PER_NODE * len(view.nodes):
                continue
            self._costly = number + 1
            if number < self._first or total - paid > self._left:
                # Nothing helps one that costs more than a whole round.
                if number >= self._first and total <= MAX_COMPARISONS and self._first_refused is None:
                    self._first_refused = number
                return False
            self._left -= total - paid
            paid = total
        return True


def with_nodes(constraints: PodConstraints, view: ClusterView) -> int:
    """The approximate number of comparisons of a pod's constraints with all nodes."""
    terms = [*(constraints.node_terms or ()), *(preference.term for preference in constraints.preferred_nodes)]
    parts = sum(_parts(term.labels) + _parts(term.fields) for term in terms) + _parts(constraints.node_selector)
    return parts * len(view.nodes) + len(constraints.tolerations) * view.taints


def queries_of(constraints: PodConstraints, namespace: str, labels: Labels) -> list[PodQuery]:
    """The queries of the constraints of a pod in ``namespace``."""
    terms = [*constraints.anti_affinity, *(preference.term for preference in constraints.preferred_pods)]
    queries = [term_query(term, namespace, labels) for term in terms]
    queries += [spread_query(spread, namespace, labels) for spread in constraints.spreads]
    if constraints.affinity:
        queries.append(affinity_query(constraints.affinity, namespace, labels))
    return queries


def costs_of(queries: Sequence[PodQuery], spreads: int, view: ClusterView) -> Iterator[int]:
    """The approximate number of comparisons for the queries and ``spreads`` constraints: first of indexes, then of the
    rest, which needs these indexes.
    """
    yield view.unindexed(queries) // _READS
    # Equal queries are answered once in a round.
    results = [view.known(query) for query in queries]
    read = sum(len(counted) for counted in results if counted is not None) // _READS
    new = {query for query, counted in zip(queries, results, strict=True) if counted is None}
    yield sum(_of_query(query, view) for query in new) + read + spreads * len(view.nodes)


def _of_query(query: PodQuery, view: ClusterView) -> int:
    selectors = [selector for term in query.terms for selector in (term.selector, term.namespace_selector)]
    parts = sum(_parts(selector) for selector in selectors if selector is not None)
    # All pods that are found by a label value have it.
    is_found = narrowing(query.terms[0].selector) is not None
    return view.count(query) * max(1, parts - is_found)


def _parts(requirements: Requirements) -> int:
    return 1 + sum(1 + len(requirement.values) // _VALUES for requirement in requirements)
