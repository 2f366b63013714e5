"""An object as an argument of a program: JSON, compressed, in base64, as NeonVM writes it (pure)."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

from protocol.kubernetes.objects import Json

MOST_BYTES: Final = 4 * 1024**2
"""A specification is never larger than an object of the API may be."""

_GZIP: Final = 31


class ArgumentsError(Exception):
    """The pod was told something that makes no sense."""


def encode_dump(found: Mapping[str, object]) -> str:
    """JSON, compressed, in base64; equal objects give equal texts.

    >>> decode_dump(encode_dump({"guest": {"cpus": {"min": 1}}}))
    {'guest': {'cpus': {'min': 1}}}
    """
    packing = zlib.compressobj(wbits=_GZIP)
    packed = packing.compress(msgspec.json.encode(found, order="sorted")) + packing.flush()
    return base64.b64encode(packed).decode()


def decode_dump(dump: str) -> Json:
    """The object in ``dump``. Raises ``ArgumentsError``."""
    try:
        unpacking = zlib.decompressobj(wbits=_GZIP)
        plain = unpacking.decompress(base64.b64decode(dump, validate=True), MOST_BYTES)
        if unpacking.unconsumed_tail:
            raise ArgumentsError(f"a specification of more than {MOST_BYTES} bytes")
        if not unpacking.eof:
            raise ArgumentsError("a specification that cannot be read: its end is missing")
        return msgspec.json.decode(plain, type=dict[str, object])
    except (binascii.Error, zlib.error, msgspec.DecodeError, ValueError) as error:
        raise ArgumentsError(f"a specification that cannot be read: {error}") from error
