"""One spelling for everything that is wrong with a field: ``resources.vCPUs: expected ..., got ...``.

Rules that hold here:

- A message begins with the path of the field from the top of the document, without a leading dot or dollar sign.
- A message never repeats more than ``SHOWN`` characters of what was found: the text may come from anybody.
"""

from __future__ import annotations

import re
from typing import Final

SHOWN: Final = 80
"""At most so many characters of a bad value are repeated in a message."""

QUANTITY_EXPECTED: Final = 'a quantity such as 2, "250m" or "1Gi"'

_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>.*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(?P<field>[^`]*)`$")


def shown(value: object) -> str:
    """``value`` as a reader of an error should see it: its ``repr``, cut to ``SHOWN`` characters."""
    text = repr(value[: SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def field_message(error: Exception) -> str:
    """What a decoder complained of, in the one spelling of this project."""
    found = _AT.match(str(error))
    assert found is not None, "the pattern matches every text"  # noqa: S101 - states what the pattern guarantees
    what, path = found["what"], (found["path"] or "").removeprefix("$").removeprefix(".")
    missing = _MISSING.match(what)
    if missing:
        return f"{'.'.join(filter(None, (path, missing['field'])))}: expected a value, the field is missing"
    what = what.replace("`int | float | str`", QUANTITY_EXPECTED).replace("`", "")
    what = what[:1].lower() + what[1:]
    return f"{path}: {what}" if path else what
