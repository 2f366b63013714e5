"""Which requests each caller of a runner pod may make (pure).

A caller is identified by the common name of its client certificate, signed by the controller's CA.
"""

from __future__ import annotations

from typing import Final

CONTROLLER: Final = "neonvm-controller"
AGENT: Final = "autoscaling-agent"
"""Per-node agents; they only read ``/database``. A sidecar agent asks the guest directly."""
NOBODY: Final = ""
"""A caller without a certificate, such as a kubelet's probe."""
ANYONE: Final = "*"
"""Any caller of a pod without a CA, created by NeonVM's own controller."""

Route = tuple[str, str]

_PROBES: Final[frozenset[Route]] = frozenset({("GET", "/ready"), ("GET", "/healthz")})
_OF_AGENTS: Final[frozenset[Route]] = _PROBES | {("GET", "/database")}
_AS_NEONVMS: Final[frozenset[Route]] = _OF_AGENTS | {
    ("GET", "/cpu_current"),
    ("GET", "/status"),
    ("POST", "/cpu_change"),
}
"""The API of NeonVM's own runner, and reads that reveal no more than it. No migrations."""

_MAY: Final = {NOBODY: _PROBES, AGENT: _OF_AGENTS, ANYONE: _AS_NEONVMS}


def may_ask(who: str, method: str, path: str) -> bool:
    """Return True if caller ``who`` may make this request. Unknown callers have the rights of a probe."""
    return who == CONTROLLER or (method, path) in _MAY.get(who, _PROBES)


def may_use_monitor(who: str) -> bool:
    """Return True if caller ``who`` may connect to QEMU's monitor, through the gate that filters commands."""
    # NeonVM's own controller has no certificate, and its runner's monitor is open to everyone.
    return who in {CONTROLLER, ANYONE}
