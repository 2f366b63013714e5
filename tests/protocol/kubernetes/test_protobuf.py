"""Message classes made of tables: maps, repeated fields and messages in messages."""

from __future__ import annotations

from protocol.kubernetes.protobuf import message_classes


def test_protobuf_round_trip() -> None:
    tables = {
        "Inner": (("text", 1, "string"),),
        "Outer": (("named", 1, "map Inner"), ("many", 2, "many string"), ("one", 3, "Inner")),
    }
    outer = message_classes("story", tables, "proto3")["Outer"]
    written = outer(named={"a": {"text": "x"}}, many=["y", "z"], one={"text": "w"})
    read = outer.FromString(written.SerializeToString())
    assert read == written
    assert " ".join(str(read).split()) == 'named { key: "a" value { text: "x" } } many: "y" many: "z" one { text: "w" }'
