"""What one user may see. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from zlib import crc32

import msgspec

from protocol.kubernetes.access_reviews import Scope
from scheduler_plugin.dashboard.core.journal import Change
from scheduler_plugin.dashboard.core.rows import NodeRow, Row, StatusRow, node_stated, row_scope


@dataclass(frozen=True, slots=True)
class VisibilityFilter:
    """The scopes that a user may read. A scope of all namespaces includes all scopes of its kind."""

    scopes: frozenset[Scope]

    @property
    def has_all(self) -> bool:
        """Return True if nothing is hidden."""
        return self.scopes >= EVERYTHING

    @property
    def has_all_vms(self) -> bool:
        """Return True if the user may list all VMs, which is required for cluster-wide data."""
        return Scope() in self.scopes

    @property
    def tag(self) -> str:
        """A short text that identifies the permissions.

        Event ids depend on it, so that a page gets a new snapshot if permissions change.
        """
        return "" if self.has_all else f".{crc32(repr(sorted(self.scopes)).encode()):08x}"

    def sees(self, scope: Scope) -> bool:
        """Return True if the user may see databases of that scope."""
        return not self.scopes.isdisjoint((scope, scope.everywhere))

    def row(self, row: Row) -> Row | None:
        """The row as the user may see it; None if hidden."""
        # Nothing of a hidden namespace is shown: no row, name or count.
        if row.namespace:
            return row if self.sees(row_scope(row.key, row.namespace)) else None
        if self.has_all_vms:
            return row
        if isinstance(row, NodeRow):
            # Sums reveal no names. The reasons why a node is stuck, or has no room to grow, may mention VMs.
            return node_stated(msgspec.structs.replace(row, stuck="", crowded=""))
        if isinstance(row, StatusRow):
            # Hide cluster-wide data.
            return msgspec.structs.replace(row, waiting=0, unreadable=0, idle="", leader="")
        return None

    def change(self, change: Change) -> Change:
        """The change as the user may see it."""
        if self.has_all:
            return change
        rows = [(kind, visible) for kind, row in change.rows if (visible := self.row(row)) is not None]
        gone = [
            (kind, key, namespace)
            for kind, key, namespace in change.gone
            if not namespace or self.sees(row_scope(key, namespace))
        ]
        return Change(change.revision, rows, gone)


EVERYTHING: Final = frozenset({Scope(), Scope(of_pods=True)})
ALL: Final = VisibilityFilter(EVERYTHING)
NOTHING: Final = VisibilityFilter(frozenset())
