"""The checks that kube-scheduler makes itself before it asks an extender: of nodes, and the rules between pods. Pure.

``scheduler_plugin.constraints`` judges them, as it does for migration targets; the words are kube-scheduler's. The
labels of namespaces are not known here, so a term that selects namespaces by them rules nothing out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from protocol.kubernetes.conditions import holds
from protocol.kubernetes.objects import Json, child, flag, is_leaving, items, labels_of, name_of, node_of
from scheduler_plugin.cluster.scheduling_fields import node_traits, pod_constraints, pod_traits
from scheduler_plugin.constraints.cluster_view import ClusterView, PlacedPod
from scheduler_plugin.constraints.judge import Candidate, Judge, port_taken
from scheduler_plugin.constraints.model import Taint
from scheduler_plugin.constraints.selectors import node_matches, untolerated

AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"
SPREAD = "node(s) didn't match pod topology spread constraints"
PORTS = "node(s) didn't have free ports for the requested pod ports"


def placed(pod: Json, node: str = "") -> PlacedPod:
    """A pod as the rules of others see it, on its node or on the one that it is about to get."""
    traits = pod_traits(labels_of(pod), child(pod, "spec"), is_leaving=is_leaving(pod))
    return PlacedPod(node or node_of(pod), name_of(pod).namespace, traits)


class PodRules:
    """The rules for one pod that wants a node, against the pods that have one."""

    def __init__(self, pod: Json, nodes: Mapping[str, Json], pods: Iterable[PlacedPod]) -> None:
        taints = {name: items(node, "spec", "taints") for name, node in nodes.items()}
        self._view = ClusterView(
            {name: node_traits(labels_of(node), taints[name], []) for name, node in nodes.items()}, pods
        )
        spec = child(pod, "spec")
        self._traits = pod_traits(labels_of(pod), spec, is_leaving=False)
        candidate = Candidate(name_of(pod).namespace, pod_constraints(spec), self._traits)
        self._judgement = Judge(self._view).judge(candidate)

    def preference(self, node: str) -> int:
        """The weight by which the pod would rather be on ``node`` (negative: elsewhere)."""
        # The judge counts what speaks against a node; a scheduler's weight counts what speaks for it.
        return -self._judgement.preference(node)[1]

    def refusal(self, node: str) -> str | None:
        """The reason why ``node`` cannot take the pod beside those already placed; None if it can."""
        labels, affinity = self._view.nodes[node].labels, self._judgement.affinity
        if affinity.hindrance(labels) is not None:
            # The judge treats all three kinds alike; the message has to say which it was.
            if any(labels.get(key) == value for key, value in affinity.repelled):
                return ANTI_AFFINITY
            if any(labels.get(key) == value for key, value in affinity.repelled_by_others):
                return EXISTING_ANTI_AFFINITY
            return AFFINITY
        if any(limit.hindrance(labels) is not None for limit in self._judgement.spreads):
            return SPREAD
        taken = (port for pod in self._view.on(node) for port in pod.traits.host_ports)
        return PORTS if port_taken(self._traits.host_ports, taken) is not None else None


# A cordoned node may lack this taint until the node lifecycle controller has written it, so `spec.unschedulable` is
# judged as if the taint were there.
_UNSCHEDULABLE_TAINT: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def refusal(pod: Json, node: Json) -> str | None:
    """The reason why ``node`` cannot take ``pod``; None if it can."""
    # A node that has not reported the condition yet is not ready either.
    if not holds(node, "Ready"):
        return "node(s) were not ready"
    wanted = pod_constraints(child(pod, "spec"))
    if wanted.unreadable:
        # Otherwise it would be placed against rules that were not understood.
        return f"node(s) didn't match Pod's node affinity/selector: {wanted.unreadable}"
    if flag(node, "spec", "unschedulable") and untolerated((_UNSCHEDULABLE_TAINT,), wanted.tolerations):
        return "node(s) were unschedulable"
    traits = node_traits(labels_of(node), items(node, "spec", "taints"), [])
    if taint := untolerated(traits.taints, wanted.tolerations):
        return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
    if not node_matches(wanted, name_of(node).name, traits):
        return "node(s) didn't match Pod's node affinity/selector"
    return None


POD_SCHEDULED: Final = "PodScheduled"
MAX_EXTENDER_SCORE_FACTOR: Final = 10
"""kube-scheduler scores nodes 0-100, an extender 0-10: its scores count ten times, times its weight."""
MOST_FOR_AFFINITY: Final = 200
"""kube-scheduler's score for preferred affinities between pods: 0-100, times its default weight of 2."""


def winner(
    feasible: Sequence[str],
    scores: Mapping[str, int],
    weight: int,
    preferences: Mapping[str, int],
    pick: Callable[[Sequence[str]], str],
) -> str:
    """The node of ``feasible`` (not empty) with the greatest score; ``pick`` chooses among equals.

    A node that the extender did not score counts as 0. ``preferences`` are the pod's weights for nodes, negative to
    avoid one: the most preferred node gets kube-scheduler's greatest score.
    """
    # Weights are rescaled to 0-200 over the feasible nodes, as kube-scheduler does before it adds up scores.
    affinity_scores = _normalized({node: preferences.get(node, 0) for node in feasible})
    totals = {
        node: scores.get(node, 0) * weight * MAX_EXTENDER_SCORE_FACTOR + affinity_scores[node] for node in feasible
    }
    best = max(totals.values())
    return pick([node for node in feasible if totals[node] == best])


def _normalized(preferences: Mapping[str, int]) -> dict[str, int]:
    least, most = min(preferences.values()), max(preferences.values())
    span = most - least
    # If all weights are equal no node is preferred, and the span of zero must not divide.
    return {node: MOST_FOR_AFFINITY * (weight - least) // span if span else 0 for node, weight in preferences.items()}


def no_node_message(refusals: Mapping[str, str], nodes: int) -> str:
    """kube-scheduler's sentence for a pod that fits nowhere: each reason with the number of nodes it holds for."""
    if not nodes:
        return "no nodes available to schedule pods"
    # Counted by reason: a cluster of hundreds of nodes still gives one short message.
    counted = Counter(refusals.values())
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counted.items(), key=lambda pair: pair[0]))
    return f"0/{nodes} nodes are available: {reasons}."


def unschedulable(message: str, now: str) -> Json:
    """The condition of a pod that fits nowhere, in kube-scheduler's form."""
    return {
        "type": POD_SCHEDULED,
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": now,
    }
