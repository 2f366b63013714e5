"""Readiness, faults and log lines of ``neonvm-devices``, and of every device plugin of ours. Pure."""

from __future__ import annotations

from typing import Final

NOT_FOLLOWED: Final = "the kubelet does not follow this plugin yet"
NOT_TAKEN: Final = "the kubelet does not take the plugin"
NO_SOCKET: Final = "there can be no socket in {folder}: {error}"
GRPC_ERROR: Final = "{code}: {details}"
BAD_REQUEST: Final = "expected an AllocateRequest: {error}"
REGISTERED: Final = "registered"
ALLOCATED: Final = "allocated the node's devices to a pod"
