"""Sockets of the machine's own network, who has taken a port, and ports that lead into another network.

/proc/net/tcp and /proc/net/tcp6 list the sockets that listen, and /proc/PID/fd shows whose they are; only root may read
that of other users' processes.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from protocol.runtime.serving.tcp_listener import TcpListener

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


def free_port() -> int:
    """A port of 127.0.0.1 that is free now, for a program that binds it a moment later."""
    with listening(tcp_socket(), "127.0.0.1", 0) as probe:
        port: int = probe.getsockname()[1]
        return port


def tcp_socket() -> socket.socket:
    """A non-blocking TCP socket in the machine's own network."""
    tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    tcp.setblocking(False)
    return tcp


# TCP_LISTEN of the kernel, in hexadecimal as its tables have it.
_LISTEN: Final = "0A"
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")


def inodes_listening(table: str, port: int) -> Iterator[str]:
    """The sockets of one of the kernel's tables that listen on ``port``, on whatever address (pure)."""
    # The first line is the table's head.
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
            yield words[9]


def who_listens(port: int, proc: Path = Path("/proc")) -> str:
    """The program that listens on ``port`` as ``name (pid N)``; how to find it if that cannot be seen."""
    wanted = set[str]()
    for name in ("tcp", "tcp6"):
        table = proc / "net" / name
        # There is no tcp6 on a machine without IPv6.
        if table.exists():
            wanted.update(inodes_listening(table.read_text(), port))
    process = next((folder for folder in proc.glob("[0-9]*") if wanted and _has_socket(folder, wanted)), None)
    if process is not None:
        # It may have ended meanwhile.
        with suppress(OSError):
            return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return f"another program, which this names: sudo ss -ltnp 'sport = :{port}'"


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

_CHUNK: Final = 64 * 1024


class Forwarder:
    """Any number of forwarded ports; the same target, or key, always has the same port."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._open: dict[Hashable, TcpListener] = {}

    async def open(self, target: str, port: int) -> int:
        """The loopback port that leads to ``target:port``."""
        return await self.lead((target, port), lambda: self._dial(target, port))

    async def lead(self, key: Hashable, dial: Callable[[], Awaitable[socket.socket]]) -> int:
        """The loopback port of ``key``, of which each connection is continued by what ``dial`` returns for it."""
        if key not in self._open:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await _join(reader, writer, await dial())

            self._open[key] = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], serve)
        return self._open[key].port

    async def close(self) -> None:
        """Ends all connections and gives the ports back."""
        # A target that is opened while these close gets a new port.
        closing, self._open = self._open, {}
        for serving in closing.values():
            await serving.close()


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inside: socket.socket) -> None:
    inner_reader, inner_writer = await asyncio.open_connection(sock=inside)
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_copy_all(reader, inner_writer))
            both.create_task(_copy_all(inner_reader, writer))
    finally:
        inner_writer.close()


async def copy_stream(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copies until ``source`` has ended. Raises ``OSError``."""
    while part := await source.read(_CHUNK):
        target.write(part)
        await target.drain()


async def _copy_all(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    await copy_stream(source, target)
    if target.can_write_eof():
        # Half-closed: the other direction may still have something to say.
        target.write_eof()
