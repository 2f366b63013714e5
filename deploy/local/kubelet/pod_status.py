"""Pod statuses that the kubelet writes (pure)."""

from __future__ import annotations

from deploy.neonvm.objects.pods import MOVED
from protocol.kubernetes.objects import Json, items, text


def running_status(pod: Json, address: str, now: str) -> Json:
    """Status of a running pod and its containers; an empty ``address`` leaves the pod's IP unchanged."""
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
    """Status of a pod that has failed."""
    return {
        "phase": "Failed",
        "reason": "GuestEnded",
        "message": message,
        # A merge patch replaces the whole list, so the pod's other conditions are removed.
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": now}],
    }


def moved_status(message: str, now: str) -> Json:
    """Status of a pod whose guest was migrated to another pod."""
    return {**failed_status(message, now), "phase": "Succeeded", "reason": MOVED}
