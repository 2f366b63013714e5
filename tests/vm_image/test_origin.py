"""Packages of an image: Debian's newest, or those of a snapshot."""

from __future__ import annotations

import pytest

from vm_image.recipe import NEWEST, Origin


def test_packages_come_from_debian_or_its_snapshot() -> None:
    newest, then = NEWEST.sources, Origin("20260102T030405Z").sources
    assert newest.count("http://deb.debian.org/") == newest.count("signed-by=") == 3
    assert then.count("/20260102T030405Z bookworm") == then.count("check-valid-until=no") == 3
    assert newest.count("-security main") == 1


@pytest.mark.parametrize("snapshot", ["yesterday", "20260102", "20260102T030405Z ", "../20260102T030405Z"])
def test_invalid_snapshot_time_is_rejected(snapshot: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as 20260102T030405Z, got"):
        Origin(snapshot)
