"""Changes as server-sent events. Pure.

Rules that hold here:

- An event's id is ``EPOCH-REVISION``. An id of another process is of another epoch, and its reader begins anew.
- A snapshot names the columns of each kind once; rows are arrays. Data is one line of JSON: no text can end an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from scheduler_plugin.dashboard.core.journal import Change, Journal
from scheduler_plugin.dashboard.core.rows import GroupRow, MoveRow, NodeRow, Row, StandingRow, VmRow
from scheduler_plugin.dashboard.core.sight import Sight

VM: Final = "vm"
NODE: Final = "node"
MOVE: Final = "move"
GROUP: Final = "group"
STANDING: Final = "standing"
KINDS: Final[Mapping[str, type[Row]]] = {
    VM: VmRow,
    NODE: NodeRow,
    MOVE: MoveRow,
    GROUP: GroupRow,
    STANDING: StandingRow,
}
COLUMNS: Final = {kind: row.__struct_fields__ for kind, row in KINDS.items()}
HEARTBEAT: Final = b"event: beat\ndata:\n\n"
"""An event and no comment: the page hears of it, and so of its absence."""
LONGEST_ID: Final = 64


def event_id(epoch: str, revision: int) -> str:
    """The id of an event."""
    return f"{epoch}-{revision}"


def revision_in(last_id: str, epoch: str) -> int | None:
    """The revision that a reader of this epoch has seen; None where its id says nothing to us.

    >>> revision_in("ab12-7", "ab12"), revision_in("zz-7", "ab12"), revision_in("ab12-x", "ab12")
    (7, None, None)
    """
    known, _, revision = last_id[:LONGEST_ID].rpartition("-")
    return int(revision) if known == epoch and revision.isascii() and revision.isdigit() else None


def next_frame(journal: Journal, epoch: str, sight: Sight, seen: int | None) -> tuple[bytes, int]:
    """What a reader gets that has ``seen`` a revision (None: nothing yet), and what it has seen then.

    Nothing (empty) where there is no news for it.
    """
    change = None if seen is None else journal.since(seen)
    if change is None:
        return _frame("snapshot", epoch, sight.change(journal.everything()), COLUMNS), journal.revision
    visible = sight.change(change)
    if not visible.rows and not visible.gone:
        return b"", change.revision
    return _frame("diff", epoch, visible, None), change.revision


def _frame(event: str, epoch: str, change: Change, columns: Mapping[str, tuple[str, ...]] | None) -> bytes:
    rows: dict[str, list[Row]] = {}
    for kind, row in change.rows:
        rows.setdefault(kind, []).append(row)
    gone: dict[str, list[str]] = {}
    for kind, key, _ in change.gone:
        gone.setdefault(kind, []).append(key)
    data: dict[str, object] = {"rows": rows, "gone": gone}
    if columns is not None:
        data["columns"] = columns
    body = msgspec.json.encode(data)
    return b"event: %s\nid: %s\ndata: %s\n\n" % (event.encode(), event_id(epoch, change.revision).encode(), body)
