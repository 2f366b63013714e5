"""A database that lives in the page cache: pgbench's tables, twice as large as ``shared_buffers``, and readers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.adapters.exposition import read_sample
from protocol.units import Bytes, Seconds
from scripts.autoscale.demonstration.pgbench import GRACE, DatabaseServer, PgbenchError, run_pgbench
from tests.vm.memory_guest import MIB, PASSWORD, MemoryGuest

PAGE: Final = 8192

# Pages are filled only to a tenth, so that an emulated CPU loads a GiB in a minute.
_FILL: Final = 10
"""Percent of a table's page that hold rows."""

_SCALE_BYTES: Final = 130 * MIB
"""Size of the table per unit of scale, with this fill factor."""

_LOADING: Final = Seconds(1800.0)
"""Time limit of a statement that writes or reads all tables, on an emulated CPU."""

# With one account per transaction (``pgbench -S``) an emulated CPU is the bottleneck, however slow the disk is.
_READS: Final = 50
_CLIENTS: Final = 4
_READ: Final = (
    "select sum(abalance) from (select (random() * {last})::int + 1 as aid from generate_series(1, {reads})) as keys "
    "join pgbench_accounts using (aid);"
)
_RESTART: Final = "copy (select 1) to program '(sleep 1; kill -INT $(head -1 postmaster.pid)) >/dev/null 2>&1 &';"
"""Ends the server, which the guest's init starts again."""
_RESTARTS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Database:
    """pgbench's tables of ``scale`` in ``guest``; ``folder`` is for the scripts of pgbench."""

    guest: MemoryGuest
    scale: int
    folder: Path

    @property
    def server(self) -> DatabaseServer:
        """Address of the server."""
        return DatabaseServer("127.0.0.1", self.guest.port, PASSWORD)

    @property
    def size(self) -> Bytes:
        """About how large the tables are."""
        return Bytes(self.scale * _SCALE_BYTES)

    async def make(self) -> None:
        """Loads the tables, and gives postgres half their size as ``shared_buffers``. Raises ``PgbenchError``."""
        # Unlogged tables avoid the WAL, which an emulated guest writes slowly.
        loading = ["-i", "-q", "-I", "dtgvp", "-s", str(self.scale), "-F", str(_FILL), "--unlogged-tables", "postgres"]
        outcome = await run_pgbench(self.server, loading, lambda _: None, _LOADING)
        if outcome.problem:
            raise PgbenchError(outcome.problem)
        buffers = f"{self.size.value // 2 // MIB}MB"
        await self._say(
            "create extension pg_prewarm;", f"alter system set shared_buffers = '{buffers}';", "checkpoint;", _RESTART
        )
        async with asyncio.timeout(_RESTARTS):
            # Division by zero fails the statement until the restarted server has the new setting.
            while not await self._runs(f"select 1 / (current_setting('shared_buffers') = '{buffers}')::int;"):
                await self.guest.clock.sleep(Seconds(1.0))

    async def warm(self) -> None:
        """Reads all tables into memory, and half of them into ``shared_buffers``. Raises ``PgbenchError``."""
        half = self.size.value // 2 // PAGE - 1
        await self._say(
            # ``read`` reaches only the page cache, ``buffer`` the shared buffers.
            "select pg_prewarm('pgbench_accounts', 'read'), pg_prewarm('pgbench_accounts_pkey', 'read');",
            f"select pg_prewarm('pgbench_accounts', 'buffer', 'main', 0, {half});",
        )

    async def load(self, seconds: int) -> int:
        """The transactions of clients that read at random for this many seconds. Raises ``PgbenchError``."""
        script = self._script("read", _READ.format(last=self.scale * 100_000 - 1, reads=_READS))
        load = ["-M", "prepared", "-n", "-c", str(_CLIENTS), "-j", "1", "-T", str(seconds), "-f", script, "postgres"]
        return (await run_pgbench(self.server, load, lambda _: None, Seconds(seconds + GRACE))).transactions

    async def missed(self, seconds: int) -> float:
        """The share of what clients read in that many seconds that came from the disk. Raises ``PgbenchError``."""
        before = read_sample(await self.guest.page())
        transactions = await self.load(seconds)
        after = read_sample(await self.guest.page())
        if before.read is None or after.read is None:
            raise PgbenchError("the guest does not say what it reads from disk")
        # Each read of an account is about one page: a page holds few rows, and accounts are chosen at random.
        return (after.read - before.read) / PAGE / max(1, transactions * _READS)

    async def _say(self, *statements: str) -> None:
        for statement in statements:
            if not await self._runs(statement):
                raise PgbenchError(f"the database refused: {statement}")

    async def _runs(self, statement: str) -> bool:
        """Run the statement in a separate transaction; return True if it succeeded."""
        once = ["-n", "-t", "1", "-f", self._script("once", statement), "postgres"]
        return not (await run_pgbench(self.server, once, lambda _: None, _LOADING)).problem

    def _script(self, name: str, statement: str) -> str:
        path = self.folder / f"{name}.sql"
        path.write_text(statement + "\n")
        return str(path)
