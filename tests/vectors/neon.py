"""The family neon: the original system's cases that our protocol, ledger and agent answer, and those they decline.

Add a table per area beside this file (``neon_wire.py``, ``neon_ledger.py``, ...) and merge it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.vectors.registry import Answer, Check, Family

GROUPS: Final[Mapping[str, Check | Answer]] = {}

DECLINED: Final[Mapping[str, str]] = {}

FAMILY: Final = Family("neon", groups=GROUPS, declined=DECLINED)
