"""Modules that hold the texts of a program: each text is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("package", "modules"), [("agent", "texts.py"), ("deploy/neonvm", "texts/*.py")])
def test_every_text_is_used(package: str, modules: str) -> None:
    code = "\n".join(path.read_text() for path in (ROOT / package).rglob("*.py"))
    names = [
        name
        for path in (ROOT / package).glob(modules)
        for name in re.findall(r"^([A-Z_0-9]+): Final", path.read_text(), re.MULTILINE)
    ]
    assert [name for name in names if len(re.findall(rf"\b{name}\b", code)) < 2] == []
