"""Sockets of this process that live in another network namespace.

A socket stays in the namespace in which it was made. The thread enters the namespace, makes the socket and returns
without awaiting in between. ``setns`` moves the calling thread alone, so no other thread is affected.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

RUN: Final = Path("/run/netns")
"""Where ``ip netns`` keeps the namespaces that have names."""

# From linux/sched.h: `setns` refuses a descriptor of another kind of namespace.
_CLONE_NEWNET: Final = 0x40000000
_libc: Final = ctypes.CDLL(None, use_errno=True)


Made = TypeVar("Made")


def socket_in(namespace: str) -> socket.socket:
    """A non-blocking TCP socket in the named namespace. Raises ``OSError``."""
    return _unblocked(made_in(namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)))


def icmp_in(namespace: str) -> socket.socket:
    """A non-blocking socket of the named namespace that sends and receives ICMP. Raises ``OSError``."""
    return _unblocked(made_in(namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)))


def frames_in(namespace: str, interface: str) -> socket.socket:
    """A non-blocking socket that sends Ethernet frames out of an interface of the named namespace, and receives none.
    Closing it takes the kernel some milliseconds. Raises ``OSError``.
    """
    raw = _unblocked(made_in(namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)))
    try:
        # Protocol 0: the socket only sends, and the kernel copies no frames to it.
        raw.bind((interface, 0))
    except BaseException:
        raw.close()
        raise
    return raw


def _unblocked(made: socket.socket) -> socket.socket:
    made.setblocking(False)
    return made


def made_in(namespace: str, make: Callable[[], Made]) -> Made:
    """Whatever ``make`` opens within the named namespace. Raises ``OSError``."""
    # Of the thread, not of the process: only this thread changes its namespace.
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(RUN / namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(there)
            try:
                return make()
            finally:
                # Whatever happened: the thread belongs to the event loop and goes on with other work.
                _enter(home)
        finally:
            os.close(there)
    finally:
        os.close(home)


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
