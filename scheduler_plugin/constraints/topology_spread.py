"""Topology spread constraints with DoNotSchedule, as in kube-scheduler's PodTopologySpread plugin."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_plugin.constraints.cluster_view import ClusterView
from scheduler_plugin.constraints.model import Labels, NodeTraits, PodConstraints, PodTerm, Spread
from scheduler_plugin.constraints.pod_queries import PodQuery
from scheduler_plugin.constraints.selectors import node_matches, selects, untolerated, with_keys
from scheduler_plugin.texts import refusals


@dataclass(frozen=True, slots=True)
class SpreadLimit:
    """One constraint: pods per domain, and the maximum per domain including the new pod."""

    key: str
    counts: dict[str, int]
    adds: int
    max_count: int

    def obstacle(self, labels: Labels) -> str | None:
        """The reason why a node with these labels is excluded; None if it is not."""
        value = labels.get(self.key)
        if value is None:
            return refusals.SPREAD_LABEL.format(key=self.key)
        if self.counts.get(value, 0) + self.adds > self.max_count:
            return refusals.SPREAD.format(key=self.key)
        return None


def spread_query(spread: Spread, namespace: str, labels: Labels) -> PodQuery:
    """The pods that the constraint counts. As in kube-scheduler, without terminating ones."""
    selector = with_keys(spread.selector, labels, spread.match_label_keys)
    return PodQuery((PodTerm("", selector),), namespace, counts_terminating=False)


def spread_limits(
    constraints: PodConstraints, namespace: str, labels: Labels, view: ClusterView
) -> tuple[SpreadLimit, ...]:
    """The limits, computed once for all nodes. Only nodes with the topology keys of all constraints count."""
    if not constraints.spreads:
        return ()
    keys = {spread.topology_key for spread in constraints.spreads}
    # As in kube-scheduler.
    complete = {name: node for name, node in view.nodes.items() if all(key in node.labels for key in keys)}
    # Once for all of them: a VM may have a hundred, and as many terms for each node.
    policies = {(spread.honors_affinity, spread.honors_taints) for spread in constraints.spreads}
    counted = {
        policy: [(name, node) for name, node in complete.items() if _counts(policy, constraints, name, node)]
        for policy in policies
    }
    limits = []
    for spread in constraints.spreads:
        nodes = counted[spread.honors_affinity, spread.honors_taints]
        domains = {name: node.labels[spread.topology_key] for name, node in nodes}
        limits.append(_limit(spread, domains, namespace, labels, view))
    return tuple(limits)


def _limit(spread: Spread, domains: dict[str, str], namespace: str, labels: Labels, view: ClusterView) -> SpreadLimit:
    """The limit of one constraint. ``domains`` has the domain of each node that counts."""
    query = spread_query(spread, namespace, labels)
    counts = dict.fromkeys(domains.values(), 0)
    for node, pods in view.nodes_with(query).items():
        if node in domains:
            counts[domains[node]] += pods
    # As in kube-scheduler, with fewer domains than ``minDomains`` the global minimum is 0.
    global_minimum = min(counts.values(), default=0) if len(counts) >= spread.min_domains else 0
    adds = int(selects(query.terms[0].selector, labels))
    return SpreadLimit(spread.topology_key, counts, adds, global_minimum + spread.max_skew)


def _counts(policy: tuple[bool, bool], constraints: PodConstraints, name: str, node: NodeTraits) -> bool:
    honors_affinity, honors_taints = policy
    if honors_affinity and not node_matches(constraints, name, node):
        return False
    return not (honors_taints and untolerated(node.taints, constraints.tolerations))
