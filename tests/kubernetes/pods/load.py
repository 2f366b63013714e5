"""pgbench against a postgres pod: its transactions, and clients that lost their session."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Final

from scripts.autoscale.demonstration.pgbench import find_pgbench
from tests.kubernetes.adoption.release import nodes_of
from tests.kubernetes.real_kubernetes import RealKubernetes

CLIENTS: Final = 8
_HOURS: Final = "36000"
_PROGRESS: Final = re.compile(r"progress: [\d.]+ s, ([\d.]+) tps, .* (\d+) failed")
_USUAL: Final = re.compile(r"pgbench \(|starting vacuum")


@dataclass(frozen=True, slots=True)
class Server:
    """A database's address, as pgbench's environment; ``password`` may be empty."""

    cluster: RealKubernetes
    host: str
    password: str = field(default="", repr=False)

    def command(self, *arguments: str) -> list[str]:
        """pgbench with ``arguments``, from the first node's network; it ends with this process."""
        enter = ("nsenter", f"--target={nodes_of(self.cluster)[0]}", "--net", "--")
        return [*enter, *("setpriv", "--pdeathsig", "KILL", "--"), find_pgbench(), *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """That of pgbench."""
        own = {"PGHOST": self.host, "PGUSER": "app", "PGDATABASE": "app", "PGPASSWORD": self.password, "LC_ALL": "C"}
        return {**os.environ, **own, "PGCONNECT_TIMEOUT": "10"}

    def prepare(self, scale: int) -> None:
        """Makes pgbench's tables: 15 MB for each of ``scale``."""
        command = self.command("--initialize", "--quiet", f"--scale={scale}")
        subprocess.run(command, env=self.environment, check=True, capture_output=True, timeout=300)


@dataclass(slots=True)
class Load:
    """A run of pgbench. ``began`` is when it was started."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    began: float = field(default_factory=time.monotonic)

    def lines(self) -> list[str]:
        """Output lines so far."""
        # Its own position in the file must stay.
        size = os.fstat(self.output.fileno()).st_size
        return os.pread(self.output.fileno(), size, 0).decode().splitlines()

    def transactions(self) -> float:
        """Number of transactions in the output so far."""
        return sum(float(match[1]) for match in map(_PROGRESS.match, self.lines()) if match)

    def rates(self) -> list[float]:
        """Transactions in each second."""
        return [float(match[1]) for match in map(_PROGRESS.match, self.lines()) if match]

    def faults(self) -> list[str]:
        """Failed transactions, and clients that lost their session."""
        ended = [] if self.process.poll() is None else [f"pgbench has ended with {self.process.poll()}"]
        return [*ended, *(line for line in self.lines() if not _is_usual(line))]


def _is_usual(line: str) -> bool:
    match = _PROGRESS.match(line)
    return match[2] == "0" if match else not line or bool(_USUAL.match(line))


@contextmanager
def load(server: Server, *more: str, clients: int = CLIENTS, may_fail: bool = False) -> Iterator[Load]:
    """``clients`` sessions are busy until the end of the block, and none of them may fail unless ``may_fail``."""
    with TemporaryFile() as output:
        command = server.command("-n", f"-c{clients}", "-j1", f"-T{_HOURS}", "-P1", *more)
        running = Load(
            subprocess.Popen(command, env=server.environment, stdout=output, stderr=subprocess.STDOUT), output
        )
        try:
            yield running
            assert may_fail or running.faults() == []
        finally:
            running.process.kill()
            running.process.wait()
