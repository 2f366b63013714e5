"""Agents that show no token: the original's, told by the address of their pod (B.11). Pure.

Rules that hold here:

- Never by default. The settings name the namespaces and the labels of the pods that are believed without a token.
- The address must be one pod's alone, pods of VMs included, and the pod neither a VM's nor on its way out.
- Such a pod speaks for VMs on its own node alone, as any agent of a node does.
"""

from __future__ import annotations

from scheduler_plugin.auth.identity import CallerIdentity
from scheduler_plugin.ledger import PodFacts
from scheduler_plugin.settings.tokenless import Tokenless


def identity_of(pod: PodFacts | None, admitted: Tokenless | None) -> CallerIdentity | None:
    """Identity of ``pod``, from whose address a request comes; None if it is not admitted."""
    if pod is None or admitted is None or pod.vm is not None or pod.traits.is_leaving or not admitted.admits(pod):
        return None
    account = f"{pod.name.namespace}:{pod.name.name}"
    return CallerIdentity(account, pod.name.namespace, pod.name.name, pod.uid, pod.node, by_address=True)
