"""A person's view of a table: the filter and the order of its rows (pure)."""

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
    """``words`` is the filter as typed: words in any cell, and fields: ``ns:sho`` if the field contains that,
    ``node=node-1`` if it is that.
    """

    columns: tuple[Column, ...]
    sorted_by: str
    descending: bool = False
    words: str = ""

    def shown(self, rows: Iterable[TableRow]) -> list[TableRow]:
        """The rows that pass the filter, sorted; equal ones by name."""
        tests = [_test(word) for word in self.words.lower().split()]
        passed = [row for row in rows if all(test(row) for test in tests)]
        # Sorting is stable: rows that are equal in the chosen column stay sorted by name, also in descending order.
        passed.sort(key=lambda row: order(self.columns[0].kind, row.name))
        at = next(index for index, column in enumerate(self.columns) if column.key == self.sorted_by)
        kind = self.columns[at].kind
        passed.sort(key=lambda row: order(kind, row.cells[at]), reverse=self.descending)
        return passed

    def next_column(self, shown: Sequence[Column], step: int) -> Self:
        """Sorted by the next column of those shown, or the one before: numbers begin with the greatest."""
        keys = [candidate.key for candidate in shown]
        # The sorted column may not fit on the screen any more; then the first one is next.
        at = keys.index(self.sorted_by) + step if self.sorted_by in keys else 0
        column = shown[at % len(shown)]
        # The greatest numbers are what a person looks for.
        return replace(self, sorted_by=column.key, descending=column.is_number)

    def reversed(self) -> Self:
        """The other way round."""
        return replace(self, descending=not self.descending)

    def filtered(self, words: str) -> Self:
        """With this filter."""
        return replace(self, words=words)


def _test(word: str) -> Callable[[TableRow], bool]:
    match = _FIELD.fullmatch(word)
    if match is None:
        return lambda row: any(word in cell.lower() for cell in row.cells)
    read, wanted = _FIELDS[match[1]], match[3]
    if match[2] == "=":
        return lambda row: wanted in read(row).lower().split()  # a VM that moves has two nodes
    return lambda row: wanted in read(row).lower()
