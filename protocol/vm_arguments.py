"""The arguments of a VM's pod: objects as JSON, compressed, in base64, as NeonVM writes them (pure)."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from protocol.kubernetes.objects import Json

SPEC_FLAG: Final = "-vmspec"
"""The flag in front of the spec with which the VM's pod was made."""

MOST_BYTES: Final = 4 * 1024**2
"""No object of the API is larger than this, so no specification is."""

_GZIP: Final = 31  # zlib's window of 2^15, plus 16 for a gzip header


class ArgumentsError(Exception):
    """An argument of the pod is malformed."""


def value_of(words: Sequence[str], flag: str) -> str:
    """The word after ``flag``, or after its equals sign as Go's flags allow; empty if there is none.

    >>> value_of(["-a", "1", "-b=2"], "-a"), value_of(["-a", "1", "-b=2"], "-b"), value_of(["-a"], "-b")
    ('1', '2', '')
    """
    # The empty word is paired with the last one, so that a flag without a value reads as empty.
    for word, following in pairwise([*words, ""]):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return ""


def encode_dump(found: Mapping[str, object]) -> str:
    """JSON, compressed, in base64; equal objects give equal texts.

    >>> decode_dump(encode_dump({"guest": {"cpus": {"min": 1}}}))
    {'guest': {'cpus': {'min': 1}}}
    """
    packing = zlib.compressobj(wbits=_GZIP)
    packed = packing.compress(msgspec.json.encode(found, order="sorted")) + packing.flush()
    return base64.b64encode(packed).decode()


def decode_dump(dump: str) -> Json:
    """The object in ``dump``. Raises ``ArgumentsError``.

    >>> decode_dump(encode_dump({"guest": {}}))
    {'guest': {}}
    """
    try:
        return msgspec.json.decode(unpacked(dump), type=dict[str, object])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ArgumentsError(f"a specification that cannot be read: {error}") from error


def unpacked(dump: str) -> bytes:
    """The JSON text in ``dump``. Raises ``ArgumentsError``.

    >>> unpacked(encode_dump({"guest": {}}))
    b'{"guest":{}}'
    """
    try:
        unpacking = zlib.decompressobj(wbits=_GZIP)
        # Limited while unpacking: a small text may stand for gigabytes.
        plain = unpacking.decompress(base64.b64decode(dump, validate=True), MOST_BYTES)
        if unpacking.unconsumed_tail:
            raise ArgumentsError(f"a specification of more than {MOST_BYTES} bytes")
        # A truncated stream raises nothing by itself.
        if not unpacking.eof:
            raise ArgumentsError("a specification that cannot be read: its end is missing")
        return plain
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ArgumentsError(f"a specification that cannot be read: {error}") from error
