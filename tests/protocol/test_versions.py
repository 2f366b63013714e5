"""Protocol versions that a party supports."""

import pytest

from protocol.versions import AGENT_SPEAKS, EVERY_VERSION, ProtocolVersion, VersionRange


def test_range_includes_ends() -> None:
    assert [version in VersionRange(1, 3) for version in range(5)] == [False, True, True, True, False]
    assert str(EVERY_VERSION) == "0 to 7"
    assert all(version in EVERY_VERSION for version in ProtocolVersion)
    assert AGENT_SPEAKS is ProtocolVersion.V2_1
    with pytest.raises(ValueError, match="expected lowest <= highest, got 2 and 1"):
        VersionRange(2, 1)
