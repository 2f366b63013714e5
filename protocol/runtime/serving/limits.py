"""Limits on a listener's connections, and the choice of the one that a new connection displaces.

A connection is unauthenticated until a request on it has shown who it is. Until then it is closed by the first refusal
(4xx) and after seconds without a request, and it gives its place away when a newer connection needs one.
An authenticated connection keeps its place, unless no other is left and its address has more connections than that of
the new one: then the oldest of the address with the most ends. Otherwise the new one gets 503.
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
"""Characters of a stranger's name that are logged."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``connections`` of the listener and ``per_peer`` address at a time.

    ``request`` is how long a request may take to arrive, ``idle`` how long a connection may stay without one, which is
    ``idle_unauthenticated`` before it has shown who it is, ``handshake`` how long TLS may take to begin and to end, and
    ``stall`` how long a client may stop reading an answer. ``bodies`` are the bytes of all requests that are not
    answered yet; if there are more, the address with the most loses its oldest connection.
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
    """A connection that may have to give its place away."""

    def displace(self) -> None:
        """End it at once."""


Crowds = dict[str, dict[Displaceable, None]]
"""Connections by address. The inner dict has no values: an ordered set, the oldest first."""


@dataclass(slots=True)
class Peers:
    """The connections of one listener, by the peer's address.

    ``client`` is the common name of the only one that it is for; empty if it is for all.
    """

    limits: Limits
    client: str = ""
    open: Counter[str] = field(default_factory=Counter)
    _places: dict[Displaceable, tuple[Crowds, str]] = field(default_factory=dict)
    _unauthenticated: Crowds = field(default_factory=dict)
    _authenticated: Crowds = field(default_factory=dict)
    _count: int = 0
    _bodies: dict[str, dict[Displaceable, int]] = field(default_factory=dict)
    _size: int = 0
    _told: str | None = None

    def is_for(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return True if the listener is for the client that shows this, in the form of ``ssl``; another name is
        logged.
        """
        name = common_name(certificate)
        if not self.client or name == self.client:
            return True
        # Once in a row for each name: a client that tries again and again would fill the log.
        if name != self._told:
            LOG.warning(
                "rejected client certificate: unexpected common name",
                extra={"client": name[:SHOWN], "expected": self.client},
            )
        self._told = name
        return False

    def admit(self, connection: Displaceable, peer: str) -> bool:
        """Count a new connection, which may displace an older one; return True if there is a place for it."""
        self.open[peer] += 1
        self._count += 1
        is_admitted = self._finds_place(peer)
        if is_admitted:
            self._add(connection, peer, self._unauthenticated)
        return is_admitted

    def authenticated(self, connection: Displaceable) -> None:
        """The connection has shown who it is: it keeps its place."""
        peer = self._remove(connection)
        if peer is not None:
            self._add(connection, peer, self._authenticated)

    def leave(self, connection: Displaceable, peer: str) -> None:
        """A connection, admitted or not, has ended."""
        self._remove(connection)
        self.hold(connection, peer, 0)
        self._count -= 1
        self.open[peer] -= 1
        if not self.open[peer]:
            del self.open[peer]

    def hold(self, connection: Displaceable, peer: str, size: int) -> None:
        """The connection holds bodies of ``size`` bytes from now on; displaces others if all together are too large."""
        of_peer = self._bodies.setdefault(peer, {})
        self._size += size - of_peer.pop(connection, 0)
        if size:
            of_peer[connection] = size
        if not of_peer:
            del self._bodies[peer]
        while self._size > self.limits.bodies:
            greediest = max(self._bodies, key=lambda each: sum(self._bodies[each].values()))
            oldest = next(iter(self._bodies[greediest]))
            self.hold(oldest, greediest, 0)
            oldest.displace()

    def _finds_place(self, peer: str) -> bool:
        """Return True if there is a place for a new connection, already counted, or an older one gave up its own."""
        # Beyond its own limit a peer displaces only its own connections.
        if self.open[peer] > self.limits.per_peer:
            return self._displace_first(self._unauthenticated.get(peer, {}))
        # From the peer with the most unauthenticated ones, so that one peer cannot keep a kubelet's probe out.
        if self._count <= self.limits.connections or self._displace_first(_largest(self._unauthenticated)):
            return True
        # Otherwise a few agents could keep all others out.
        crowd = _largest(self._authenticated)
        return len(crowd) > self.open[peer] and self._displace_first(crowd)

    def _displace_first(self, candidates: Mapping[Displaceable, object]) -> bool:
        oldest = next(iter(candidates), None)
        if oldest is None:
            return False
        self._remove(oldest)  # so that it is not chosen again before it has ended
        oldest.displace()
        return True

    def _add(self, connection: Displaceable, peer: str, crowds: Crowds) -> None:
        self._places[connection] = crowds, peer
        crowds.setdefault(peer, {})[connection] = None

    def _remove(self, connection: Displaceable) -> str | None:
        """The address of a connection, which has no place from now on; None if it had none."""
        if connection not in self._places:
            return None
        crowds, peer = self._places.pop(connection)
        del crowds[peer][connection]
        if not crowds[peer]:
            del crowds[peer]
        return peer


def _largest(crowds: Crowds) -> dict[Displaceable, None]:
    return max(crowds.values(), key=len, default={})


def common_name(certificate: Mapping[str, Any] | None) -> str:
    """The common name of a certificate's subject, in the form of ``ssl``; empty if it has none, or several.

    >>> common_name({"subject": ((("organizationName", "a"),), (("commonName", "b"),))})
    'b'
    """
    subject = () if certificate is None else certificate.get("subject", ())
    names = [value for part in subject for kind, value in part if kind == "commonName"]
    return str(names[0]) if len(names) == 1 else ""
