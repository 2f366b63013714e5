"""The reclaimer's server: a unix socket for the node's agent, with one thread per connection (B.7).

Rules that hold here:

- SO_PEERCRED authenticates peers: only the agent's UID and root may connect.
- A connection holds one pod, exclusively. The hold ends when the peer closes, falls silent or sends an invalid message,
  and when the program stops.
- It uses threads, because a write to a cgroup file blocks until the kernel has reclaimed.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from agent import texts
from agent.reclaimer.holds import LOG, Holds, RefusedHoldError
from agent.reclaimer.messages import LONGEST_LINE, HoldReply, read_hold, write_line

AGENT_UID: Final = 65532
PEERS: Final = frozenset({0, AGENT_UID})

MAX_CONNECTIONS: Final = 128
"""A node has about 110 pods, and an agent holds few of them at once."""

LONGEST_SILENCE: Final = 10.0
"""Seconds of silence after which a peer loses its hold; agents repeat the request every second."""

SETTLE_INTERVAL: Final = 1.0
"""Seconds between checks of restored v1 limits."""

_CREDENTIALS: Final = struct.Struct("3i")
"""``struct ucred``: PID, UID and GID."""


class ReclaimServer:
    """Serves ``holds`` at ``path``."""

    def __init__(self, path: Path, holds: Holds, peers: frozenset[int] = PEERS) -> None:
        self._holds = holds
        self._peers = peers
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._held_pods: set[str] = set()
        self._has_ended = threading.Event()
        self._listener = _listen(path)

    def run(self) -> None:
        """Serve until ``stop``, then release all holds. Raises ``OSError``."""
        threading.Thread(target=self._settle, daemon=True).start()
        try:
            self._accept()
        finally:
            self._has_ended.set()
            self._listener.close()
            self._end_all()

    def stop(self) -> None:
        """End ``run``, from another thread."""
        # Closing alone would not wake the accepting thread.
        self._listener.shutdown(socket.SHUT_RDWR)

    def _end_all(self) -> None:
        with self._lock:
            connections = dict(self._connections)
        for connection, thread in connections.items():
            # It may have ended on its own.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno == errno.EINVAL:  # shut down
                    return
                raise
            uid = _peer(connection)
            if uid not in self._peers or len(self._connections) >= MAX_CONNECTIONS:
                LOG.warning(texts.PEER_REFUSED, extra={"uid": uid, "connections": len(self._connections)})
                connection.close()
                continue
            self._start(connection, uid)

    def _start(self, connection: socket.socket, uid: int) -> None:
        thread = threading.Thread(target=self._serve, args=(connection,))
        with self._lock:
            try:
                thread.start()
            # The pod's PID limit is reached. Existing holds continue.
            except RuntimeError as error:
                LOG.warning(texts.PEER_REFUSED, extra={"uid": uid, "reason": str(error)})
                connection.close()
                return
            # After the start, because only a started thread can be joined. It cannot end earlier: it needs the lock.
            self._connections[connection] = thread

    def _settle(self) -> None:
        while not self._has_ended.wait(SETTLE_INTERVAL):
            for pod_uid in self._holds.unsettled():
                with suppress(RefusedHoldError, OSError, ValueError), self._claimed(pod_uid):
                    self._holds.settle(pod_uid)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.settimeout(LONGEST_SILENCE)
                self._converse(connection)
        finally:
            with self._lock:
                del self._connections[connection]

    def _converse(self, connection: socket.socket) -> None:
        lines = _lines(connection)
        try:
            first = read_hold(next(lines, b""))
            with self._claimed(first.pod):
                connection.sendall(self._answer(first.pod, first.size))
                for line in lines:
                    message = read_hold(line)
                    if message.pod != first.pod:
                        raise RefusedHoldError(texts.OTHER_POD)
                    connection.sendall(self._answer(first.pod, message.size))
        except (RefusedHoldError, ValueError) as error:
            connection.sendall(write_line(HoldReply(refusal=str(error)[: LONGEST_LINE // 4])))

    def _answer(self, pod_uid: str, size: int) -> bytes:
        try:
            return write_line(HoldReply(self._holds.hold(pod_uid, size)))
        except OSError as error:
            raise RefusedHoldError(str(error)) from None

    @contextmanager
    def _claimed(self, pod_uid: str) -> Iterator[None]:
        """Hold this pod exclusively within the block; release it at the end."""
        with self._lock:
            if pod_uid in self._held_pods:
                raise RefusedHoldError(texts.HELD_ALREADY)
            self._held_pods.add(pod_uid)
        try:
            yield
        finally:
            try:
                self._holds.release(pod_uid)
            except (OSError, ValueError) as error:
                LOG.error(texts.NOT_RELEASED, extra={"pod": pod_uid, "reason": str(error)})
            with self._lock:
                self._held_pods.discard(pod_uid)


def _listen(path: Path) -> socket.socket:
    # A killed process leaves its socket behind.
    if path.is_socket():
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    # Any process in the pod may connect; SO_PEERCRED identifies it. Set the mode by umask, not chmod: the agent shares
    # the folder and could replace the socket by a link.
    mask = os.umask(0o111)
    try:
        listener.bind(str(path))
        listener.listen()
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener


def _peer(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(credentials)[1]
    return uid


def _lines(connection: socket.socket) -> Iterator[bytes]:
    """Whole lines until the peer closes or sends anything else. Raises ``TimeoutError`` after too long a silence."""
    # Agents send a line in one write. Otherwise a peer that sends it byte by byte could keep the hold for hours.
    while (line := connection.recv(LONGEST_LINE + 1)).endswith(b"\n"):
        yield line
