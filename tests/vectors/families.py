"""Every family that the project answers, by name. A new family is a module with a ``FAMILY`` and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.vectors import neon, ranking, smoothing
from tests.vectors.registry import Family

FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family for family in (smoothing.FAMILY, ranking.FAMILY, neon.FAMILY)
}
