"""Changes as server-sent events. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from scheduler_plugin.dashboard.core.journal import Change, Journal
from scheduler_plugin.dashboard.core.rows import GroupRow, MoveRow, NodeRow, Row, StandingRow, VmRow
from scheduler_plugin.dashboard.core.sight import VisibilityFilter

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
_SIZE: Final = 8
"""Bytes of a revision, and of its seal."""


def event_id(epoch: str, revision: int) -> str:
    """The id of an event: two of them do not say how much happened between them."""
    # A revision counts what happens in namespaces that its reader may not see, so it is encrypted; the seal makes ids
    # of another process or sight recognizable.
    number = revision.to_bytes(_SIZE, "big")
    seal = _keyed(epoch, b"seal", number)
    return (seal + _mixed(number, _keyed(epoch, b"body", seal))).hex()


def revision_in(last_id: str, epoch: str) -> int | None:
    """The revision that a reader of this epoch has seen; None if its id says nothing to us.

    >>> revision_in(event_id("ab12", 7), "ab12"), revision_in(event_id("zz", 7), "ab12"), revision_in("7", "ab12")
    (7, None, None)
    """
    try:
        # It comes from the browser: anything may be in it.
        sealed = bytes.fromhex(last_id[:LONGEST_ID])
    except ValueError:
        return None
    seal, body = sealed[:_SIZE], sealed[_SIZE:]
    # Shorter or longer ones would fail in the XOR below.
    if len(body) != _SIZE:
        return None
    number = _mixed(body, _keyed(epoch, b"body", seal))
    return int.from_bytes(number, "big") if _keyed(epoch, b"seal", number) == seal else None


def _keyed(epoch: str, use: bytes, text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=_SIZE, key=hashlib.sha256(epoch.encode()).digest(), person=use).digest()


def _mixed(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def next_frame(journal: Journal, epoch: str, sight: VisibilityFilter, seen: int | None) -> tuple[bytes, int]:
    """The next frame of a reader that has ``seen`` a revision (None: nothing yet), and the revision after it.

    Nothing (empty) if there is no news for it.
    """
    change = None if seen is None else journal.since(seen)
    if change is None:
        return _frame("snapshot", epoch, sight.change(journal.everything()), COLUMNS), journal.revision
    visible = sight.change(change)
    # The reader's revision moves on all the same, or it would look at these changes again.
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
    # Once in the snapshot: rows are arrays, which saves the names in each of them.
    if columns is not None:
        data["columns"] = columns
    body = msgspec.json.encode(data)
    # The data is one line of JSON, so no text of the cluster can end the event.
    return b"event: %s\nid: %s\ndata: %s\n\n" % (event.encode(), event_id(epoch, change.revision).encode(), body)
