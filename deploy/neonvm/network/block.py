"""A block of loopback addresses that one local cluster has to itself: 127.B.0.0/16, needing no privilege at all."""

from __future__ import annotations

import hashlib
import socket
from typing import Final

from deploy.neonvm.ports import NetworkError

# Resolvers and the like use addresses in 127.0.x.x.
_FIRST: Final = 64
_BLOCKS: Final = 64


class LoopbackBlock:
    """A held block. ``close`` gives it back."""

    def __init__(self, number: int, guard: socket.socket) -> None:
        self._number = number
        self._guard = guard

    @classmethod
    def claim(cls, cluster: str) -> LoopbackBlock:
        """The first free block for ``cluster``. Raises ``NetworkError`` if 64 clusters run already."""
        # The name picks the block that is tried first, so a cluster's addresses rarely change between runs.
        start = int.from_bytes(hashlib.sha256(cluster.encode()).digest()[:2], "big")
        for step in range(_BLOCKS):
            number = _FIRST + (start + step) % _BLOCKS
            try:
                return cls(number, _named(f"autoscale.127.{number}"))
            except OSError:
                continue
        raise NetworkError(
            f"no block of loopback addresses is free (127.{_FIRST}.0.0 to 127.{_FIRST + _BLOCKS - 1}.255.255); "
            f"end another local cluster first: autoscale local down"
        )

    def address(self, rest: str) -> str:
        """The address of this block that ends in ``rest``, such as ``"0.1"``."""
        return f"127.{self._number}.{rest}"

    def close(self) -> None:
        """Gives the block back."""
        self._guard.close()


def _named(name: str) -> socket.socket:
    """A socket that holds ``name`` in this network namespace. Raises ``OSError`` if another one does."""
    guard = socket.socket(socket.AF_UNIX)
    try:
        # An abstract socket: the kernel frees the name when the process ends, and no port is needed that another
        # program may have taken.
        guard.bind(f"\0{name}")
    except BaseException:
        guard.close()
        raise
    return guard
