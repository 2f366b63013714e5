"""The arguments of a VM's pod: objects as gzipped JSON in base64, in NeonVM's format (pure)."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from protocol.kubernetes.objects import Json

SPEC_FLAG: Final = "-vmspec"
"""The flag before the spec from which the VM's pod was created."""

MAX_BYTES: Final = 4 * 1024**2
"""Maximum size of a spec: no API object is larger."""

_GZIP: Final = 31  # zlib's window of 2^15, plus 16 for a gzip header


class ArgumentsError(Exception):
    """An argument of the pod is malformed."""


def value_of(words: Sequence[str], flag: str) -> str:
    """The value of ``flag``, as the next word or after an equals sign, like in Go; empty if there is none.

    >>> value_of(["-a", "1", "-b=2"], "-a"), value_of(["-a", "1", "-b=2"], "-b"), value_of(["-a"], "-b")
    ('1', '2', '')
    """
    # The added empty word pairs with the last one, so that a flag without a value reads as empty.
    for word, following in pairwise([*words, ""]):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return ""


def encode_dump(spec: Mapping[str, object]) -> str:
    """Encode as gzipped JSON in base64; equal objects have equal texts.

    >>> decode_dump(encode_dump({"guest": {"cpus": {"min": 1}}}))
    {'guest': {'cpus': {'min': 1}}}
    """
    packing = zlib.compressobj(wbits=_GZIP)
    packed = packing.compress(msgspec.json.encode(spec, order="sorted")) + packing.flush()
    return base64.b64encode(packed).decode()


def decode_dump(dump: str) -> Json:
    """Decode the object in ``dump``. Raises ``ArgumentsError``.

    >>> decode_dump(encode_dump({"guest": {}}))
    {'guest': {}}
    """
    try:
        return msgspec.json.decode(unpacked(dump), type=dict[str, object])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ArgumentsError(f"cannot decode the spec: {error}") from error


def unpacked(dump: str) -> bytes:
    """Decode the JSON text in ``dump``. Raises ``ArgumentsError``.

    >>> unpacked(encode_dump({"guest": {}}))
    b'{"guest":{}}'
    """
    try:
        unpacking = zlib.decompressobj(wbits=_GZIP)
        # Limit the output: a small text may decompress to gigabytes.
        plain = unpacking.decompress(base64.b64decode(dump, validate=True), MAX_BYTES)
        if unpacking.unconsumed_tail:
            raise ArgumentsError(f"the spec has more than {MAX_BYTES} bytes")
        # A truncated stream alone raises nothing.
        if not unpacking.eof:
            raise ArgumentsError("cannot decode the spec: it is truncated")
        return plain
    except (zlib.error, ValueError) as error:
        raise ArgumentsError(f"cannot decode the spec: {error}") from error
