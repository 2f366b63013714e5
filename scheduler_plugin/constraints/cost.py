"""Limits the time to check the constraints of VMs, which users write, in one planning round.

- The unit is one comparison of a pod or node with one part of a constraint; a million take about a second.
- Constraints that cost little are always checked. All others share ``MAX_COMPARISONS`` per round.
- VMs that do not fit into a round wait, and their namespaces take turns. What costs more than a whole round is left to
  kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final

from protocol.messages import ObjectName
from scheduler_plugin.constraints.cluster_view import ClusterView, narrowing
from scheduler_plugin.constraints.model import UNCONSTRAINED, Labels, PodConstraints, Requirements
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


class Turn(Enum):
    """The round in which the constraints of a VM may be checked."""

    NOW = "now"
    LATER = "later"  # in another round
    NEVER = "never"  # they cost more than a whole round


class CostLimit:
    """The comparisons that are left in this round, and the VMs that wait for another round.

    Each round has one namespace's turn: what the first of its waiting VMs needs is set aside.
    """

    def __init__(self) -> None:
        self._left = MAX_COMPARISONS
        self._waiting: dict[str, dict[ObjectName, int]] = {}
        self._allowed: set[ObjectName] = set()
        self._refused: set[ObjectName] = set()
        self._first: ObjectName | None = None
        self._aside = 0

    def start_round(self) -> None:
        """Start the next round. VMs that were checked in the last one, or that missed their turn, wait no more."""
        # A round may check no VM, or not all, such as while migrations are at their limit.
        if self._allowed or self._refused:
            self._end_turn()
        self._allowed.clear()
        self._refused.clear()
        self._left = MAX_COMPARISONS
        due = (vm for vms in self._waiting.values() for vm in vms.items())
        self._first, self._aside = next(due, (None, 0))

    def _end_turn(self) -> None:
        over = self._allowed if self._first is None else {*self._allowed, self._first} - self._refused
        waiting: dict[str, dict[ObjectName, int]] = {}
        for namespace, vms in self._waiting.items():
            if left := {vm: cost for vm, cost in vms.items() if vm not in over}:
                waiting[namespace] = left
        # The namespace that has had its turn is the last one now.
        if self._first is not None and (left := waiting.pop(self._first.namespace, {})):
            waiting[self._first.namespace] = left
        self._waiting = waiting

    def turn(self, vm: ObjectName, costs: Iterable[int], view: ClusterView) -> Turn:
        """Return the turn of a VM's comparisons; count them if they may be made now and are not cheap.

        ``costs`` are the costs of its steps: each is computed, which may do a part of the work, if the last is allowed.
        """
        if vm == self._first:
            self._aside = 0
        total, paid = 0, 0
        for cost in costs:
            total += cost
            if total <= CHEAP + CHEAP_PER_NODE * len(view.nodes):
                continue
            if total > MAX_COMPARISONS:
                return Turn.NEVER
            if total - paid > self._left - self._aside:
                self._waiting.setdefault(vm.namespace, {})[vm] = total
                self._refused.add(vm)
                self._allowed.discard(vm)
                return Turn.LATER
            self._left -= total - paid
            paid = total
        self._allowed.add(vm)
        self._refused.discard(vm)
        return Turn.NOW


def with_nodes(constraints: PodConstraints, view: ClusterView) -> int:
    """The approximate number of comparisons of a pod's constraints with all nodes."""
    terms = [*(constraints.node_terms or ()), *(preference.term for preference in constraints.preferred_nodes)]
    parts = sum(_parts(term.labels) + _parts(term.fields) for term in terms) + _parts(constraints.node_selector)
    return parts * len(view.nodes) + len(constraints.tolerations) * view.taints


def cheaper(constraints: PodConstraints) -> PodConstraints:
    """The constraints without the most expensive ones that they have: those about pods, else all."""
    about_nodes = replace(constraints, affinity=(), anti_affinity=(), spreads=(), preferred_pods=())
    return UNCONSTRAINED if about_nodes == constraints else about_nodes


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
