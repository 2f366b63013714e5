"""The rights of one reader. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from zlib import crc32

import msgspec

from scheduler_plugin.dashboard.core.journal import Change
from scheduler_plugin.dashboard.core.rows import NodeRow, Row, StandingRow, node_stated


@dataclass(frozen=True, slots=True)
class VisibilityFilter:
    """The namespaces that a reader may list; None: all of them."""

    namespaces: frozenset[str] | None = None

    @property
    def tag(self) -> str:
        """A short text for these rights. Event ids depend on it: a reader whose rights change gets a new snapshot."""
        if self.namespaces is None:
            return ""
        return f".{crc32(' '.join(sorted(self.namespaces)).encode()):08x}"

    def sees(self, namespace: str) -> bool:
        """Return True if that namespace exists for the reader."""
        return self.namespaces is None or namespace in self.namespaces

    def row(self, row: Row) -> Row | None:
        """The row as the reader sees it; None if it does not."""
        # A namespace that the reader may not list does not exist for it: no row, name or count.
        if row.namespace:
            return row if self.sees(row.namespace) else None
        if self.namespaces is None:
            return row
        if isinstance(row, NodeRow):
            # The sums stay, as they name nothing. The reason why a node is stuck may name VMs.
            return node_stated(msgspec.structs.replace(row, stuck=""))
        if isinstance(row, StandingRow):
            # These are about the whole cluster.
            return msgspec.structs.replace(row, waiting=0, unreadable=0, idle="", leader="")
        return None

    def change(self, change: Change) -> Change:
        """The change as the reader sees it."""
        if self.namespaces is None:
            return change
        rows = [(kind, visible) for kind, row in change.rows if (visible := self.row(row)) is not None]
        # The last part is the namespace.
        gone = [removed for removed in change.gone if not removed[2] or self.sees(removed[2])]
        return Change(change.revision, rows, gone)


ALL: Final = VisibilityFilter()
NOTHING: Final = VisibilityFilter(frozenset())
