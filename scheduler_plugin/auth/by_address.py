"""Agents without a token: the original autoscaler's, identified by the address of their pod (B.11). Pure.

Off by default. The settings name the namespaces and the labels of the pods that need no token.
"""

from __future__ import annotations

from protocol.kubernetes.access_reviews import CallerIdentity
from scheduler_plugin.ledger import PodFacts
from scheduler_plugin.settings.tokenless import Tokenless


def identity_of(pod: PodFacts | None, admitted: Tokenless | None) -> CallerIdentity | None:
    """Identity of ``pod``, from whose address a request comes; None if it is not admitted."""
    # A VM's pod is never admitted: programs in a guest must not speak for other VMs. The address of a terminating pod
    # may soon be another's.
    if pod is None or admitted is None or pod.vm is not None or pod.traits.is_leaving or not admitted.admits(pod):
        return None
    account = f"{pod.name.namespace}:{pod.name.name}"
    # With the pod's node: like any per-node agent it speaks only for VMs on its own node.
    return CallerIdentity(account, pod.name.namespace, pod.name.name, pod.uid, pod.node, by_address=True)
