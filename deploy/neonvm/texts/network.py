"""Readiness, faults and log lines of ``neonvm-network``. Pure."""

from __future__ import annotations

from typing import Final

NOT_LISTED: Final = "the API server has not been listed yet"
NOT_UP: Final = "the node's part of the flat network is not up: {reason}"
NO_INTERFACE: Final = "this node has no interface with the address {address}"
RULES_REFUSED: Final = "nftables does not take the rules for bridged frames: {error}"
POD_UNKNOWN: Final = "the kubelet does not say which pod has {place}: {error}"
BAD_ANSWER: Final = "expected a ListPodResourcesResponse: {error}"
NO_PLACE: Final = "not the name of a place: {place}"

# Log lines; what each is about stands in the fields of the entry

NOT_KEPT_UP: Final = "flat network not kept up; no taps are handed out"
FENCE_REMOVED: Final = "the fence was removed by another program; loading it again"
NOT_PLUGGED_IN: Final = "pod not plugged in yet; trying again"
NO_VM: Final = "no tap for this pod: no VM names it"
PLUGGED_IN: Final = "pod plugged in"
LEFTOVER: Final = "leftover folder of a pod not removed"
CALL_LOST: Final = "a pod's call for its tap cannot be accepted"
