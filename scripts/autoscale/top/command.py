"""``autoscale top``: nodes and databases, live in a terminal, or once as plain tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Final

import typer

from protocol.kubernetes.objects import Json
from protocol.runtime.clock import SystemClock
from protocol.units import Seconds
from scripts.autoscale.cluster_flags import check_namespace, cluster_command
from scripts.autoscale.clusters import ClusterFlags, find_cluster
from scripts.autoscale.running import background
from scripts.autoscale.site import open_site
from scripts.autoscale.terminal.completion import complete_namespace
from scripts.autoscale.terminal.durations import duration_between
from scripts.autoscale.terminal.printing import Output, OutputFormat, show
from scripts.autoscale.top.columns import (
    NODE_COLUMNS,
    VM_COLUMNS,
    Column,
    ColumnType,
    TableRow,
    View,
    full_width,
    header,
    line,
)
from scripts.autoscale.top.fleet import FleetReader, FleetSnapshot
from scripts.autoscale.top.rows import as_fields

_OF_WIDE: Final = 6
"""Columns with at least this importance number need ``-o wide``, except for sentences."""


@cluster_command()
async def top(
    every: Annotated[str, typer.Option(help="Interval between updates, such as 5s: 500ms to 1h.")] = "1s",
    once: Annotated[bool, typer.Option("--once", help="Print once and exit (default if not a terminal).")] = False,
    output: OutputFormat = Output.TEXT,
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            callback=check_namespace,
            help="Only databases in this namespace.",
            autocompletion=complete_namespace,
        ),
    ] = "",
    *,
    flags: ClusterFlags,
) -> int:
    """Show nodes and databases: sizes, usage, limits, denied requests and migrations. Press ? for the keys."""
    interval = duration_between(Seconds(0.5), Seconds(3600.0), every, "--every")
    # The live table needs a terminal on both sides; scripts and pipes get plain tables.
    is_live = not once and output is Output.TEXT and sys.stdin.isatty() and sys.stdout.isatty()
    async with open_site(find_cluster(flags)) as site:
        fleet = FleetReader(site, SystemClock(), namespace)
        if is_live:
            from scripts.autoscale.top.app import TopApp  # noqa: PLC0415 - takes half a second to import

            # The watch must end before its client is closed.
            async with background(fleet.run()):
                await TopApp(fleet, interval).run_async()
        else:
            snapshot = await fleet.everything()
            show(tables(site.title, snapshot, output), fields(snapshot), output)
    return 0


def tables(title: str, snapshot: FleetSnapshot, output: Output) -> Iterator[str]:
    """Both tables as lines at full width (pure)."""
    yield title
    yield from (f"  {trouble}" for trouble in snapshot.troubles)
    yield from _table(NODE_COLUMNS, snapshot.nodes, output)
    yield ""
    yield from _table(VM_COLUMNS, snapshot.vms, output)


def fields(snapshot: FleetSnapshot) -> Json:
    """Both tables for scripts (pure)."""
    return {
        "nodes": [as_fields(NODE_COLUMNS, row) for row in _sorted(NODE_COLUMNS, snapshot.nodes)],
        "vms": [as_fields(VM_COLUMNS, row) for row in _sorted(VM_COLUMNS, snapshot.vms)],
        "troubles": list(snapshot.troubles),
    }


def _table(columns: tuple[Column, ...], rows: tuple[TableRow, ...], output: Output) -> Iterator[str]:
    placed = [
        placed_column
        for placed_column in full_width(columns, rows)
        if output is Output.WIDE or _is_usual(placed_column.column)
    ]
    yield header(placed)
    yield from (line(row, placed) for row in _sorted(columns, rows))


def _is_usual(column: Column) -> bool:
    return column.kind is ColumnType.SENTENCE or column.importance < _OF_WIDE


def _sorted(columns: tuple[Column, ...], rows: tuple[TableRow, ...]) -> list[TableRow]:
    return View(columns, columns[0].key).rows(rows)
