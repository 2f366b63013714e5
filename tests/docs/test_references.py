"""Every reference in a docstring, comment or document can be found in this repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CAPABILITIES = ROOT / "docs" / "capabilities.md"
KINDS = (".py", ".md", ".yaml", ".yml", ".sh", ".bash", ".toml")
PLACES = ("agent", "deploy", "docs", "protocol", "scheduler_plugin", "scripts", "tests", "vm_image")
_ROW = re.compile(r"\b(S[0-4]\.[0-9]+|B\.[1-9][0-9]?)(?:([abc])\b)?(?![\w.]*\d)")
_RANGE = re.compile(r"\b(S[0-4]|B)\.([0-9]+) to (?:S[0-4]\.|B\.)([0-9]+)")
_DECISION = re.compile(r"\bdecisions? ([0-9]+)(?![.0-9])", re.IGNORECASE)
_DOCUMENT = re.compile(r"(?<![\w/])docs/[\w./-]+\.\w+")
_NOWHERE = re.compile(r"\(architecture, |\bfacts §|(?<= )\(facts: |\(issue\b|\bfindings\.md\b|\.\./shared\b")


@cache
def texts() -> dict[Path, str]:
    """All sources and documents, this test aside. They are read once."""
    found = [path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in KINDS]
    every = [*found, *ROOT.glob("*.md"), *ROOT.glob("*.yaml")]
    return {path: path.read_text() for path in every if path != Path(__file__)}


def lines(pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """Every place that the pattern is found, on one line."""
    for path, whole in texts().items():
        for found in pattern.finditer(whole):
            number = whole.count("\n", 0, found.start()) + 1
            yield f"{path.relative_to(ROOT)}:{number}: {found[0]}", found


@cache
def rows() -> dict[str, str]:
    """Every row of the capabilities by its number, as its line."""
    found: dict[str, str] = {}
    for line in CAPABILITIES.read_text().splitlines():
        cell = line.partition("|")[2].partition("|")[0].strip()
        if many := _RANGE.fullmatch(cell):
            found |= {f"{many[1]}.{number}": line for number in range(int(many[2]), int(many[3]) + 1)}
        elif _ROW.fullmatch(cell):
            found[cell] = line
    return found


def test_cited_capabilities_exist() -> None:
    known = rows()
    assert sorted({place for place, row in lines(_ROW) if row[1] not in known}) == []


def test_cited_decisions_exist() -> None:
    numbers = {int(path.name[:4]) for path in (ROOT / "docs" / "decisions").glob("*.md")}
    assert sorted({place for place, found in lines(_DECISION) if int(found[1]) not in numbers}) == []


def test_cited_documents_exist() -> None:
    assert sorted({place for place, found in lines(_DOCUMENT) if not (ROOT / found[0]).exists()}) == []


def test_references_stay_in_the_repository() -> None:
    assert sorted({place for place, _ in lines(_NOWHERE)}) == []


@pytest.mark.parametrize("row", ["S4.9", "S2.8", "S0.5", "S1.7", "B.16"])
def test_capability_is_found_by_number(row: str) -> None:
    assert row in rows()


def test_capabilities_name_module_and_test() -> None:
    built = {row: line for row, line in rows().items() if "| - | - |" not in line}
    missing = [row for row, line in built.items() if len(line.split("|")) != 6 or "`tests/" not in line.split("|")[4]]
    assert missing == []
    assert {"S4.9", "S2.8"} <= built.keys()
