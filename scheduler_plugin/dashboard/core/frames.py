"""Changes as server-sent events. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from scheduler_plugin.dashboard.core.journal import Change, Journal
from scheduler_plugin.dashboard.core.rows import GroupRow, MoveRow, NodeRow, Row, StatusRow, VmRow
from scheduler_plugin.dashboard.core.visibility import VisibilityFilter

VM: Final = "vm"
NODE: Final = "node"
MOVE: Final = "move"
GROUP: Final = "group"
STATUS: Final = "standing"  # on the wire
KINDS: Final[Mapping[str, type[Row]]] = {
    VM: VmRow,
    NODE: NodeRow,
    MOVE: MoveRow,
    GROUP: GroupRow,
    STATUS: StatusRow,
}
COLUMNS: Final = {kind: row.__struct_fields__ for kind, row in KINDS.items()}
HEARTBEAT: Final = b"event: beat\ndata:\n\n"
"""An event rather than a comment, so that pages see it, and notice when none comes."""
LONGEST_ID: Final = 64
_SIZE: Final = 8
"""Bytes of a revision, and of its MAC."""


def event_id(epoch: str, revision: int) -> str:
    """Id of an event, which does not reveal the revision."""
    # Revisions count changes in hidden namespaces too, so they are encrypted with the secret epoch. The MAC detects ids
    # of other processes and other permissions.
    number = revision.to_bytes(_SIZE, "big")
    seal = _keyed(epoch, b"seal", number)
    return (seal + _mixed(number, _keyed(epoch, b"body", seal))).hex()


def revision_in(last_id: str, epoch: str) -> int | None:
    """The revision in an event id of this epoch; None if the id is from another epoch.

    >>> revision_in(event_id("ab12", 7), "ab12"), revision_in(event_id("zz", 7), "ab12"), revision_in("7", "ab12")
    (7, None, None)
    """
    try:
        # Bounded, because it is user input.
        sealed = bytes.fromhex(last_id[:LONGEST_ID])
    except ValueError:
        return None
    seal, body = sealed[:_SIZE], sealed[_SIZE:]
    # The XOR below needs this length.
    if len(body) != _SIZE:
        return None
    number = _mixed(body, _keyed(epoch, b"body", seal))
    return int.from_bytes(number, "big") if _keyed(epoch, b"seal", number) == seal else None


def _keyed(epoch: str, use: bytes, text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=_SIZE, key=hashlib.sha256(epoch.encode()).digest(), person=use).digest()


def _mixed(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def next_frame(journal: Journal, epoch: str, visibility: VisibilityFilter, revision: int | None) -> tuple[bytes, int]:
    """The next frame of a page that has ``revision`` (None for a new page), and its new revision.

    The frame is empty if there is no visible change.
    """
    change = None if revision is None else journal.since(revision)
    if change is None:
        return _frame("snapshot", epoch, visibility.change(journal.everything()), COLUMNS), journal.revision
    visible = visibility.change(change)
    # Return the new revision nevertheless, so that these changes are not filtered again.
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
    # Column names are sent once, in the snapshot.
    if columns is not None:
        data["columns"] = columns
    body = msgspec.json.encode(data)
    # One line of JSON, so that no text can end the event.
    return b"event: %s\nid: %s\ndata: %s\n\n" % (event.encode(), event_id(epoch, change.revision).encode(), body)
