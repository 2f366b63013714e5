"""Places in a network of pods around a bare control plane: each program has an address of its own, as a pod has.

A place is a network namespace without a name that a process holds; it goes with that process, and its cable with it.
"""

from __future__ import annotations

import shlex
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

from deploy.neonvm.network.netns import socket_in
from tests.kubernetes.failing.bare_control_plane import BareControlPlane

_GATEWAY: Final = "10.60.0.1"
_BRIDGE: Final = "pods"
_HOLD: Final = ("unshare", "--net", "--", "setpriv", "--pdeathsig", "KILL", "--", "sh", "-c")


@dataclass(frozen=True, slots=True)
class Place:
    """A pod's network; ``more`` are further addresses of it."""

    address: str
    holder: int
    more: tuple[str, ...] = ()

    @property
    def enter(self) -> tuple[str, ...]:
        """Command prefix that enters the place."""
        return ("nsenter", f"--target={self.holder}", "--net", "--")

    def listening(self, address: str, port: int) -> socket.socket:
        """A socket of this process that listens there."""
        made = socket_in(f"/proc/{self.holder}/ns/net")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(64)
        return made


class Places:
    """All places around one control plane, whose namespace is their router."""

    def __init__(self, plane: BareControlPlane) -> None:
        self._plane = plane
        self._numbers = count(2)
        self._run(plane.holder.pid, f"ip link add {_BRIDGE} type bridge")
        self._run(plane.holder.pid, f"ip address add {_GATEWAY}/16 dev {_BRIDGE}", f"ip link set {_BRIDGE} up")

    @contextmanager
    def place(self, more: int = 0) -> Iterator[Place]:
        """A place with the next address, and this many more."""
        number = next(self._numbers)
        spare = tuple(f"10.60.{number}.{each}" for each in range(1, more + 1))
        with subprocess.Popen([*_HOLD, "echo up && exec sleep infinity"], stdout=subprocess.PIPE) as holder:
            try:
                assert holder.stdout is not None
                assert holder.stdout.readline() == b"up\n"
                cable = f"ip link add pod{number} type veth peer name eth0 netns {holder.pid}"
                self._run(self._plane.holder.pid, cable, f"ip link set pod{number} master {_BRIDGE} up")
                addresses = [f"ip address add {each}/16 dev eth0" for each in (f"10.60.0.{number}", *spare)]
                self._run(holder.pid, "ip link set lo up", *addresses, "ip link set eth0 up")
                self._run(holder.pid, f"ip route add default via {_GATEWAY}")
                yield Place(f"10.60.0.{number}", holder.pid, spare)
            finally:
                holder.kill()

    @staticmethod
    def _run(holder: int, *commands: str) -> None:
        for command in commands:
            subprocess.run(
                ["nsenter", f"--target={holder}", "--net", "--", *shlex.split(command)],
                check=True,
                capture_output=True,
                text=True,
            )
