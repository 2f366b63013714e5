"""Statuses that a kubelet gives to pods (pure)."""

from __future__ import annotations

from deploy.neonvm.objects.pods import MOVED
from protocol.kubernetes.objects import Json, items, text


def running_status(pod: Json, address: str, now: str) -> Json:
    """Status of a pod that runs, with all of its containers; an empty ``address`` leaves the pod's own."""
    # A merge patch that omits the address leaves it as it is; an empty string would overwrite it.
    addresses: Json = {"podIP": address, "podIPs": [{"ip": address}]} if address else {}
    return {
        "phase": "Running",
        **addresses,
        # All local nodes share one host.
        "hostIP": "127.0.0.1",
        "startTime": now,
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": now}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": [
            {
                "name": text(container, "name"),
                "image": text(container, "image"),
                "imageID": "",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
            for container in items(pod, "spec", "containers")
        ],
    }


def failed_status(message: str, now: str) -> Json:
    """Status of a pod that has ended and will not run again."""
    return {
        "phase": "Failed",
        "reason": "GuestEnded",
        "message": message,
        # A merge patch replaces the whole list: the pod's other conditions end with it.
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": now}],
    }


def moved_status(message: str, now: str) -> Json:
    """Status of a pod that has done its work: its guest runs in another pod."""
    return {**failed_status(message, now), "phase": "Succeeded", "reason": MOVED}
