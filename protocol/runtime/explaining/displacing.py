"""Choice of the connection that a new one displaces, so that strangers cannot keep a kubelet's probe out."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

_Connection = TypeVar("_Connection", bound=Hashable)

WAITING: Final = 100
"""How many connections the kernel queues until they are accepted."""


def displaced(connections: Mapping[_Connection, str], peer: str, per_peer: int, most: int) -> _Connection | None:
    """The connection that gives its place to a new one of ``peer``; None if there is room.

    ``connections`` are those that may have to go, the oldest first, with their addresses. Beyond ``per_peer`` it is the
    oldest of that peer; beyond ``most`` the oldest of the address that has the most.

    >>> displaced({1: "a", 2: "b", 3: "b"}, "a", per_peer=2, most=3), displaced({1: "a", 2: "b"}, "b", 1, 9)
    (2, 2)
    >>> displaced({1: "a"}, "b", per_peer=1, most=2)
    """
    counts = Counter(connections.values())
    # A peer at its limit displaces only a connection of its own.
    if counts[peer] >= per_peer:
        crowded = peer
    elif len(connections) >= most:
        crowded = counts.most_common(1)[0][0]
    else:
        return None
    # The caller's mapping is in order of arrival, so the first match is the oldest.
    return next(connection for connection, address in connections.items() if address == crowded)


def keep_waiting(server: asyncio.Server) -> asyncio.Server:
    """Makes the kernel queue ``WAITING`` connections for a server that was made with a small ``backlog``."""
    # In one turn asyncio accepts up to ``backlog`` connections before it reads from any of them, so with a large one a
    # crowd could displace a request that has arrived.
    for listener in server.sockets:
        # asyncio exposes no ``listen``, but a duplicate of the descriptor shares the kernel's queue.
        with socket.socket(fileno=os.dup(listener.fileno())) as duplicate:
            duplicate.listen(WAITING)
    return server
