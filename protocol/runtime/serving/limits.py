"""Limits on a listener's connections, and the choice of the one that a new connection displaces.

A connection is unauthenticated until a request on it is authenticated. Until then the first refusal (4xx) or a few
seconds without a request close it, and a newer connection that needs a slot may displace it. An authenticated
connection keeps its slot, unless no other slot is left and its address has more connections than the new one's:
then the oldest of the address with the most is displaced. Otherwise the new one gets a 503.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from protocol.units import Seconds

LOG: Final = logging.getLogger("autoscale.serving")

SHOWN: Final = 100
"""Maximum characters to log of an unexpected client's name."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum concurrent ``connections`` of the listener, and ``per_peer`` address.

    Timeouts: ``request`` for receiving a request, ``idle`` for a connection without one (``idle_unauthenticated``
    before authentication), ``handshake`` for TLS setup and shutdown, and ``stall`` for a client that stops reading a
    response. ``bodies`` is the maximum size in bytes of all unanswered requests' bodies; beyond it, the address with
    the most loses its oldest connection.
    """

    connections: int = 8192
    per_peer: int = 1024
    request: Seconds = Seconds(10.0)
    idle: Seconds = Seconds(120.0)
    idle_unauthenticated: Seconds = Seconds(5.0)
    handshake: Seconds = Seconds(5.0)
    stall: Seconds = Seconds(30.0)
    bodies: int = 128 * 1024 * 1024


class Displaceable(Protocol):
    """A connection that can be displaced."""

    def displace(self) -> None:
        """End the connection immediately."""


ByPeer = dict[str, dict[Displaceable, None]]
"""Connections by address. The inner dict serves as an ordered set, oldest first."""


@dataclass(slots=True)
class Peers:
    """The connections of one listener, by the peer's address.

    ``client`` is the common name of the only allowed client; empty if all are allowed.
    """

    limits: Limits
    client: str = ""
    open: Counter[str] = field(default_factory=Counter)
    _slots: dict[Displaceable, tuple[ByPeer, str]] = field(default_factory=dict)
    _unauthenticated: ByPeer = field(default_factory=dict)
    _authenticated: ByPeer = field(default_factory=dict)
    _count: int = 0
    _bodies: dict[str, dict[Displaceable, int]] = field(default_factory=dict)
    _size: int = 0
    _last_rejected: str | None = None

    def is_expected(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return True if the client with this certificate (in ``ssl``'s format) is allowed; otherwise log its name."""
        name = common_name(certificate)
        if not self.client or name == self.client:
            return True
        # Log repeated attempts only once: a client that keeps retrying would fill the log.
        if name != self._last_rejected:
            LOG.warning(
                "rejected client certificate: unexpected common name",
                extra={"client": name[:SHOWN], "expected": self.client},
            )
        self._last_rejected = name
        return False

    def admit(self, connection: Displaceable, peer: str) -> bool:
        """Register a new connection, which may displace an older one; return True if it gets a slot."""
        self.open[peer] += 1
        self._count += 1
        is_admitted = self._find_slot(peer)
        if is_admitted:
            self._add(connection, peer, self._unauthenticated)
        return is_admitted

    def authenticated(self, connection: Displaceable) -> None:
        """Mark a connection as authenticated, so that it keeps its slot."""
        peer = self._remove(connection)
        if peer is not None:
            self._add(connection, peer, self._authenticated)

    def leave(self, connection: Displaceable, peer: str) -> None:
        """Unregister a connection that has ended, admitted or not."""
        self._remove(connection)
        self.hold(connection, peer, 0)
        self._count -= 1
        self.open[peer] -= 1
        if not self.open[peer]:
            del self.open[peer]

    def hold(self, connection: Displaceable, peer: str, size: int) -> None:
        """Record that the connection now holds bodies of ``size`` bytes; displace others if the total is too large."""
        of_peer = self._bodies.setdefault(peer, {})
        self._size += size - of_peer.pop(connection, 0)
        if size:
            of_peer[connection] = size
        if not of_peer:
            del self._bodies[peer]
        while self._size > self.limits.bodies:
            largest = max(self._bodies, key=lambda address: sum(self._bodies[address].values()))
            oldest = next(iter(self._bodies[largest]))
            self.hold(oldest, largest, 0)
            oldest.displace()

    def _find_slot(self, peer: str) -> bool:
        """Return True if there is a slot for a new connection (already counted), possibly by displacing an older
        one.
        """
        # Above its own limit, a peer displaces only its own connections.
        if self.open[peer] > self.limits.per_peer:
            return self._displace_first(self._unauthenticated.get(peer, {}))
        # Displace from the peer with the most unauthenticated ones, so that one peer cannot lock out a kubelet's probe.
        if self._count <= self.limits.connections or self._displace_first(_largest(self._unauthenticated)):
            return True
        # Otherwise a few agents could lock out all others.
        largest = _largest(self._authenticated)
        return len(largest) > self.open[peer] and self._displace_first(largest)

    def _displace_first(self, candidates: Mapping[Displaceable, object]) -> bool:
        oldest = next(iter(candidates), None)
        if oldest is None:
            return False
        self._remove(oldest)  # so that it is not chosen again before it has closed
        oldest.displace()
        return True

    def _add(self, connection: Displaceable, peer: str, by_peer: ByPeer) -> None:
        self._slots[connection] = by_peer, peer
        by_peer.setdefault(peer, {})[connection] = None

    def _remove(self, connection: Displaceable) -> str | None:
        """Free a connection's slot and return its address; None if it had no slot."""
        if connection not in self._slots:
            return None
        by_peer, peer = self._slots.pop(connection)
        del by_peer[peer][connection]
        if not by_peer[peer]:
            del by_peer[peer]
        return peer


def _largest(by_peer: ByPeer) -> dict[Displaceable, None]:
    return max(by_peer.values(), key=len, default={})


def common_name(certificate: Mapping[str, Any] | None) -> str:
    """The common name of a certificate's subject (in ``ssl``'s format); empty if it has none, or several.

    >>> common_name({"subject": ((("organizationName", "a"),), (("commonName", "b"),))})
    'b'
    """
    subject = () if certificate is None else certificate.get("subject", ())
    names = [value for part in subject for kind, value in part if kind == "commonName"]
    return str(names[0]) if len(names) == 1 else ""
