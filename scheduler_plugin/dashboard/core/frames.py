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
"""An event, not a comment: pages see it, and notice when it stays away."""
LONGEST_ID: Final = 64
_SIZE: Final = 8
"""Bytes of a revision, and of its seal."""


def event_id(epoch: str, revision: int) -> str:
    """The id of an event, which does not reveal its revision."""
    # A revision also counts changes in namespaces that its reader may not see, so it is encrypted with the epoch, which
    # is secret. By the seal an id of another process or of other rights is recognized.
    number = revision.to_bytes(_SIZE, "big")
    seal = _keyed(epoch, b"seal", number)
    return (seal + _mixed(number, _keyed(epoch, b"body", seal))).hex()


def revision_in(last_id: str, epoch: str) -> int | None:
    """The revision that a reader of this epoch has seen; None if the id was not made for this epoch.

    >>> revision_in(event_id("ab12", 7), "ab12"), revision_in(event_id("zz", 7), "ab12"), revision_in("7", "ab12")
    (7, None, None)
    """
    try:
        # It comes from the browser, so it may be anything.
        sealed = bytes.fromhex(last_id[:LONGEST_ID])
    except ValueError:
        return None
    seal, body = sealed[:_SIZE], sealed[_SIZE:]
    # The XOR below fails for any other length.
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

    The frame is empty if there is no news for it.
    """
    change = None if seen is None else journal.since(seen)
    if change is None:
        return _frame("snapshot", epoch, sight.change(journal.everything()), COLUMNS), journal.revision
    visible = sight.change(change)
    # The reader's revision moves on all the same, or these changes would be filtered again each time.
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
    # Names are sent once, in the snapshot: rows are arrays without names.
    if columns is not None:
        data["columns"] = columns
    body = msgspec.json.encode(data)
    # JSON on one line, so no text from the cluster can end the event.
    return b"event: %s\nid: %s\ndata: %s\n\n" % (event.encode(), event_id(epoch, change.revision).encode(), body)
