"""The arguments of a VM's pod: what is written is read again, and what cannot be read says so."""

from __future__ import annotations

import base64
import zlib

import pytest

from protocol.vm_arguments import MOST_BYTES, ArgumentsError, decode_dump, encode_dump, unpacked


def packed(plain: bytes) -> str:
    packing = zlib.compressobj(wbits=31)
    return base64.b64encode(packing.compress(plain) + packing.flush()).decode()


def test_what_is_written_is_read_again() -> None:
    assert decode_dump(encode_dump({"a": [1, {"b": None}]})) == {"a": [1, {"b": None}]}


@pytest.mark.parametrize(
    ("dump", "why"),
    [
        ("not base64", "cannot be read"),
        (base64.b64encode(b"not packed").decode(), "cannot be read"),
        (packed(b"x" * (MOST_BYTES + 1)), "more than"),
        (base64.b64encode(base64.b64decode(packed(b"{}" * 99))[:-4]).decode(), "its end is missing"),
        (packed(b"[]"), "cannot be read"),
        (packed(b"{"), "cannot be read"),
    ],
)
def test_what_cannot_be_read_says_so(dump: str, why: str) -> None:
    with pytest.raises(ArgumentsError, match=why):
        decode_dump(dump)


def test_unpacked_is_the_text() -> None:
    assert unpacked(packed(b'{"a": 1}')) == b'{"a": 1}'
