"""Output of ``autoscale cost``: tables for terminals, and JSON, YAML, CSV or OpenCost's format for machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scheduler_plugin.history.core.samples import HOUR
from scheduler_plugin.history.costs import rendering
from scheduler_plugin.history.costs.bills import Bill, Line
from scheduler_plugin.history.costs.consolidation import Emptied
from scheduler_plugin.history.costs.opencost import allocations
from scripts.autoscale.terminal.printing import print_lines, print_table, serialised
from scripts.autoscale.terminal.visible import visible

_HEADINGS: Final = ("vCPU-h", "GiB-h", "cost", "used", "at max", "saved", "at P99.5", "saved", "unknown h")
_WIDE_HEADINGS: Final = (
    *("used vCPU-h", "used GiB-h", "max vCPU-h", "max GiB-h", "P99.5 vCPU-h", "P99.5 GiB-h"),
    *("known h", "use known h"),
)

CostOutput = Literal["text", "wide", "json", "yaml", "csv", "opencost"]


def written(  # noqa: PLR0913, PLR0917 - the bill and its context
    bill: Bill, by: str, output: CostOutput, cluster: str, notes: Sequence[str], more: rendering.More | None = None
) -> str:
    """The bill for machines; JSON and YAML include ``notes`` and ``more``, and CSV only ``more``."""
    if output == "csv":
        return rendering.as_csv(bill, more)
    if output == "opencost":
        return f"{serialised(allocations(bill, by, cluster), output)}\n"
    document = {**rendering.document(bill, by, more), "notes": list(notes)}
    return f"{serialised(document, output)}\n"


def show(  # noqa: PLR0913 - the bill and its context
    console: Console,
    bill: Bill,
    by: str,
    prices: str,
    notes: Sequence[str],
    *,
    more: rendering.More | None = None,
    is_wide: bool = False,
) -> None:
    """Prints the bill as a table; ``is_wide`` adds columns of hours, ``more`` the effect of a policy."""
    hours, cells = (bill.period.until - bill.period.since) / HOUR, _wide_cells if is_wide else _cells
    # Names in the cluster may contain control characters and markup.
    table = Table(box=None, title=escape(visible(f"The last {hours:.1f} h, by {by}")), title_justify="left")
    table.add_column("database" if by == "vm" else escape(visible(by)), no_wrap=True)
    for heading in (*_HEADINGS, *(_WIDE_HEADINGS if is_wide else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    if more is not None:
        table.add_column("policy", justify="right", no_wrap=True)
    for name, line in rendering.ranked(bill):
        table.add_row(escape(visible(name)), *cells(line), *_changed(more, name))
    table.add_section()
    table.add_row("total", *cells(bill.total), *_changed(more, None), style="bold")
    print_table(console, table)
    print_lines(console, (*_sentences(bill, prices), *notes))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _cells(line: Line) -> tuple[str, ...]:
    cpu, mem, money = rendering.hours_and_money(line.reserved)
    used, most, high = (rendering.hours_and_money(cost)[2] for cost in rendering.known_costs(line))
    # If the cost is unknown, so is the difference.
    saved = rendering.UNKNOWN if most == rendering.UNKNOWN else f"{float(line.saved):.4f}"
    of_high = rendering.UNKNOWN if high == rendering.UNKNOWN else f"{float(line.saved_of_high):.4f}"
    return cpu, mem, money, used, most, saved, high, of_high, f"{float(line.unknown):.2f}"


def _changed(more: rendering.More | None, name: str | None) -> Iterator[str]:
    if more is not None:
        change = more(name)["cost_change"]
        yield rendering.UNKNOWN if change is None else f"{change:+.4f}"


def _wide_cells(line: Line) -> tuple[str, ...]:
    hours = [cell for cost in rendering.known_costs(line) for cell in rendering.hours_and_money(cost)[:2]]
    return *_cells(line), *hours, f"{float(line.known_hours):.2f}", f"{float(line.use_known):.2f}"


def _sentences(bill: Bill, prices: str) -> Iterator[str]:
    total = bill.total
    share = f" ({float(total.saved / total.at_most.money):.0%})" if total.at_most.money else ""
    yield f"Scaling saved {float(total.saved):.4f}{share} against the maximum sizes."
    if total.asleep:
        # Without sleep, such a VM would shrink to its minimum.
        yield (
            f"Sleep saved {float(total.slept.money):.4f} of that against the minimum sizes; VMs slept "
            f"{float(total.asleep):.2f} h in total."
        )
    yield f"Prices: {prices}. They are per hour, in the currency of the table."
    if bill.unpriced:
        yield f"At the reference price, because the price table has no key for them: {_some(bill.unpriced)}."
    if bill.unused:
        yield f"These keys of the price table match no node of this period: {_some(bill.unused)}."
    if total.unknown:
        yield f"{float(total.unknown):.2f} database-hours were not observed, and count as free."
    if total.known_hours > total.use_known:
        yield (
            f"Usage is known for {float(total.use_known):.2f} of {float(total.known_hours):.2f} database-hours, whose "
            f"reservations cost {float(total.in_use.money):.4f}."
        )


def advice_document(nodes: Sequence[Emptied]) -> dict[str, object]:
    """Consolidation advice as JSON."""
    return {
        "nodes": [
            {
                "node": node.node,
                "pricePerHour": rendering.rounded(node.price),
                "moves": [{"vm": move.vm, "target": move.target} for move in node.moves],
                "otherPods": node.others,
            }
            for node in nodes
        ]
    }


def advice(nodes: Sequence[Emptied]) -> Iterator[str]:
    """Consolidation advice in sentences."""
    if not nodes:
        yield (
            "No node could be emptied: each runs a database in a pod, or VMs that do not fit below the watermarks of "
            "other nodes."
        )
    for node in nodes:
        others = f"; {node.others} pods that run no VM would be rescheduled" if node.others else ""
        yield f"Node {node.node} could be emptied, which saves {float(node.price):.4f} per hour{others}:"
        yield from (f"  {move.vm} moves to {move.target}" for move in node.moves)
        if not node.moves:
            yield "  It runs no VM."
    if nodes:
        yield (
            "After kubectl cordon NODE the scheduler moves the VMs away. This advice considers only amounts; the "
            "scheduler also considers constraints."
        )
