"""A bill as rows for tables and CSV, and as JSON. Here numbers are rounded, and nowhere before.

Rules that hold here:

- Money has six decimals and hours have six in what machines read; people see fewer.
- A cell that a spreadsheet would take for a formula is text.
"""

from __future__ import annotations

import csv
import io
from fractions import Fraction
from typing import Final

from scheduler_plugin.history.costs.bills import Bill, Cost, Line

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
)
_DECIMALS: Final = 6
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def figures(line: Line) -> dict[str, float]:
    """The numbers of a line by their columns."""
    costs = (line.reserved, line.used, line.at_most, line.at_high)
    hours = [number for cost in costs for number in (cost.cpu_hours, cost.gib_hours)]
    money = [cost.money for cost in costs]
    others = [line.saved, line.saved_of_high, line.known, line.unknown, line.use_known]
    return dict(zip(COLUMNS[1:], map(rounded, (*hours, *money, *others)), strict=True))


def rounded(number: Fraction) -> float:
    """To six decimals.

    >>> rounded(Fraction(1, 3))
    0.333333
    """
    return float(round(number, _DECIMALS))


def document(found: Bill, by: str) -> dict[str, object]:
    """The bill as JSON, the dearest line first."""
    return {
        "since": found.period.since,
        "until": found.period.until,
        "by": by,
        "lines": [{"name": name, **figures(line)} for name, line in ranked(found)],
        "total": figures(found.total),
        "nodesAtReferencePrice": list(found.unpriced),
    }


def ranked(found: Bill) -> list[tuple[str, Line]]:
    """The lines, the dearest first."""
    return sorted(found.lines.items(), key=lambda each: (-each[1].reserved.money, each[0]))


def as_csv(found: Bill) -> str:
    """The lines and the total, with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name, line in (*ranked(found), ("TOTAL", found.total)):
        writer.writerow((plain(name), *figures(line).values()))
    return text.getvalue()


def plain(cell: str) -> str:
    """A text that no spreadsheet takes for a formula.

    >>> plain("=1+1"), plain("db")
    ("'=1+1", 'db')
    """
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def hours_and_money(cost: Cost) -> tuple[str, str, str]:
    """For people: vCPU-hours, GiB-hours and money.

    >>> hours_and_money(Cost(Fraction(1, 3), Fraction(2), Fraction(1, 100), Fraction(0)))
    ('0.33', '2.00', '0.0100')
    """
    return f"{float(cost.cpu_hours):.2f}", f"{float(cost.gib_hours):.2f}", f"{float(cost.money):.4f}"
