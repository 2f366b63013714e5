"""Arguments of a VM's pod that cannot be read say so."""

from __future__ import annotations

import base64
import zlib

import pytest

from protocol.vm_arguments import MAX_BYTES, ArgumentsError, decode_dump


def packed(plain: bytes) -> str:
    packing = zlib.compressobj(wbits=31)
    return base64.b64encode(packing.compress(plain) + packing.flush()).decode()


@pytest.mark.parametrize(
    ("dump", "why"),
    [
        ("not base64", "cannot decode"),
        (base64.b64encode(b"not packed").decode(), "cannot decode"),
        (packed(b"x" * (MAX_BYTES + 1)), "more than"),
        (base64.b64encode(base64.b64decode(packed(b"{}" * 99))[:-4]).decode(), "truncated"),
        (packed(b"[]"), "cannot decode"),
        (packed(b"{"), "cannot decode"),
    ],
)
def test_what_cannot_be_read_says_so(dump: str, why: str) -> None:
    with pytest.raises(ArgumentsError, match=why):
        decode_dump(dump)
