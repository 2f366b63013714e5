"""kube-scheduler's own filters, which run before an extender's: taints, affinity, topology spread, host ports (pure).

``scheduler_plugin.constraints`` evaluates them, as for migration targets; the messages are kube-scheduler's. Namespace
labels are unknown here, so a term with a ``namespaceSelector`` excludes no node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from protocol.kubernetes.conditions import is_condition_true
from protocol.kubernetes.objects import Json, child, flag, is_terminating, items, labels_of, name_of, node_of
from scheduler_plugin.cluster.scheduling_fields import node_traits, pod_constraints, pod_traits
from scheduler_plugin.constraints.checker import Candidate, ConstraintChecker, port_taken
from scheduler_plugin.constraints.cluster_view import ClusterView, PlacedPod
from scheduler_plugin.constraints.model import Taint
from scheduler_plugin.constraints.selectors import node_matches, untolerated

AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"
SPREAD = "node(s) didn't match pod topology spread constraints"
PORTS = "node(s) didn't have free ports for the requested pod ports"


def placed_pod(pod: Json, node: str = "") -> PlacedPod:
    """``pod`` as other pods' rules see it, on ``node`` (by default the node that it is bound to)."""
    traits = pod_traits(labels_of(pod), child(pod, "spec"), is_terminating=is_terminating(pod))
    return PlacedPod(node or node_of(pod), name_of(pod).namespace, traits)


class PodRules:
    """Affinity, spread and port rules between one pending pod and the placed ``pods``."""

    def __init__(self, pod: Json, nodes: Mapping[str, Json], pods: Iterable[PlacedPod]) -> None:
        taints = {name: items(node, "spec", "taints") for name, node in nodes.items()}
        self._view = ClusterView(
            {name: node_traits(labels_of(node), taints[name], []) for name, node in nodes.items()}, pods
        )
        spec = child(pod, "spec")
        self._traits = pod_traits(labels_of(pod), spec, is_terminating=False)
        candidate = Candidate(name_of(pod).namespace, pod_constraints(spec), self._traits)
        self._verdict = ConstraintChecker(self._view).check(candidate)

    def preference(self, node: str) -> int:
        """Weight of the pod's preferred affinities for ``node``; negative to avoid it."""
        # The checker's number grows with objections, a scheduler's weight with preference.
        return -self._verdict.preference(node)[1]

    def refusal(self, node: str) -> str | None:
        """Reason why the pod cannot be on ``node``, given the placed pods; None if it can."""
        labels, affinity = self._view.nodes[node].labels, self._verdict.affinity
        if affinity.obstacle(labels) is not None:
            # The checker does not distinguish these three; kube-scheduler's messages do.
            if any(labels.get(key) == value for key, value in affinity.repelled):
                return ANTI_AFFINITY
            if any(labels.get(key) == value for key, value in affinity.repelled_by_others):
                return EXISTING_ANTI_AFFINITY
            return AFFINITY
        if any(limit.obstacle(labels) is not None for limit in self._verdict.spreads):
            return SPREAD
        taken = (port for pod in self._view.pods_on(node) for port in pod.traits.host_ports)
        return PORTS if port_taken(self._traits.host_ports, taken) is not None else None


# `spec.unschedulable` counts like this taint, which the node lifecycle controller may not have written yet.
_UNSCHEDULABLE_TAINT: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def refusal(pod: Json, node: Json) -> str | None:
    """Reason why ``pod`` cannot be on ``node``, regardless of other pods; None if it can."""
    if not is_condition_true(node, "Ready"):
        return "node(s) were not ready"
    constraints = pod_constraints(child(pod, "spec"))
    if constraints.unreadable:
        # A pod with rules that cannot be evaluated is not placed.
        return f"node(s) didn't match Pod's node affinity/selector: {constraints.unreadable}"
    if flag(node, "spec", "unschedulable") and untolerated((_UNSCHEDULABLE_TAINT,), constraints.tolerations):
        return "node(s) were unschedulable"
    traits = node_traits(labels_of(node), items(node, "spec", "taints"), [])
    if taint := untolerated(traits.taints, constraints.tolerations):
        return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
    if not node_matches(constraints, name_of(node).name, traits):
        return "node(s) didn't match Pod's node affinity/selector"
    return None


POD_SCHEDULED: Final = "PodScheduled"
EXTENDER_SCORE_FACTOR: Final = 10
"""kube-scheduler scores nodes 0-100, an extender 0-10."""
MAX_AFFINITY_SCORE: Final = 200
"""kube-scheduler's InterPodAffinity score: 0-100, times its default weight of 2."""


def winner(feasible: Sequence[str], scores: Mapping[str, int], preferences: Mapping[str, int], jitter: float) -> str:
    """The node of ``feasible`` (not empty) with the highest score; ``jitter`` in [0, 1) breaks ties.

    ``scores`` are the extender's, 0 if missing. ``preferences`` are weights of preferred affinities, scaled to 0-200 as
    in kube-scheduler.
    """
    affinity_scores = _normalize({node: preferences.get(node, 0) for node in feasible})
    totals = {node: scores.get(node, 0) * EXTENDER_SCORE_FACTOR + affinity_scores[node] for node in feasible}
    most = max(totals.values())
    best = [node for node in feasible if totals[node] == most]
    return best[int(jitter * len(best))]


def _normalize(preferences: Mapping[str, int]) -> dict[str, int]:
    least, most = min(preferences.values()), max(preferences.values())
    span = most - least
    # All weights are equal: no node is preferred.
    return {node: MAX_AFFINITY_SCORE * (weight - least) // span if span else 0 for node, weight in preferences.items()}


def no_node_message(refusals: Mapping[str, str], nodes: int) -> str:
    """kube-scheduler's message for an unschedulable pod: each reason with its number of nodes."""
    if not nodes:
        return "no nodes available to schedule pods"
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(Counter(refusals.values()).items()))
    return f"0/{nodes} nodes are available: {reasons}."


def unschedulable(message: str, now: str) -> Json:
    """kube-scheduler's condition of an unschedulable pod."""
    return {
        "type": POD_SCHEDULED,
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": now,
    }
