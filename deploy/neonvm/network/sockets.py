"""TCP sockets in the host's network, the owner of a port, and port forwarding into other networks.

/proc/net/tcp and /proc/net/tcp6 list listening sockets, and /proc/PID/fd shows their owners; for processes of other
users that needs root.
"""

from __future__ import annotations

import asyncio
import errno
import random
import re
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from deploy.neonvm.streams import copy_all
from protocol.runtime.serving.tcp_listener import TcpListener

_BACKLOG: Final = 128
# Lower ports are often used by other programs.
_FIRST_PORT: Final = 10240
_TRIES: Final = 20
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_DISCARD: Final = struct.pack("ii", 1, 0)
"""SO_LINGER on, for 0 s."""


def enable_keepalive(connection: socket.socket) -> None:
    """Enable TCP keepalive, so that ``connection`` fails within 25 seconds after its peer's node is gone."""
    for option in _KEEPALIVE:
        connection.setsockopt(*option)


def discard_on_close(connection: socket.socket) -> None:
    """Reset ``connection`` when it is closed, and discard what its peer has not received."""
    # Otherwise the kernel keeps sending it: after an outage, an order could arrive after newer ones.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD)


async def connected(unbound: socket.socket, host: str, port: int) -> socket.socket:
    """Connect ``unbound``, or close it on failure. Raises ``OSError``."""
    try:
        await asyncio.get_running_loop().sock_connect(unbound, (host, port))
    except BaseException:
        unbound.close()
        raise
    # Nagle's algorithm would delay small requests.
    unbound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return unbound


def listening(unbound: socket.socket, host: str, port: int) -> socket.socket:
    """Bind ``unbound`` and listen, or close it on failure. Raises ``OSError``, which names the owner of a used port."""
    try:
        # After a restart, connections of the previous process may be in TIME_WAIT.
        unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        unbound.bind((host, port))
        unbound.listen(_BACKLOG)
    except OSError as error:
        unbound.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(errno.EADDRINUSE, f"port {port} at {host} is taken by {listener_on(port)}") from error
        raise
    except BaseException:
        unbound.close()
        raise
    return unbound


def free_port() -> int:
    """A free port of 127.0.0.1; see ``free_ports``."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Free ports of 127.0.0.1, for programs that bind them a moment later.

    They are below the kernel's ephemeral range if possible, so that no outgoing connection takes one in the meantime.
    """
    ephemeral_start = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    lower_ports = range(_FIRST_PORT, max(ephemeral_start, _FIRST_PORT))
    candidates = random.sample(lower_ports, min(len(lower_ports), count + _TRIES)) + [0] * count
    ports: list[int] = []
    with ExitStack() as probes:
        for candidate in candidates:
            with suppress(OSError):
                probe = probes.enter_context(listening(tcp_socket(), "127.0.0.1", candidate))
                ports.append(probe.getsockname()[1])
            if len(ports) == count:
                return ports
    raise OSError(errno.EADDRINUSE, f"127.0.0.1 has fewer than {count} free ports")


def tcp_socket() -> socket.socket:
    """A non-blocking TCP socket in the host's network."""
    tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    tcp.setblocking(False)
    return tcp


# TCP_LISTEN in hexadecimal, as in /proc/net/tcp.
_LISTEN: Final = "0A"
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")


def inodes_listening(table: str, port: int) -> Iterator[str]:
    """Inodes of the sockets in ``table`` (/proc/net/tcp) that listen on ``port`` at any address (pure)."""
    # The first line is the header.
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
            yield words[9]


def listener_on(port: int, proc: Path = Path("/proc")) -> str:
    """The program that listens on ``port``, as ``name (pid N)``, or the command that finds it."""
    inodes = set[str]()
    for name in ("tcp", "tcp6"):
        table = proc / "net" / name
        # There is no tcp6 on a machine without IPv6.
        if table.exists():
            inodes.update(inodes_listening(table.read_text(), port))
    process = next((folder for folder in proc.glob("[0-9]*") if inodes and _has_socket(folder, inodes)), None)
    if process is not None:
        # It may have ended meanwhile.
        with suppress(OSError):
            return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return f"another program; find it with: sudo ss -ltnp 'sport = :{port}'"


def _has_socket(process: Path, inodes: set[str]) -> bool:
    try:
        for descriptor in (process / "fd").iterdir():
            match = _SOCKET.fullmatch(str(descriptor.readlink()))
            if match is not None and match[1] in inodes:
                return True
    except OSError:
        return False  # it has ended, or belongs to another user
    return False


Dial = Callable[[str, int], Awaitable[socket.socket]]
"""Connects to a host and port inside the network; raises ``OSError``."""


class Forwarder:
    """Forwards loopback ports into another network. Each target, or key, keeps its port."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._open: dict[Hashable, TcpListener] = {}

    async def open(self, target: str, port: int) -> int:
        """The loopback port forwarded to ``target:port``."""
        return await self.forward((target, port), lambda: self._dial(target, port))

    async def forward(self, key: Hashable, dial: Callable[[], Awaitable[socket.socket]]) -> int:
        """The loopback port of ``key``; each connection to it is relayed to a new one from ``dial``."""
        if key not in self._open:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await _join(reader, writer, await dial())

            self._open[key] = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], serve)
        return self._open[key].port

    async def close(self) -> None:
        """Close all connections and ports."""
        # A target that is opened while these close gets a new port.
        closing, self._open = self._open, {}
        for serving in closing.values():
            await serving.close()


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inside: socket.socket) -> None:
    inner_reader, inner_writer = await asyncio.open_connection(sock=inside)
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(copy_all(reader, inner_writer))
            both.create_task(copy_all(inner_reader, writer))
    finally:
        inner_writer.close()


async def until_one_ends(*works: Coroutine[object, object, None]) -> None:
    """Run ``works`` concurrently until one of them ends, and cancel the others. Their exceptions are ignored."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
