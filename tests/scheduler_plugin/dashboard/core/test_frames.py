from __future__ import annotations

from typing import Any

import msgspec

from protocol.kubernetes.access_reviews import Scope
from scheduler_plugin.dashboard.core.frames import COLUMNS, event_id, next_frame, revision_in
from scheduler_plugin.dashboard.core.journal import Journal
from scheduler_plugin.dashboard.core.rows import NodeRow, Row, StatusRow, VmRow
from scheduler_plugin.dashboard.core.visibility import ALL, VisibilityFilter

SHOP = VisibilityFilter(frozenset({Scope("shop")}))


def parsed(frame: bytes) -> tuple[str, str, Any]:
    event, ident, data = frame.decode().removesuffix("\n\n").split("\n")
    return event.removeprefix("event: "), ident.removeprefix("id: "), msgspec.json.decode(data.removeprefix("data: "))


def fleet() -> Journal:
    journal = Journal()
    journal.put("vm", VmRow("shop/a", "shop"))
    journal.put("vm", VmRow("bank/b", "bank", problem="a\n\nevent: snapshot"))
    journal.put("node", NodeRow("n1", "", stuck="bank/b has no other node"))
    journal.put("standing", StatusRow("scheduler", "", True, True, "s-1", 3, 1, "bank/b moves"))
    return journal


def test_new_reader_gets_full_snapshot() -> None:
    frame, seen = next_frame(fleet(), "e", ALL, None)
    event, ident, data = parsed(frame)
    assert (event, ident, seen) == ("snapshot", event_id("e", 4), 4)
    assert data["columns"] == {kind: list(names) for kind, names in COLUMNS.items()}
    assert {kind: len(rows) for kind, rows in data["rows"].items()} == {"vm": 2, "node": 1, "standing": 1}


def test_unlistable_namespace_does_not_exist() -> None:
    journal = fleet()
    frame, _ = next_frame(journal, "e", SHOP, None)
    assert b"bank" not in frame
    assert b"s-1" not in frame
    journal.remove("vm", "bank/b")
    assert next_frame(journal, "e", SHOP, 4) == (b"", 5)
    journal.remove("vm", "shop/a")
    assert parsed(next_frame(journal, "e", SHOP, 5)[0]) == (
        "diff",
        event_id("e", 6),
        {"rows": {}, "gone": {"vm": ["shop/a"]}},
    )


def test_ids_do_not_count_what_happens_elsewhere() -> None:
    """The difference of two ids once showed a reader of one namespace how much happened in all others."""
    ids = [event_id("secret", number) for number in range(300)]
    assert [revision_in(each, "secret") for each in ids] == list(range(300))
    assert {revision_in(each, "other") for each in ids} == {None}
    assert len({each[:4] for each in ids}) > 200
    assert len({each[-4:] for each in ids}) > 200
    for other in ("", "e-7", "zz", ids[0][:-2], f"{ids[0]}00", ids[0][:16] + ids[1][16:], "ü"):
        assert revision_in(other, "secret") is None


def test_unknown_kind_is_hidden() -> None:
    assert (SHOP.row(Row("secret", "")), ALL.row(Row("secret", ""))) == (None, Row("secret", ""))


def test_without_news_nothing_is_sent() -> None:
    assert next_frame(fleet(), "e", ALL, 4) == (b"", 4)


def test_readers_who_see_differently_have_different_words() -> None:
    tags = {
        visibility.tag
        for visibility in (
            ALL,
            SHOP,
            VisibilityFilter(frozenset({Scope("bank")})),
            VisibilityFilter(frozenset({Scope("shop"), Scope("bank")})),
        )
    }
    assert len(tags) == 4
    assert ALL.tag == ""
