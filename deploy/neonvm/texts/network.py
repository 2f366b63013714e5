"""Readiness, errors and log lines of ``neonvm-network``. Pure."""

from __future__ import annotations

from typing import Final

NOT_LISTED: Final = "not synced with the API server yet"
NOT_UP: Final = "the flat network is not up on this node: {reason}"
NO_INTERFACE: Final = "no interface of this node has the address {address}"
RULES_REFUSED: Final = "nftables rejected the bridge rules: {error}"
POD_UNKNOWN: Final = "cannot ask the kubelet which pod has {device}: {error}"
BAD_RESPONSE: Final = "expected a ListPodResourcesResponse: {error}"
INVALID_DEVICE: Final = "invalid device ID: {device}"

# Log lines; the object of each is in the entry's fields

MAINTENANCE_FAILED: Final = "cannot maintain the flat network; not handing out taps"
FENCE_REMOVED: Final = "another program removed the nftables fence; loading it again"
TAP_NOT_HANDED_OUT: Final = "pod not connected yet; retrying"
NO_VM: Final = "no tap for this pod: no VM names it in its status"
TAP_HANDED_OUT: Final = "pod connected"
ACCEPT_FAILED: Final = "cannot accept a pod's connection for its tap"
