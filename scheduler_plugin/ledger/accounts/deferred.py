"""In-place resizes of ordinary pods that the kubelet has put off for lack of room (B.14).

Rules that hold here:

- What a pod waits for is reserved, as kube-scheduler counts it too, so that VMs cannot grow into room made for it.
- It is no pressure by itself. Only a pod that asks for it by its label has VMs moved, and only where that can help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.units import ZERO, Resources
from scheduler_plugin.ledger.facts import PodFacts


@dataclass(frozen=True, slots=True)
class DeferredResizes:
    """Amounts that pods wait for: ``all`` of them, and those of pods that ``asked`` for room. Per resource."""

    all: Resources = ZERO
    asked: Resources = ZERO

    @classmethod
    def of(cls, pod: PodFacts) -> DeferredResizes:
        """Amounts that this pod waits for."""
        if not pod.deferred.any:
            return NONE_DEFERRED
        # All of it is reserved, but VMs are moved only for a pod that asks for it by its label.
        return cls(pod.deferred, pod.deferred if pod.asks_room else ZERO)

    def __add__(self, other: DeferredResizes) -> DeferredResizes:
        return DeferredResizes(self.all + other.all, self.asked + other.asked)

    def __sub__(self, other: DeferredResizes) -> DeferredResizes:
        return DeferredResizes(self.all - other.all, self.asked - other.asked)


NONE_DEFERRED: Final = DeferredResizes()
