"""Choice of the node, and the message if none fits: the pure part of one scheduling cycle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from protocol.kubernetes.objects import Json

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
