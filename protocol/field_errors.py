"""Uniform messages for invalid fields: ``resources.vCPUs: expected ..., got ...``.

A message begins with the path of the field from the root of the document, without a leading dot or dollar sign.
"""

from __future__ import annotations

import re
import reprlib
from typing import Final

import msgspec

SHOWN: Final = 80
"""Maximum characters of an invalid value that a message quotes."""

_MISSING: Final = re.compile(r"Object missing required field `(?P<field>[^`]*)`")
_QUANTITY: Final = ("`int | float | str`", 'a quantity such as 2, "250m" or "1Gi"')


_MAX_BITS: Final = 14_000
"""Python refuses to print integers of more than 4,300 digits (14,284 bits)."""


class _Brief(reprlib.Repr):
    def repr_int(self, number: int, level: int) -> str:
        return "a number with too many digits" if number.bit_length() > _MAX_BITS else super().repr_int(number, level)


_BRIEF: Final = _Brief()
_BRIEF.maxdict = _BRIEF.maxlist = _BRIEF.maxtuple = _BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = SHOWN


def shown(value: object) -> str:
    """The ``repr`` of ``value`` for an error message, truncated to ``SHOWN`` characters.

    >>> shown("a" * 100)[-6:], shown(10**5000)
    ('aaa...', 'a number with too many digits')
    """
    # Truncate before ``repr``, because a text from a client may be very long.
    text = repr(value[: SHOWN + 1]) if isinstance(value, str) else _BRIEF.repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def field_message(error: Exception) -> str:
    """The message of a decoder's error, or of one of our own checks, in this project's format.

    >>> field_message(ValueError("resources.vCPUs: expected more than zero"))
    'resources.vCPUs: expected more than zero'
    >>> field_message(RecursionError())
    'document: expected fewer levels of nesting'
    """
    if isinstance(error, RecursionError):
        return "document: expected fewer levels of nesting"
    if isinstance(error, UnicodeDecodeError):
        return f"document: expected UTF-8, got byte {error.object[error.start]:#04x}"
    if not isinstance(error, msgspec.MsgspecError):
        return str(error)
    # msgspec appends the path as " - at `$.a.b`".
    what, _, place = str(error).partition(" - at `$")
    path = place.removesuffix("`").removeprefix(".")
    missing = _MISSING.fullmatch(what)
    # msgspec names the object that lacks the field; report the path of the field instead.
    if missing:
        return f"{'.'.join(filter(None, (path, missing['field'])))}: expected a value, the field is missing"
    # msgspec describes a quantity by its Python types, which do not help the author of a document.
    what = what.replace(*_QUANTITY).replace("`", "").removeprefix("JSON is ")
    return f"{path or 'document'}: {what[:1].lower()}{what[1:]}"


def check(holds: bool, expected: str) -> None:
    """Raise ``ValueError`` with ``expected`` unless ``holds``.

    >>> check(1 < 0, "a number above one")
    Traceback (most recent call last):
    ValueError: expected a number above one
    """
    if not holds:
        raise ValueError(f"expected {expected}")
