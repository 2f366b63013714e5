"""Every family that the project answers, by name. A new family is a module with a ``FAMILY`` and a name here.

A family is imported when a file asks for it: smoothing needs neither service to be answered.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Final

from tests.vectors.registry import Family

NAMES: Final = ("smoothing", "ranking", "neon", "hvpa", "tortoise")
"""The families that are answered, each by the module of that name beside this one."""


def families(names: Iterable[str]) -> dict[str, Family]:
    """Those of ``names`` that the project answers."""
    return {name: import_module(f"tests.vectors.{name}").FAMILY for name in sorted(set(names)) if name in NAMES}
