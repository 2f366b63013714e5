"""Clients of a VM that may migrate: some transactions, and a probe that measures stalls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scripts.autoscale.demonstration import pgbench

# One query at a time on one connection, so that a stall is one slow answer.
PAUSE: Final = Seconds(0.02)
_SCRIPT: Final = f"\\sleep {PAUSE * 1000:g} ms\nSELECT 1;\n"


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """The time of an answer, and how long the client waited for it."""

    at: Instant
    waited: Seconds


@dataclass(frozen=True, slots=True)
class ClientReport:
    """The outcome of a VM's clients, and the answers to a probe, if there was one.

    A broken connection counts as a failed transaction.
    """

    outcome: pgbench.Outcome
    answers: Sequence[ProbeReply] = ()

    def __add__(self, other: ClientReport) -> ClientReport:
        """Combines two reports, and keeps the first problem."""
        return ClientReport(self.outcome + other.outcome, [*self.answers, *other.answers])

    def longest_stall(self, since: Instant, until: Instant) -> Seconds | None:
        """The longest wait that overlaps the span; None if there is none."""
        within = (answer.waited for answer in self.answers if answer.at >= since and answer.at - answer.waited <= until)
        return max(within, default=None)


def answers_of(lines: Iterable[str], offset: float) -> list[ProbeReply]:
    """Parses pgbench's log, whose clock is ``offset`` seconds ahead. Raises ``PgbenchError`` for an invalid line."""
    return [_answer(line, offset) for line in lines if line.strip()]


def _answer(line: str, offset: float) -> ProbeReply:
    try:
        _client, _number, duration, _script, seconds, micros = (int(word) for word in line.split()[:6])
    except ValueError:
        raise pgbench.PgbenchError(f"cannot parse a line of pgbench's log: {line.strip()!r}") from None
    # pgbench counts the script's pause as a part of the transaction.
    return ProbeReply(Instant(seconds + micros / 1e6 - offset), Seconds(max(0.0, duration / 1e6 - PAUSE)))


async def probe(server: pgbench.DatabaseServer, seconds: int, clock: Clock) -> ClientReport:
    """Runs a probe for ``seconds``. Raises ``PgbenchError``."""
    with TemporaryDirectory(prefix="autoscale-probe-") as folder:
        script, prefix = Path(folder) / "probe.sql", Path(folder) / "log"
        await asyncio.to_thread(script.write_text, _SCRIPT)
        # The log contains wall-clock times; the caller uses a monotonic clock.
        offset = time.time() - clock.now()
        arguments = ["-n", "-c", "1", "-T", str(seconds), "-f", str(script), "-l", f"--log-prefix={prefix}"]
        outcome = await pgbench.run_pgbench(
            server, [*arguments, "postgres"], lambda _: None, Seconds(seconds + pgbench.GRACE)
        )
        return ClientReport(outcome, await asyncio.to_thread(_read, Path(folder), offset))


def _read(folder: Path, offset: float) -> list[ProbeReply]:
    return [
        answer for log in sorted(folder.glob("log.*")) for answer in answers_of(log.read_text().splitlines(), offset)
    ]


_CLIENTS: Final = 2
_PER_SECOND: Final = 20
"""Few, because the scheduler moves the least loaded VM."""


RunClients = Callable[[int], Coroutine[object, object, ClientReport]]
"""Runs the clients of a VM for some seconds."""


async def pgbench_clients(server: pgbench.DatabaseServer, clock: Clock, seconds: int) -> ClientReport:
    """Runs two clients with a total of twenty transactions per second, and the probe. Raises ``PgbenchError``."""
    async with asyncio.TaskGroup() as tasks:
        # On separate connections, so that the load does not delay the probe.
        work = tasks.create_task(pgbench.run_load(server, _CLIENTS, seconds, lambda _: None, _PER_SECOND))
        ask = tasks.create_task(probe(server, seconds, clock))
    return ClientReport(work.result()) + ask.result()


async def no_clients(clock: Clock, seconds: int) -> ClientReport:
    """Waits: a simulated guest has no database."""
    await clock.sleep(Seconds(float(seconds)))
    return ClientReport(pgbench.Outcome(0, 0, ""))
