"""Identity of a caller, and the VMs that it may speak for (B.4). Pure.

A sidecar speaks for the pod that its token is bound to: same namespace, name and UID. A per-node agent, whose service
account the settings list, speaks for the pods of the node that its token is bound to. So does a pod that the settings
admit without a token, for those of its own node.
No usable token is 401, another's pod is 403; neither changes anything.
"""

from __future__ import annotations

from protocol.kubernetes.access_reviews import CallerIdentity
from scheduler_plugin.ledger import PodFacts


def may_speak_for(who: CallerIdentity, pod: PodFacts, node: str | None, node_agents: frozenset[str]) -> bool:
    """Return True if ``who`` is the agent of ``pod``, whose claim is on ``node``."""
    # By UID: a pod that was deleted and created again under the same name is another one.
    if who.pod_uid is not None and who.pod_uid == pod.uid:
        return who.namespace == pod.name.namespace and who.pod == pod.name.name
    return (who.by_address or who.account in node_agents) and who.node is not None and who.node == node
