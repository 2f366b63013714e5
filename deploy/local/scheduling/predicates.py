"""The checks that kube-scheduler makes itself before it asks an extender: a small, pure part of them.

``refusal`` answers for one pod and node in kube-scheduler's words; the extender checks whether there is room.
"""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, child, flag, items, labels_of, name_of, text
from scheduler_plugin.cluster.scheduling_fields import node_traits, pod_constraints
from scheduler_plugin.constraints import Taint
from scheduler_plugin.constraints.node_affinity import node_matches
from scheduler_plugin.constraints.taints import untolerated

# A cordoned node may lack this taint until the node lifecycle controller has written it, so `spec.unschedulable` is
# judged as if the taint were there.
_UNSCHEDULABLE_TAINT: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def refusal(pod: Json, node: Json) -> str | None:
    """The reason why ``node`` cannot take ``pod``; None if it can."""
    # A node that has not reported the condition yet is not ready either.
    if text(condition_of(node, "Ready"), "status") != "True":
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
