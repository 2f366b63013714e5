from __future__ import annotations

from scheduler_plugin.groups import texts


def test_pods_that_differ_are_named() -> None:
    pods = ["db-0", "db-1", "db-2", "db-3"]
    assert [texts.not_resized(pods[:1], "no room"), texts.other_size(pods, 5)] == [
        "db-0 cannot be resized: no room",
        "4 of 5 pods have another size: db-0, db-1, db-2 and 1 more",
    ]
