"""Changes of a group that only write its status, and cause no reconcile."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.watches.kinds import FactChange
from scheduler_plugin.groups.controllers.watches import is_status_only


def group(uid: str = "u-1", generation: int = 1, **metadata: Any) -> Json:
    return {"metadata": {"uid": uid, "generation": generation, **metadata}}


@pytest.mark.parametrize(
    ("before", "after", "is_status"),
    [
        (group(), group(resourceVersion="2"), True),
        (group(), group(generation=2), False),
        (group(), group(deletionTimestamp="2026-01-01T00:00:00Z"), False),
        (group(), group(uid="u-2"), False),
        (None, group(), False),
        (group(), None, False),
    ],
    ids=["status", "spec", "deletion", "made-again", "new", "gone"],
)
def test_status_writes_are_told_from_changes(before: Json | None, after: Json | None, is_status: bool) -> None:
    assert is_status_only(FactChange(ObjectName("shop", "db"), before, after)) is is_status
