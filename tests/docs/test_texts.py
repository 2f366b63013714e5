"""Modules that hold the texts of a program: each text is used, and their examples hold."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from deploy.neonvm.texts import controller

ROOT = Path(__file__).parents[2]


def test_examples_hold() -> None:
    assert doctest.testmod(controller).failed == 0


@pytest.mark.parametrize(("package", "modules"), [("agent", "texts.py"), ("deploy/neonvm", "texts/*.py")])
def test_every_text_is_used(package: str, modules: str) -> None:
    code = "\n".join(path.read_text() for path in (ROOT / package).rglob("*.py"))
    names = [
        name
        for path in (ROOT / package).glob(modules)
        for name in re.findall(r"^([A-Z_0-9]+): Final", path.read_text(), re.MULTILINE)
    ]
    assert [name for name in names if len(re.findall(rf"\b{name}\b", code)) < 2] == []
