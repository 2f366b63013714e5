"""What a person wants to see of a table: which rows, in which order (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Self

from scripts.autoscale.top.columns import Column, TableRow, order

_FIELDS: Final[Mapping[str, Callable[[TableRow], str]]] = MappingProxyType(
    {
        "ns": lambda row: row.namespace,
        "namespace": lambda row: row.namespace,
        "node": lambda row: row.node,
        "state": lambda row: row.state,
    }
)
_FIELD: Final = re.compile(rf"({'|'.join(_FIELDS)})([:=])(.*)")


@dataclass(frozen=True, slots=True)
class View:
    """``words`` is the filter as typed: words that stand in any cell, and fields: ``ns:sho`` where it contains that,
    ``node=node-1`` where it is that.
    """

    columns: tuple[Column, ...]
    sorted_by: str
    descending: bool = False
    words: str = ""

    def shown(self, rows: Iterable[TableRow]) -> list[TableRow]:
        """The rows that pass the filter, sorted; equal ones by name."""
        tests = [_test(word) for word in self.words.lower().split()]
        passed = [row for row in rows if all(test(row) for test in tests)]
        passed.sort(key=lambda row: order(self.columns[0].kind, row.name))
        at = next(index for index, each in enumerate(self.columns) if each.key == self.sorted_by)
        kind = self.columns[at].kind
        passed.sort(key=lambda row: order(kind, row.cells[at]), reverse=self.descending)
        return passed

    def next_column(self, shown: Sequence[Column], step: int) -> Self:
        """Sorted by the next column of those shown, or the one before: numbers begin with the greatest."""
        keys = [each.key for each in shown]
        at = keys.index(self.sorted_by) + step if self.sorted_by in keys else 0
        found = shown[at % len(shown)]
        return replace(self, sorted_by=found.key, descending=found.is_number)

    def reversed(self) -> Self:
        """The other way round."""
        return replace(self, descending=not self.descending)

    def filtered(self, words: str) -> Self:
        """With this filter."""
        return replace(self, words=words)


def _test(word: str) -> Callable[[TableRow], bool]:
    found = _FIELD.fullmatch(word)
    if found is None:
        return lambda row: any(word in cell.lower() for cell in row.cells)
    read, wanted = _FIELDS[found[1]], found[3]
    if found[2] == "=":
        return lambda row: wanted in read(row).lower().split()  # a VM that moves has two nodes
    return lambda row: wanted in read(row).lower()
