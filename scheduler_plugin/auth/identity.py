"""Identity of a caller, and the VMs that it may speak for (B.4). Pure.

A sidecar speaks for the pod that its token is bound to: same namespace, name and UID. A per-node agent, whose service
account the settings list, speaks for the pods of the node that its token is bound to. So does a pod that the settings
admit without a token, for those of its own node.
No usable token is 401, another's pod is 403; neither changes anything.
"""

from __future__ import annotations

from protocol.kubernetes.access_reviews import CallerIdentity
from scheduler_plugin.ledger import PodFacts
from scheduler_plugin.settings.document import Tokenless


def identity_of(pod: PodFacts | None, admitted: Tokenless | None) -> CallerIdentity | None:
    """Identity of ``pod``, from whose address a request comes; None if it is not admitted."""
    # A VM's pod is never admitted: programs in a guest must not speak for other VMs. The address of a terminating pod
    # may soon be another's.
    if pod is None or admitted is None or pod.vm is not None or pod.traits.is_leaving or not admitted.admits(pod):
        return None
    account = f"{pod.name.namespace}:{pod.name.name}"
    # With the pod's node: like any per-node agent it speaks only for VMs on its own node.
    return CallerIdentity(account, pod.name.namespace, pod.name.name, pod.uid, pod.node, by_address=True)


def may_speak_for(who: CallerIdentity, pod: PodFacts, node: str | None, node_agents: frozenset[str]) -> bool:
    """Return True if ``who`` is the agent of ``pod``, whose claim is on ``node``."""
    # By UID: a pod that was deleted and created again under the same name is another one.
    if who.pod_uid is not None and who.pod_uid == pod.uid:
        return who.namespace == pod.name.namespace and who.pod == pod.name.name
    return (who.by_address or who.account in node_agents) and who.node is not None and who.node == node
