"""Two parties speak the newest version that both understand, or none."""

import pytest

from protocol.versions import AGENT_SPEAKS, EVERY_VERSION, ProtocolVersion, VersionRange


@pytest.mark.parametrize(
    ("mine", "theirs", "shared"),
    [
        (VersionRange(1, 3), VersionRange(2, 5), 3),
        (VersionRange(1, 2), VersionRange(2, 2), 2),
        (VersionRange(1, 2), VersionRange(3, 4), None),
        (VersionRange(4, 4), EVERY_VERSION, 4),
    ],
)
def test_the_newest_shared_version_is_chosen(mine: VersionRange, theirs: VersionRange, shared: int | None) -> None:
    assert mine.latest_shared(theirs) == shared
    assert theirs.latest_shared(mine) == shared


def test_a_range_holds_both_its_ends_and_is_never_empty() -> None:
    assert [version in VersionRange(1, 3) for version in range(5)] == [False, True, True, True, False]
    assert str(EVERY_VERSION) == "0 to 7"
    assert all(version in EVERY_VERSION for version in ProtocolVersion)
    assert AGENT_SPEAKS is ProtocolVersion.V2_1
    with pytest.raises(ValueError, match="expected lowest <= highest, got 2 and 1"):
        VersionRange(2, 1)
