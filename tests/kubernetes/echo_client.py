"""A client on the flat network that has a VM answer a frame every 10 ms."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from deploy.neonvm.network import netns
from protocol.units import Instant
from scripts.bench.frames.echoes import Echoes, answered_number, request

PERIOD = 0.01
SETTLED = 1.0


@dataclass
class EchoClient:
    """Asks from ``namespace`` until it is told to stop."""

    namespace: str
    address: str
    echoes: Echoes = field(default_factory=Echoes)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with netns.icmp_in(self.namespace) as raw:
            identity, due = raw.fileno(), time.monotonic()
            while not self.over.is_set():
                if time.monotonic() >= due:
                    raw.sendto(request(identity, len(self.echoes.sent)), (self.address, 0))
                    self.echoes.sent.append(Instant(time.monotonic()))
                    due = max(due + PERIOD, time.monotonic())
                if select.select([raw], [], [], max(0.0, due - time.monotonic()))[0]:
                    number = answered_number(raw.recv(2048), identity)
                    if number is not None:
                        self.echoes.answered.setdefault(number, Instant(time.monotonic()))

    @property
    def lost(self) -> list[int]:
        """What was never answered, of all that was sent a second ago or earlier."""
        settled = time.monotonic() - SETTLED
        return [
            number for number, at in enumerate(self.echoes.sent) if at < settled and number not in self.echoes.answered
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
