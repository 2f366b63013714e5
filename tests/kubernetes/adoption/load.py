"""Clients that keep a database busy during an upgrade, and the failures that they see."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.kubernetes.postgres_session import Session

_BUSY: Final = "select count(*) from generate_series(1, 300000)"
_PATIENCE: Final = 120.0
"""An emulated guest beside two clusters' programs is slow; a session that is lost is lost for good."""


@dataclass(slots=True)
class Load:
    """Failures that the clients have seen."""

    over: threading.Event = field(default_factory=threading.Event)
    answers: int = 0
    failures: list[str] = field(default_factory=list)
    longest: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def run(self, session: Session) -> None:
        """One client; its session must last."""
        try:
            while not self.over.is_set():
                session.ask(_BUSY)
                self.answers += 1
                self.longest = max(self.longest, session.longest)
        except OSError as error:
            self.failures.append(f"after {time.monotonic() - self.began:.0f} s: {error}")


@contextmanager
def busy(namespace: str, address: str, clients: int) -> Iterator[Load]:
    """So many clients, which hang up afterwards."""
    load = Load()
    sessions = [Session(namespace, address, _PATIENCE) for _ in range(clients)]
    workers = [threading.Thread(target=load.run, args=[each]) for each in sessions]
    try:
        for worker in workers:
            worker.start()
        yield load
    finally:
        load.over.set()
        for worker in workers:
            worker.join()
        for each in sessions:
            each.close()
