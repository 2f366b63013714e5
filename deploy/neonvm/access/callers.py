"""The requests that each caller of a runner pod may make (pure).

A caller is known by the common name of its certificate, which the controller's own authority has signed.
"""

from __future__ import annotations

from typing import Final

CONTROLLER: Final = "neonvm-controller"
AGENT: Final = "autoscaling-agent"
"""Agents of nodes: they ask how the database is, and nothing else. An agent in the pod asks the guest itself."""
NOBODY: Final = ""
"""A caller without a certificate, such as a kubelet with a probe."""
ANYONE: Final = "*"
"""Every caller of a pod without authorities: one that NeonVM's own controller made."""

Route = tuple[str, str]

_PROBES: Final[frozenset[Route]] = frozenset({("GET", "/ready"), ("GET", "/healthz")})
_OF_AGENTS: Final[frozenset[Route]] = _PROBES | {("GET", "/database")}
_AS_NEONVMS: Final[frozenset[Route]] = _OF_AGENTS | {
    ("GET", "/cpu"),
    ("GET", "/cpu_current"),
    ("GET", "/status"),
    ("POST", "/cpu_change"),
    ("PUT", "/cpu"),
}
"""What NeonVM's runner offers to everyone, and what reveals no more than that. It includes no moves."""

_MAY: Final = {NOBODY: _PROBES, AGENT: _OF_AGENTS, ANYONE: _AS_NEONVMS}


def may_ask(who: str, method: str, path: str) -> bool:
    """Return True if the caller ``who`` gets an answer to this request."""
    # An unknown name may do what a probe may.
    return who == CONTROLLER or (method, path) in _MAY.get(who, _PROBES)


def may_use_monitor(who: str) -> bool:
    """Return True if the caller ``who`` gets a connection to QEMU's monitor, of which the gate passes on a part."""
    # NeonVM's own runner offers its monitor to everyone, and its controller has no certificate.
    return who in {CONTROLLER, ANYONE}
