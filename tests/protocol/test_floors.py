"""The floor annotation of a VM: encoding, decoding, and errors that name the field."""

from __future__ import annotations

import pytest

from protocol.floors import Floor, decode_floor, encode_floor
from protocol.units import Resources

FLOOR = Floor(Resources.parse("1500m", "6Gi"), 1767261600.0)


def test_what_was_written_is_read() -> None:
    assert decode_floor(encode_floor(FLOOR)) == FLOOR


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("much", "document: "),
        ('{"vCPUs":1,"mem":"1Gi"}', "until: expected a value, the field is missing"),
        ('{"vCPUs":1,"mem":"1Gi","until":"soon"}', "until: expected a time such as 2026-01-01T10:00:00Z, got 'soon'"),
        ('{"vCPUs":-1,"mem":"1Gi","until":"2026-01-01T10:00:00Z"}', "vCPUs: expected a quantity of zero or more"),
    ],
)
def test_what_cannot_be_is_refused_with_the_field(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        decode_floor(text)
    assert str(refused.value).startswith(message)
