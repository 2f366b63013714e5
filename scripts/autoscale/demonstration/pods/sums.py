"""A load for a postgres that is not emulated: pgbench's transactions, and sums over its largest table."""

from __future__ import annotations

from collections.abc import Callable
from tempfile import NamedTemporaryFile
from typing import Final

from scripts.autoscale.demonstration.pgbench import DatabaseServer, Outcome, run_load

_SUM: Final = "SELECT sum(abalance) FROM pgbench_accounts;\n"


async def run_load_with_sums(
    server: DatabaseServer, clients: int, seconds: int, on_tps: Callable[[float], None]
) -> Outcome:
    """Runs both like ``run_load``. Raises ``PgbenchError``."""
    with NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(_SUM)
        script.flush()
        # pgbench's own transactions mostly wait for the disk and for pgbench, and use little CPU.
        return await run_load(server, clients, seconds, on_tps, more=("-b", "tpcb-like", "-f", script.name))
