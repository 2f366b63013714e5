"""Every family that the project answers, by name. A new family is a module with a ``FAMILY`` and a name here.

A family is imported when a file asks for it: smoothing needs neither service to be answered.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Final

from tests.vectors.registry import Family

NAMES: Final = ("smoothing", "ranking", "neon", "tortoise")
"""The families that are answered, each by the module of that name beside this one."""

NOT_BUILT: Final = {
    "hvpa": "groups of VMs are not built yet: horizontal and vertical recommendations in tandem (S1)",
}
"""The families that are declined as a whole, with the reason."""


def families(names: Iterable[str]) -> dict[str, Family]:
    """Those of ``names`` that the project answers or declines."""
    wanted = sorted(set(names))
    answered = {name: import_module(f"tests.vectors.{name}").FAMILY for name in wanted if name in NAMES}
    return answered | {name: Family(name, {}, not_built=NOT_BUILT[name]) for name in wanted if name in NOT_BUILT}
