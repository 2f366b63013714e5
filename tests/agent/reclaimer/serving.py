"""A reclaimer that serves within a test, and clients that talk to it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from agent.reclaimer.holds import Holds
from agent.reclaimer.messages import HoldReply, HoldRequest, read_held, write_line
from agent.reclaimer.server import ReclaimServer
from tests.agent.cgroups.trees import MIB, UID

PATIENCE = 20.0
"""Seconds; only a broken server takes so long."""

ME = frozenset({os.getuid()})
SIZE = 300 * MIB


class Serving:
    """Holds on pods below ``root``; socket and records are in ``folder``."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.path = folder / "reclaimer.sock"
        self.holds = Holds(root, folder / "holds")
        self.holds.restore()

    @contextmanager
    def serving(self, peers: frozenset[int] = ME) -> Iterator[ReclaimServer]:
        """The server, until the block ends and it has stopped."""
        made = ReclaimServer(self.path, self.holds, peers)
        thread = threading.Thread(target=made.run)
        thread.start()
        try:
            yield made
        finally:
            made.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()

    @contextmanager
    def connected(self) -> Iterator[Client]:
        with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as file:
            connection.settimeout(PATIENCE)
            connection.connect(str(self.path))
            yield Client(connection, file)


class Client:
    """An agent's side of a connection."""

    def __init__(self, connection: socket.socket, file: BinaryIO) -> None:
        self.connection = connection
        self._file = file

    def send(self, line: bytes) -> HoldReply | None:
        """The answer to a line; None if the server ends the connection."""
        try:
            self.connection.sendall(line)
            answer = self._file.readline()
        except (BrokenPipeError, ConnectionResetError):
            return None
        return read_held(answer) if answer else None

    def hold(self, size: int = SIZE, pod: str = UID) -> HoldReply | None:
        return self.send(write_line(HoldRequest(pod, size)))

    def is_ended(self) -> bool:
        """Return True once the server has closed the connection, and with it the hold."""
        try:
            return self._file.read() == b""
        # The server has left something unread.
        except ConnectionResetError:
            return True


def wait_until_released(server: Serving) -> None:
    """Another connection can hold the pod only after the hold of the last one is gone."""
    while True:
        with server.connected() as client:
            answer = client.hold(0)
            assert answer is not None
            if "another connection" not in answer.refusal:
                return
