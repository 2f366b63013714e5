"""Ports that pods take on their node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scheduler_plugin.constraints.model import HostPort

EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::", ""})


def port_taken(wanted: Iterable[HostPort], taken: Iterable[HostPort]) -> HostPort | None:
    """The first wanted port that a pod has already; None if all are free."""
    # An iterator would be used up by the first wanted port.
    in_use = list(taken)
    return next((port for port in wanted if any(_clash(port, other) for other in in_use)), None)


def _clash(one: HostPort, other: HostPort) -> bool:
    if (one.port, one.protocol) != (other.port, other.protocol):
        return False
    # A port on every address clashes with that port on any single one.
    return one.address == other.address or bool({one.address, other.address} & EVERY_ADDRESS)
