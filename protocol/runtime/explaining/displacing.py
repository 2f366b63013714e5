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
"""Connections that the kernel keeps until they are accepted."""


def displaced(connections: Mapping[_Connection, str], peer: str, per_peer: int, most: int) -> _Connection | None:
    """The connection that gives its place to a new one of ``peer``; None if there is room.

    ``connections`` are those that may have to go, the oldest first, with their addresses. Beyond ``per_peer`` it is the
    oldest of that peer; beyond ``most`` the oldest of the address that has the most.

    >>> displaced({1: "a", 2: "b", 3: "b"}, "a", per_peer=2, most=3), displaced({1: "a", 2: "b"}, "b", 1, 9)
    (2, 2)
    >>> displaced({1: "a"}, "b", per_peer=1, most=2)
    """
    counts = Counter(connections.values())
    # A peer over its share only displaces itself.
    if counts[peer] >= per_peer:
        crowded = peer
    elif len(connections) >= most:
        crowded = counts.most_common(1)[0][0]
    else:
        return None
    # Mappings keep their order, so the first match is the oldest.
    return next(connection for connection, address in connections.items() if address == crowded)


def keep_waiting(server: asyncio.Server) -> asyncio.Server:
    """Has the kernel keep ``WAITING`` connections for a server that was made with a small ``backlog``."""
    # asyncio accepts as many connections in one turn as its ``backlog`` before it reads from any of them, so that a
    # crowd could displace a request that has been sent.
    for listener in server.sockets:
        with socket.socket(fileno=os.dup(listener.fileno())) as same:
            # A duplicate of the descriptor changes the kernel's queue without asyncio noticing.
            same.listen(WAITING)
    return server
