"""Opens sockets in another network namespace.

A socket stays in the namespace in which it was created. The thread enters the namespace, creates the socket and leaves
it again, without an await in between. ``setns`` affects only the calling thread.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

RUN: Final = Path("/run/netns")
"""Directory in which ``ip netns`` mounts named namespaces."""

# From linux/sched.h; `setns` fails for a descriptor of another namespace type.
_CLONE_NEWNET: Final = 0x40000000
_libc: Final = ctypes.CDLL(None, use_errno=True)


T = TypeVar("T")


def socket_in(namespace: str) -> socket.socket:
    """A non-blocking TCP socket in the named namespace. Raises ``OSError``."""
    return _non_blocking(call_in(namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)))


def icmp_in(namespace: str) -> socket.socket:
    """A non-blocking raw ICMP socket in the named namespace. Raises ``OSError``."""
    return _non_blocking(
        call_in(namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
    )


def frames_in(namespace: str, interface: str) -> socket.socket:
    """A non-blocking packet socket that sends Ethernet frames from an interface in the named namespace, and receives
    none. Closing it takes some milliseconds. Raises ``OSError``.
    """
    raw = _non_blocking(call_in(namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)))
    try:
        # Protocol 0: the socket only sends, and the kernel copies no frames to it.
        raw.bind((interface, 0))
    except BaseException:
        raw.close()
        raise
    return raw


def _non_blocking(opened: socket.socket) -> socket.socket:
    opened.setblocking(False)
    return opened


def call_in(namespace: str, function: Callable[[], T]) -> T:
    """Call ``function`` in the named namespace and return its result. Raises ``OSError``."""
    # thread-self, because only this thread changes its namespace.
    with Path("/proc/thread-self/ns/net").open("rb") as previous, (RUN / namespace).open("rb") as entered:
        _enter(entered.fileno())
        try:
            return function()
        finally:
            # Always, because this is the thread of the event loop.
            _enter(previous.fileno())


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
