"""Readiness, errors and log lines of ``neonvm-devices`` and our other device plugins. Pure."""

from __future__ import annotations

from typing import Final

NOT_CONNECTED: Final = "the kubelet has not connected to this plugin yet"
REGISTRATION_FAILED: Final = "the kubelet rejected the registration"
NO_SOCKET: Final = "cannot create a socket in {folder}: {error}"
GRPC_ERROR: Final = "{code}: {details}"
BAD_REQUEST: Final = "expected an AllocateRequest: {error}"
REGISTERED: Final = "registered"
ALLOCATED: Final = "allocated devices to a pod"
