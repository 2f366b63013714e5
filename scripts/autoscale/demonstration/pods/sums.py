"""A load that a postgres without emulation feels: pgbench's transactions, and sums over its largest table."""

from __future__ import annotations

from collections.abc import Callable
from tempfile import NamedTemporaryFile
from typing import Final

from scripts.autoscale.demonstration.pgbench import DatabaseServer, Outcome, press

_SUM: Final = "SELECT sum(abalance) FROM pgbench_accounts;\n"


async def press_with_sums(
    server: DatabaseServer, clients: int, seconds: int, on_tps: Callable[[float], None]
) -> Outcome:
    """Runs both for ``seconds``, as ``press``. Raises ``PgbenchError``."""
    with NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(_SUM)
        script.flush()
        # pgbench's own transactions mostly wait for the disk and for pgbench: a small share of a CPU does them all.
        return await press(server, clients, seconds, on_tps, more=("-b", "tpcb-like", "-f", script.name))
