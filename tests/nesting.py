"""Documents that nest too deeply for any decoder, on every version of Python."""

from __future__ import annotations

import sys
from typing import Final

OLD: Final = sys.version_info < (3, 12)
"""Until 3.11 what nests more deeply than calls may cannot be read; later what would not fit on the stack."""

LEVELS: Final = 3_000 if OLD else 300_000
"""Too many even for what is skipped."""

_READ: Final = 3_000 if OLD else 100_000
DEEP: Final = b'{"a":' * _READ + b"1" + b"}" * _READ
DEEP_LIST: Final = b"[" * _READ + b"]" * _READ
