"""Clients of a sleeping guest at its pod's address: a connection wakes the guest and waits until it runs.

QEMU forwards the pod's ports to the guest, so without it the clients would be refused, and the guest never woken.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from deploy.neonvm.streams import copy_all

MAX_WAITING: Final = 128
"""Maximum number of waiting clients. Others are reset when QEMU starts, which then accepts them itself."""

_PAUSE: Final = 0.1
"""Seconds before another attempt to accept a client."""


class PodClients:
    """Clients of ``ports``, which QEMU forwards. ``admits`` gets a client's IP and port, and returns False to refuse
    it.
    """

    def __init__(self, ports: Sequence[int], admits: Callable[[str, int], bool]) -> None:
        self._ports = ports
        self._admits = admits
        self._listeners: list[socket.socket] = []
        self._waiting: list[tuple[socket.socket, int]] = []
        self._relays: set[asyncio.Task[None]] = set()

    def listen(self) -> None:
        """Accept clients until ``release``; QEMU has exited."""
        if not self._listeners:
            for port in self._ports:
                with suppress(OSError):  # another program of the pod has the port
                    self._listeners.append(listener := socket.create_server(("0.0.0.0", port), backlog=MAX_WAITING))
                    listener.setblocking(False)
                    self._watch(listener)

    def release(self) -> None:
        """Close the ports, which QEMU is about to forward. Waiting clients keep waiting."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            # Closing resets the connections that have not been accepted.
            self._accept(listener)
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()

    def _watch(self, listener: socket.socket) -> None:
        # It may have been released during a pause.
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while len(self._waiting) < MAX_WAITING:
                client, (address, port) = listener.accept()
                client.setblocking(False)
                if self._admits(address, port):
                    self._waiting.append((client, listener.getsockname()[1]))
                else:
                    client.close()
            # Full: otherwise the event loop would report the next client forever.
            loop.remove_reader(listener)
        except BlockingIOError:
            return  # nobody else
        except OSError:
            # Too many open files: the event loop would report the client at once, without end.
            loop.remove_reader(listener)
            loop.call_later(_PAUSE, self._watch, listener)

    def pass_on(self) -> None:
        """Connect the waiting clients to the guest, which runs."""
        waiting, self._waiting = self._waiting, []
        for client, port in waiting:
            relay = asyncio.create_task(_relay(client, port))
            # The event loop keeps only weak references to tasks.
            self._relays.add(relay)
            relay.add_done_callback(self._relays.discard)

    def hang_up(self) -> None:
        """Close the connections of waiting clients: the guest will not run here."""
        for client, _ in self._waiting:
            client.close()
        self._waiting.clear()


async def _relay(client: socket.socket, port: int) -> None:
    """Relay one session until the guest ends it, or one side resets it."""
    reader, writer = await asyncio.open_connection(sock=client)
    try:
        guest_reader, guest_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.TaskGroup() as both:
                sending = both.create_task(copy_all(reader, guest_writer))
                await copy_all(guest_reader, writer)
                # The session is over, and a client that is gone would never end it.
                sending.cancel()
        finally:
            guest_writer.close()
    except* OSError:
        pass
    finally:
        writer.close()
