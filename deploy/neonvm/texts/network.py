"""Readiness, faults and log lines of ``neonvm-network``. Pure."""

from __future__ import annotations

from typing import Final

NOT_LISTED: Final = "not synced with the API server yet"
NOT_UP: Final = "the flat network is not up on this node: {reason}"
NO_INTERFACE: Final = "no interface of this node has the address {address}"
RULES_REFUSED: Final = "nftables rejected the bridge rules: {error}"
POD_UNKNOWN: Final = "cannot ask the kubelet which pod has {device}: {error}"
BAD_ANSWER: Final = "expected a ListPodResourcesResponse: {error}"
NO_PLACE: Final = "invalid device ID: {device}"

# Log lines; what each is about stands in the fields of the entry

NOT_KEPT_UP: Final = "cannot maintain the flat network; not handing out taps"
FENCE_REMOVED: Final = "another program removed the nftables fence; loading it again"
NOT_PLUGGED_IN: Final = "pod not connected yet; retrying"
NO_VM: Final = "no tap for this pod: no VM names it in its status"
PLUGGED_IN: Final = "pod connected"
LEFTOVER: Final = "cannot remove the folder of a deleted pod"
CALL_LOST: Final = "cannot accept a pod's connection for its tap"
