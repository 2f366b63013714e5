"""Pods that filter has sent to one node and whose bind has not come yet: the next pods are better sent elsewhere.

Nothing is reserved: an assumption says which of the nodes that a pod fits is best, and never that a pod does not fit.
Bind alone reserves.
"""

from __future__ import annotations

from typing import Final

from protocol.units import Resources

KEPT: Final = 16
"""More than kube-scheduler has under way between the end of a pod's cycle and its bind."""


class AssumedPods:
    """Nodes and claims of assumed pods, by UID, the oldest first."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, Resources]] = {}

    def assume(self, uid: str, node: str, claim: Resources) -> None:
        """The pod was sent to ``node`` and will claim ``claim`` there."""
        # Out and in again, so that it counts as the newest.
        self._pods.pop(uid, None)
        self._pods[uid] = (node, claim)
        # A bind may never come; without a clock, only newer assumptions end one.
        if len(self._pods) > KEPT:
            del self._pods[next(iter(self._pods))]

    def settle(self, uid: str) -> None:
        """The pod's bind has come, or it is asked about again, or it is gone."""
        self._pods.pop(uid, None)

    def taken(self, beside: str) -> dict[str, Resources]:
        """Claims of all of them but the pod ``beside``, by node."""
        claims: dict[str, Resources] = {}
        for uid, (node, claim) in self._pods.items():
            if uid != beside:
                claims[node] = claims[node] + claim if node in claims else claim
        return claims
