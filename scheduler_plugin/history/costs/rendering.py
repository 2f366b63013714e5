"""Bills as rows for tables and CSV, and as JSON. Numbers are rounded only here."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final

from scheduler_plugin.history.costs.bills import Bill, BilledCost, Line

COLUMNS: Final = (
    "name",
    "reserved_cpu_hours",
    "reserved_gib_hours",
    "used_cpu_hours",
    "used_gib_hours",
    "max_cpu_hours",
    "max_gib_hours",
    "p99_5_cpu_hours",
    "p99_5_gib_hours",
    "reserved_cost",
    "used_cost",
    "max_cost",
    "p99_5_cost",
    "saved",
    "saved_against_p99_5",
    "known_hours",
    "unknown_hours",
    "use_known_hours",
    "use_known_cost",
    "asleep_hours",
    "sleep_saved",
)
UNKNOWN: Final = "-"

More = Callable[[str | None], Mapping[str, float | None]]
"""Returns additional numbers of a line, or of the total if None, always with the same names."""

# So that a thousand rounded lines still add up to the sixth decimal.
_DECIMALS: Final = 9
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def figures(line: Line) -> dict[str, float | None]:
    """The numbers of a line, by column."""
    used, most, high = known_costs(line)
    costs = (line.reserved, used, most, high)
    hours = [part for cost in costs for part in ((None, None) if cost is None else (cost.cpu_hours, cost.gib_hours))]
    money = [None if cost is None else cost.money for cost in costs]
    saved = [None if most is None else line.saved, None if high is None else line.saved_of_high]
    numbers = (*hours, *money, *saved, line.known_hours, line.unknown, line.use_known, line.in_use.money)
    numbers += (line.asleep, line.slept.money)
    return {
        name: None if number is None else rounded(number) for name, number in zip(COLUMNS[1:], numbers, strict=True)
    }


def known_costs(line: Line) -> tuple[BilledCost | None, BilledCost | None, BilledCost | None]:
    """Costs of use, of the maximum size, and of the size that is enough for 99.5 % of the time; None if unknown."""
    reserved = line.reserved.money
    return (
        # A line without any known reservation has zero use.
        line.used if line.use_known or not line.known_hours else None,
        line.at_most if line.without_most < reserved or not reserved else None,
        line.at_high if line.without_high < reserved or not reserved else None,
    )


def rounded(number: Fraction) -> float:
    """Round to nine decimals.

    >>> rounded(Fraction(1, 3))
    0.333333333
    """
    return float(round(number, _DECIMALS))


def document(bill: Bill, by: str, more: More | None = None) -> dict[str, object]:
    """The bill as JSON, most expensive line first; ``more`` is the field ``policy`` of each line and the total."""

    def with_more(line: Line, name: str | None) -> dict[str, object]:
        return {**figures(line), **({} if more is None else {"policy": more(name)})}

    return {
        "since": bill.period.since,
        "until": bill.period.until,
        "by": by,
        "lines": [{"name": name, **with_more(line, name)} for name, line in ranked(bill)],
        "total": with_more(bill.total, None),
        "nodesAtReferencePrice": list(bill.unpriced),
        "unusedPrices": list(bill.unused),
    }


def ranked(bill: Bill) -> list[tuple[str, Line]]:
    """The lines, most expensive first."""
    return sorted(bill.lines.items(), key=lambda name_and_line: (-name_and_line[1].reserved.money, name_and_line[0]))


def as_csv(bill: Bill, more: More | None = None) -> str:
    """The header, lines and total as CSV; columns of ``more`` come last, as ``policy_…``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*COLUMNS, *(f"policy_{name}" for name in (more(None) if more else ()))))
    for name, line in ranked(bill):
        writer.writerow((plain(name), *figures(line).values(), *(more(name).values() if more else ())))
    writer.writerow(("TOTAL", *figures(bill.total).values(), *(more(None).values() if more else ())))
    return text.getvalue()


def plain(cell: str) -> str:
    """Escape a text so that spreadsheets do not interpret it as a formula.

    >>> plain("=1+1"), plain("db")
    ("'=1+1", 'db')
    """
    # Users choose names and labels, and a formula would run on the reader's machine.
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def hours_and_money(cost: BilledCost | None) -> tuple[str, str, str]:
    """vCPU-hours, GiB-hours and money as text; dashes for an unknown cost (None).

    >>> hours_and_money(BilledCost(Fraction(1, 3), Fraction(2), Fraction(1, 100), Fraction(0)))
    ('0.33', '2.00', '0.0100')
    >>> hours_and_money(None)
    ('-', '-', '-')
    """
    if cost is None:
        return UNKNOWN, UNKNOWN, UNKNOWN
    return f"{float(cost.cpu_hours):.2f}", f"{float(cost.gib_hours):.2f}", f"{float(cost.money):.4f}"
