"""Sockets of the machine's own network, connected and listening."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Final

from deploy.neonvm.network.listeners import who_listens

_BACKLOG: Final = 128


async def connected(unbound: socket.socket, host: str, port: int) -> socket.socket:
    """``unbound``, connected; closed if that fails. Raises ``OSError``."""
    try:
        await asyncio.get_running_loop().sock_connect(unbound, (host, port))
    except BaseException:
        unbound.close()
        raise
    # Requests are small, and Nagle's algorithm would delay them.
    unbound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return unbound


def listening(unbound: socket.socket, host: str, port: int) -> socket.socket:
    """``unbound``, listening; closed if that fails. Raises ``OSError``, which names the program that is there."""
    try:
        # A program that restarts may find connections of its predecessor in TIME_WAIT.
        unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        unbound.bind((host, port))
        unbound.listen(_BACKLOG)
    except OSError as error:
        unbound.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(errno.EADDRINUSE, f"port {port} at {host} is taken by {who_listens(port)}") from error
        raise
    except BaseException:
        unbound.close()
        raise
    return unbound


def tcp_socket() -> socket.socket:
    """A non-blocking TCP socket in the machine's own network."""
    tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    tcp.setblocking(False)
    return tcp
