"""Ports that pods take on their node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scheduler_plugin.constraints.model import HostPort

EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::", ""})


def port_taken(wanted: Iterable[HostPort], taken: Iterable[HostPort]) -> HostPort | None:
    """The first wanted port that a pod has already; None if all are free."""
    held = list(taken)
    return next((port for port in wanted if any(_clash(port, other) for other in held)), None)


def _clash(one: HostPort, other: HostPort) -> bool:
    if (one.port, one.protocol) != (other.port, other.protocol):
        return False
    return one.address == other.address or bool({one.address, other.address} & EVERY_ADDRESS)
