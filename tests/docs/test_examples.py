"""Examples in docstrings hold."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("agent", "deploy", "protocol", "scheduler_plugin", "scripts", "vm_image")
SOURCES = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in SOURCES if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
