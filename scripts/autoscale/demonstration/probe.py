"""A client that sends a small query to a database every 20 ms and measures how long each answer takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scripts.autoscale.demonstration.pgbench import GRACE, DatabaseServer, Outcome, PgbenchError, run_pgbench

# One query at a time on one connection: a stall is one long answer, and not hidden among short ones.
PAUSE: Final = Seconds(0.02)
_SCRIPT: Final = f"\\sleep {PAUSE * 1000:g} ms\nSELECT 1;\n"


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """One answer: when it came, and how long the client had waited for it."""

    at: Instant
    waited: Seconds


@dataclass(frozen=True, slots=True)
class Noticed:
    """All that one probe noticed. A connection that broke is a failed transaction of ``outcome``."""

    outcome: Outcome
    answers: Sequence[ProbeReply]

    def longest_stall(self, since: Instant, until: Instant) -> Seconds | None:
        """The longest wait that lies at least partly within the span; None if nothing was asked in it."""
        # An answer counts if its wait overlaps the span; it may begin before it or end after it.
        within = (answer.waited for answer in self.answers if answer.at >= since and answer.at - answer.waited <= until)
        return max(within, default=None)


def answers_of(lines: Iterable[str], offset: float) -> list[ProbeReply]:
    """Answers from lines of pgbench's log, in which ``offset`` seconds lie between its clock and the caller's.

    Raises ``PgbenchError`` for a line that is none.
    """
    return [_answer(line, offset) for line in lines if line.strip()]


def _answer(line: str, offset: float) -> ProbeReply:
    try:
        _client, _number, took, _script, seconds, micros = (int(word) for word in line.split()[:6])
    except ValueError:
        raise PgbenchError(f"pgbench wrote a line into its log that cannot be read: {line.strip()!r}") from None
    # pgbench counts the script's pause as part of the transaction.
    return ProbeReply(Instant(seconds + micros / 1e6 - offset), Seconds(max(0.0, took / 1e6 - PAUSE)))


async def probe(server: DatabaseServer, seconds: int, clock: Clock) -> Noticed:
    """Asks for ``seconds``. Raises ``PgbenchError``."""
    with TemporaryDirectory(prefix="autoscale-probe-") as folder:
        script, prefix = Path(folder) / "probe.sql", Path(folder) / "log"
        await asyncio.to_thread(script.write_text, _SCRIPT)
        # The log has the wall clock; the caller has a monotonic one.
        offset = time.time() - clock.now()
        arguments = ["-n", "-c", "1", "-T", str(seconds), "-f", str(script), "-l", f"--log-prefix={prefix}"]
        outcome = await run_pgbench(server, [*arguments, "postgres"], lambda _: None, Seconds(seconds + GRACE))
        return Noticed(outcome, await asyncio.to_thread(_read, Path(folder), offset))


def _read(folder: Path, offset: float) -> list[ProbeReply]:
    return [
        answer for log in sorted(folder.glob("log.*")) for answer in answers_of(log.read_text().splitlines(), offset)
    ]
