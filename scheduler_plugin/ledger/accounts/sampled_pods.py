"""Pods that were refused on a sample of the nodes: kube-scheduler stops looking once it has found enough that suit it.

Rules that hold here:

- It stops at ``sample_size`` suitable nodes, and its next look begins there, so a pod that it asks about again meets
  other nodes.
- A pod that was sent round in vain waits like any other, and is sent round again once room has become free for it.
"""

from __future__ import annotations

from typing import Final

KEPT: Final = 1_000
"""Pods remembered. The oldest are forgotten; the worst of that is that they are sent round once more."""

PERCENT: Final = 20
"""The ``percentageOfNodesToScore`` in our manifests."""

_LEAST: Final = 100
_TOLERANCE: Final = 0.9
"""kube-scheduler may know a few nodes more or less than we do."""


def sample_size(nodes: int, percent: int) -> int:
    """The number of suitable nodes that kube-scheduler is content with: ``percent`` (1-100, its
    ``percentageOfNodesToScore``) of all nodes, or its own default, whichever is less.

    >>> [sample_size(nodes, 20) for nodes in (80, 200, 2_000, 10_000)]
    [80, 100, 400, 500]
    >>> sample_size(2_000, 100)
    680
    """
    # The same arithmetic as kube-scheduler's numFeasibleNodesToFind.
    if nodes < _LEAST:
        return nodes
    return max(_LEAST, nodes * min(percent, max(5, 50 - nodes // 125)) // 100)


class SampledPods:
    """Retries left for each pod, by UID.

    ``percent`` is the ``percentageOfNodesToScore`` of kube-scheduler.
    """

    def __init__(self) -> None:
        self.percent = PERCENT
        self._left: dict[str, int] = {}

    def is_sample(self, asked: int, nodes: int) -> bool:
        """Return True if there may be suitable nodes beside those that were asked about."""
        return sample_size(nodes, self.percent) * _TOLERANCE <= asked < nodes

    def send_round(self, uid: str, asked: int, nodes: int) -> bool:
        """Note that the pod was refused on ``asked`` of all nodes. Returns True if it is to be sent round."""
        # Enough retries for every node to have its turn twice.
        left = self._left.pop(uid, 2 * -(-nodes // asked))
        self._left[uid] = max(-1, left - 1)
        if len(self._left) > KEPT:
            self.forget(next(iter(self._left)))
        return left > 0

    def is_sent_round(self, uid: str) -> bool:
        """Return True if the pod will be asked about again, on other nodes."""
        return self._left.get(uid, -1) >= 0

    def forget(self, uid: str) -> None:
        """The pod has found a node, is gone, or has room by now."""
        self._left.pop(uid, None)
