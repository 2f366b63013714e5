"""What a kubelet writes into a pod's status (pure)."""

from __future__ import annotations

from deploy.neonvm.objects.pods import MOVED
from protocol.kubernetes.objects import Json, items, text


def running_status(pod: Json, address: str, now: str) -> Json:
    """The pod runs, and its containers with it; an ``address`` that is empty is left as it is."""
    addresses: Json = {"podIP": address, "podIPs": [{"ip": address}]} if address else {}
    return {
        "phase": "Running",
        **addresses,
        "hostIP": "127.0.0.1",
        "startTime": now,
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": now}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": [
            {
                "name": text(each, "name"),
                "image": text(each, "image"),
                "imageID": "",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
            for each in items(pod, "spec", "containers")
        ],
    }


def failed_status(message: str, now: str) -> Json:
    """The pod has ended and will not run again."""
    return {
        "phase": "Failed",
        "reason": "GuestEnded",
        "message": message,
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": now}],
    }


def moved_status(message: str, now: str) -> Json:
    """The pod has done its work: its guest runs in another pod."""
    return {**failed_status(message, now), "phase": "Succeeded", "reason": MOVED}
