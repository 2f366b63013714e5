"""Why a pod is not resized, as sentences and as fields of ``/explain`` (B.7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agent.core.pods.pauses import RESOURCE_NAMES, Pauses, ResizePause
from agent.core.vm import Vm
from protocol.kubernetes.objects import Json
from protocol.pod_database import DEFERRED
from protocol.units import Instant

SHOWN: Final = 200
"""Maximum characters shown of a message from the kubelet or the API server."""


def sentences(vm: Vm | None, pauses: Pauses, now: Instant) -> Iterator[str]:
    """A sentence about the kubelet's objection, and one about each pause."""
    objection = None if vm is None else vm.objection
    if vm is not None and objection is not None:
        message = objection.message[:SHOWN]
        if objection.verdict == DEFERRED:
            yield f"the kubelet defers {vm.use} until the node has room: {message}"
        else:
            yield f"the kubelet did not resize the pod to {vm.use}: {objection.verdict}: {message}"
    for pause in pauses.set_pauses:
        if pause.is_active(now):
            yield _paused(pause, now)


def resize_state(vm: Vm | None, pauses: Pauses, now: Instant) -> Json | None:
    """The objection and the pauses as JSON; None for a VM."""
    if vm is None or not vm.is_pod:
        return None
    objection = vm.objection
    return {
        "objection": None if objection is None else {"verdict": objection.verdict, "message": objection.message},
        "pauses": [
            {
                "resource": pause.resource,
                "direction": "up" if pause.is_growth else "down",
                "because": pause.because,
                "times": pause.count,
                "retry_seconds": round(pause.until - now, 3),
            }
            for pause in pauses.set_pauses
            if pause.is_active(now)
        ],
    }


def _paused(pause: ResizePause, now: Instant) -> str:
    change, left = "growth" if pause.is_growth else "shrink", pause.until - now
    because = pause.because[:SHOWN]
    return f"{RESOURCE_NAMES[pause.resource]} {change} is retried in {left:.0f} s (try {pause.count + 1}): {because}"
