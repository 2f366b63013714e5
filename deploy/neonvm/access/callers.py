"""Which requests each caller of a runner pod may make (pure).

A caller is identified by the common name of its client certificate, signed by the controller's CA.
"""

from __future__ import annotations

from typing import Final

CONTROLLER: Final = "neonvm-controller"
AGENT: Final = "autoscaling-agent"
"""Per-node agents; they only read ``/database``. A sidecar agent queries the guest directly."""
ANONYMOUS: Final = ""
"""A caller without a certificate, such as a kubelet's probe."""
ANYONE: Final = "*"
"""Any caller of a pod without a CA, created by NeonVM's own controller."""

Route = tuple[str, str]

_PROBES: Final[frozenset[Route]] = frozenset({("GET", "/ready"), ("GET", "/healthz")})
_AGENT_ROUTES: Final[frozenset[Route]] = _PROBES | {("GET", "/database")}
_NEONVM_ROUTES: Final[frozenset[Route]] = _AGENT_ROUTES | {
    ("GET", "/cpu_current"),
    ("GET", "/status"),
    ("POST", "/cpu_change"),
}
"""The API of NeonVM's own runner, and reads that reveal no more than it does. No migrations."""

_ALLOWED: Final = {ANONYMOUS: _PROBES, AGENT: _AGENT_ROUTES, ANYONE: _NEONVM_ROUTES}


def may_request(caller: str, method: str, path: str) -> bool:
    """Return True if ``caller`` may make this request. Unknown callers have the rights of a probe."""
    return caller == CONTROLLER or (method, path) in _ALLOWED.get(caller, _PROBES)


def may_use_monitor(caller: str) -> bool:
    """Return True if ``caller`` may connect to QEMU's monitor, through the gate that filters commands."""
    # NeonVM's own controller has no certificate, and its runner's monitor is open to everyone.
    return caller in {CONTROLLER, ANYONE}
