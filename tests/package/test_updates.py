"""Renovate can keep all locks current: it needs their header, and each file to belong to one of its managers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.package.import_graph import ROOT

RENOVATE: dict[str, Any] = json.loads((ROOT / ".github/renovate.json").read_text())
DECISION = (ROOT / "docs/decisions/0002-libraries.md").read_text()
OPTIONS = {"--generate-hashes", "--python-version", "--extra", "--output-file"}
"""Options of uv that Renovate's manager takes, each with ``=``. It refuses files made with others."""


def files(pattern: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))


@pytest.mark.parametrize("name", files("requirements*.txt"))
def test_lock_is_updated_with_its_command(name: str) -> None:
    (pattern,) = RENOVATE["pip-compile"]["managerFilePatterns"]
    assert re.search(pattern.strip("/"), name)
    lock = (ROOT / name).read_text()
    command = lock.splitlines()[1].removeprefix("#    ")
    options = [word for word in command.split() if word.startswith("-")]
    assert command.startswith("uv pip compile ")
    assert command.endswith(f" --output-file={name} pyproject.toml")
    assert {option.partition("=")[0] for option in options} <= OPTIONS


@pytest.mark.parametrize("name", files("requirements*.txt"))
def test_lock_names_no_registry(name: str) -> None:
    assert "://" not in (ROOT / name).read_text()


def test_decision_has_the_command_of_the_lock() -> None:
    assert (ROOT / "requirements.txt").read_text().splitlines()[1].removeprefix("#    ") in DECISION


def test_actions_are_pinned_by_digest() -> None:
    """Renovate updates the digest with the comment that names its version."""
    uses = re.compile(r"^\s*(?:- )?uses: (.+)$", re.MULTILINE)
    found = [line for name in files(".github/workflows/*.yml") for line in uses.findall((ROOT / name).read_text())]
    assert [line for line in found if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", line)] == []
