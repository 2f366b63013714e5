"""A client on the flat network that has a VM answer a frame every 10 ms."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from deploy.neonvm.network import netns
from protocol.units import Instant, Seconds
from scripts.bench.echoes import Echoes, reply_number, request

PERIOD = 0.01
SETTLED = 1.0
_ROOM = 4 * 1024**2
"""Bytes. A guest that stood still for seconds answers hundreds of frames at once, and a busy machine lets them wait."""

_SO_RCVBUFFORCE = 33  # asm-generic/socket.h, as the next one
_SO_MEMINFO = 55
_DROPS = 8  # linux/sock_diag.h: SK_MEMINFO_DROPS


@dataclass
class EchoClient:
    """Sends requests from ``namespace`` until it is stopped."""

    namespace: str
    address: str
    echoes: Echoes = field(default_factory=Echoes)
    over: threading.Event = field(default_factory=threading.Event)
    dropped: int = 0
    """So many frames came and found no room here, in all."""

    def run(self) -> None:
        with netns.icmp_in(self.namespace) as raw:
            raw.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM)
            identity, due = raw.fileno(), time.monotonic()
            while not self.over.is_set():
                if time.monotonic() >= due:
                    raw.sendto(request(identity, len(self.echoes.sent)), (self.address, 0))
                    self.echoes.sent.append(Instant(time.monotonic()))
                    due = max(due + PERIOD, time.monotonic())
                if select.select([raw], [], [], max(0.0, due - time.monotonic()))[0]:
                    number = reply_number(raw.recv(2048), identity)
                    if number is not None:
                        self.echoes.replied_at.setdefault(number, Instant(time.monotonic()))
                    self.dropped = struct.unpack_from("9I", raw.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36))[_DROPS]

    @property
    def longest(self) -> Seconds:
        """Longest response time."""
        answered, sent = self.echoes.replied_at.copy(), self.echoes.sent
        return Seconds(max((at - sent[number] for number, at in answered.items()), default=0.0))

    @property
    def lost(self) -> list[int]:
        """Requests sent at least a second ago that got no response."""
        settled = time.monotonic() - SETTLED
        return [
            number
            for number, at in enumerate(self.echoes.sent)
            if at < settled and number not in self.echoes.replied_at
        ]


@contextmanager
def echoing(namespace: str, address: str) -> Iterator[EchoClient]:
    """Within it the VM at ``address`` is asked."""
    client = EchoClient(namespace, address)
    thread = threading.Thread(target=client.run)
    thread.start()
    try:
        yield client
    finally:
        client.over.set()
        thread.join()
