"""Ports that the programs of a loopback network bind instead of usual ones that are taken on this machine.

A program that listens on all addresses (a node_exporter on 9100, a Kubernetes node's API server on 6443) also takes its
port on every loopback address. What is free is found out by trying, when the network comes up.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from deploy.neonvm.network.sockets import tcp_socket, who_listens
from deploy.neonvm.ports import NetworkError

_OTHERS: Final = range(61000, 65536)
"""Above the ports that the kernel gives to outgoing connections."""


@dataclass(frozen=True, slots=True)
class PortMap:
    """``moved`` has the port that is used instead of each usual one that is taken, ``taken`` the program there."""

    moved: Mapping[int, int]
    taken: Mapping[int, str]

    @classmethod
    def tried(cls, address: str, usual: Iterable[int]) -> PortMap:
        """The ports that are free at ``address``: none of our listeners has them. Raises ``NetworkError``."""
        taken = {port: who_listens(port) for port in usual if not _is_free(address, port)}
        # Lazily: usually no port is taken, and none has to be tried.
        others = (port for port in _OTHERS if _is_free(address, port))
        # Not strict: there may be too few free ports, which is reported below.
        moved = dict(zip(taken, others, strict=False))
        if missing := sorted(taken.keys() - moved.keys()):
            raise NetworkError(f"port {missing[0]} is taken by {taken[missing[0]]}, and no other port is free")
        return cls(moved, taken)

    @property
    def description(self) -> str:
        """One line about what is used instead of what; empty if all is as usual."""
        return "; ".join(
            f"port {port} is taken by {who}: {self.moved[port]} instead" for port, who in self.taken.items()
        )

    def port_for(self, port: int) -> int:
        """``port`` itself, or the one that is used instead of it."""
        return self.moved.get(port, port)


def _is_free(address: str, port: int) -> bool:
    with tcp_socket() as trial:
        try:
            # As the real servers do, so that closed connections in TIME_WAIT do not count as a server.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((address, port))
            trial.listen(1)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise NetworkError(f"nothing can listen at {address}:{port}: {error}") from error
            return False
    return True
