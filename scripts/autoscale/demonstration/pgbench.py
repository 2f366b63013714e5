"""Runs pgbench as a child process, and parses its output."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from protocol.units import Seconds

_PROGRESS: Final = re.compile(r"progress: ([\d.]+) s, ([\d.]+) tps")
_DONE: Final = re.compile(r"number of transactions actually processed: (\d+)")
_FAILED: Final = re.compile(r"number of failed transactions: (\d+)")
_ABORTED: Final = re.compile(r"client \d+ (aborted|script \d+ aborted)")
_DEBIAN: Final = "/usr/lib/postgresql"
PREPARING: Final = Seconds(600.0)
"""Timeout of the creation of small tables, in one of several emulated guests on a busy machine."""
GRACE: Final = Seconds(60.0)
"""Extra time for a run to end: a migration may stall a database for some seconds."""


class PgbenchError(Exception):
    """pgbench is missing or failed; the message contains a remedy."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a run; ``problem`` is empty if pgbench succeeded."""

    transactions: int
    failed: int
    problem: str

    def __add__(self, later: Outcome) -> Outcome:
        """Sums two runs, and keeps the first problem."""
        both = self.transactions + later.transactions, self.failed + later.failed
        return Outcome(*both, self.problem or later.problem)


def find_pgbench() -> str:
    """Finds the program. Raises ``PgbenchError`` if it is not installed."""
    # Debian installs it outside PATH, in a folder per version: /usr/lib/postgresql/16/bin.
    versions = sorted(Path(_DEBIAN).glob("*/bin/pgbench"), key=_version_of)
    path = shutil.which("pgbench") or (str(versions[-1]) if versions else None)
    if path is None:
        raise PgbenchError("pgbench is not installed; on Debian: sudo apt-get install postgresql-contrib")
    return path


def _version_of(path: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in path.parent.parent.name.split(".") if part.isdigit())


def tps_of(line: str) -> float | None:
    """Transactions per second, if ``line`` reports progress."""
    match = _PROGRESS.search(line)
    return float(match[2]) if match else None


def outcome_of(lines: Sequence[str], code: int) -> Outcome:
    """Parses the output of a run that ended with exit ``code``."""
    output = "\n".join(lines)
    done, failed = _DONE.search(output), _FAILED.search(output)
    # A client that aborts counts as a failed transaction: its connection broke in the middle of one.
    aborted = len(_ABORTED.findall(output))
    problem = f"pgbench ended with exit code {code}: {lines[-1] if lines else 'no output'}" if code else ""
    return Outcome(int(done[1]) if done else 0, (int(failed[1]) if failed else 0) + aborted, problem)


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    """The address and password of a database."""

    host: str
    port: int
    password: str = field(default="", repr=False)

    @property
    def environment(self) -> dict[str, str]:
        """The environment for postgres' clients."""
        # Not on the command line, which all users can read.
        address = {"PGHOST": self.host, "PGPORT": str(self.port), "PGUSER": "postgres"}
        return {**address, "PGPASSWORD": self.password} if self.password else address


async def problem_of(server: DatabaseServer) -> str:
    """Reason why the database refuses clients; empty if it accepts them. Raises ``PgbenchError``."""
    with _script("SELECT 1;\n") as script:
        # One transaction without tables, which may not exist yet.
        once = ["-n", "-t", "1", "-f", script, "postgres"]
        lines = list[str]()
        outcome = await run_pgbench(server, once, lines.append, GRACE)
    return " ".join(lines) or outcome.problem if outcome.problem else ""


@contextmanager
def _script(sql: str) -> Iterator[str]:
    """Yields the path of a temporary script for pgbench."""
    with NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(sql)
        script.flush()
        yield script.name


async def prepare(server: DatabaseServer, scale: int) -> None:
    """Creates pgbench's tables. Raises ``PgbenchError``."""
    arguments = ["-i", "-q", "-s", str(scale), "postgres"]
    outcome = await run_pgbench(server, arguments, lambda _: None, PREPARING)
    if outcome.problem:
        raise PgbenchError(outcome.problem)


async def run_load(  # noqa: PLR0913 - each is an option of pgbench
    server: DatabaseServer,
    clients: int,
    seconds: int,
    on_tps: Callable[[float], None],
    rate: int | None = None,
    *,
    reads_only: bool = False,
    more: Sequence[str] = (),
) -> Outcome:
    """Runs transactions for ``seconds`` with ``clients`` connections; calls ``on_tps`` every second.

    ``rate`` limits the transactions per second, None means full speed; ``more`` are additional options of pgbench.
    Raises ``PgbenchError``.
    """

    def on_line(line: str) -> None:
        tps = tps_of(line)
        if tps is not None:
            on_tps(tps)

    options = [*([] if rate is None else ["-R", str(rate)]), *(["-S"] if reads_only else []), *more]
    # `-n` skips the vacuum, which a read replica cannot run.
    run = ["-n", "-c", str(clients), "-j", "1", "-T", str(seconds), "-P", "1", *options, "postgres"]
    return await run_pgbench(server, run, on_line, Seconds(seconds + GRACE))


async def run_load_with_sums(
    server: DatabaseServer, clients: int, seconds: int, on_tps: Callable[[float], None]
) -> Outcome:
    """Like ``run_load``, with sums over the largest table, for a postgres that is not emulated."""
    # pgbench's own transactions mostly wait for the disk and for pgbench, and use little CPU.
    with _script("SELECT sum(abalance) FROM pgbench_accounts;\n") as sums:
        return await run_load(server, clients, seconds, on_tps, more=("-b", "tpcb-like", "-f", sums))


async def run_pgbench(
    server: DatabaseServer, arguments: Sequence[str], on_line: Callable[[str], None], at_most: Seconds
) -> Outcome:
    """Runs pgbench; calls ``on_line`` with each line of output.

    Raises ``PgbenchError`` if it is not installed, or if it has not ended after ``at_most``.
    """
    process = await asyncio.create_subprocess_exec(
        # The kernel kills pgbench if this process ends; an orphan would keep loading the VM.
        *("setpriv", "--pdeathsig", "KILL", "--", find_pgbench(), *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        # Progress and errors are on stderr; one stream keeps their order.
        stderr=asyncio.subprocess.STDOUT,
        # Messages are parsed, so they must not be localized.
        env={**os.environ, **server.environment, "LC_ALL": "C", "PGCONNECT_TIMEOUT": f"{GRACE:.0f}"},
        # Ctrl-C must reach only this process, which then ends pgbench.
        start_new_session=True,
    )
    lines: list[str] = []
    now = asyncio.get_running_loop().time
    began = last = now()
    try:
        # pgbench waits forever for a database that does not respond.
        async with asyncio.timeout(at_most):
            while process.stdout is not None and (line := await process.stdout.readline()):
                lines.append(line.decode(errors="replace").rstrip())
                last = now()
                on_line(lines[-1])
            return outcome_of(lines, await process.wait())
    except TimeoutError:
        output = f"; its last output, after {last - began:.1f} s: {lines[-1]}" if lines else ""
        raise PgbenchError(
            f"pgbench has not ended after {at_most:g} s: the database does not respond{output}"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
