"""Texts of the programs that run VMs: each is used, and their examples hold."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from deploy.neonvm.texts import controller

FOLDER = Path(controller.__file__).parent


def test_examples_hold() -> None:
    assert doctest.testmod(controller).failed == 0


def test_every_text_is_used() -> None:
    code = "\n".join(path.read_text() for path in FOLDER.parent.rglob("*.py"))
    names = [
        (path.stem, name)
        for path in sorted(FOLDER.glob("*.py"))
        for name in re.findall(r"^([A-Z_]+): Final", path.read_text(), re.MULTILINE)
    ]
    assert [name for name in names if len(re.findall(rf"\b{name[1]}\b", code)) < 2] == []
