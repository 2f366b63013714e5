"""The family neon: the original system's cases that our protocol, ledger and agent answer, and those they decline.

A table per area stands beside this file (``neon_wire``, ``neon_ledger``, ...) and is merged here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.vectors import neon_ledger, neon_placement, neon_wire
from tests.vectors.registry import Answer, Check, Family

GROUPS: Final[Mapping[str, Check | Answer]] = {**neon_wire.GROUPS, **neon_ledger.GROUPS, **neon_placement.GROUPS}

DECLINED: Final[Mapping[str, str]] = {}

FAMILY: Final = Family("neon", groups=GROUPS, declined=DECLINED)
