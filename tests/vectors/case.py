"""Vector files as typed cases, whichever of the two shapes a file has.

- ``{"family": F, "vectors": [{"id", "group", "input", "expected", "semantics"?, "tolerance"?}]}``
- ``{"groups": [{"id", "cases": [{"desc", "in", "expect", "op"?, "steps"?, ...}]}]}``: the family is the file's name up
  to ``_vectors``; a case is called ``GROUP/NUMBER DESC``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec


class VectorFileError(ValueError):
    """A file that has neither of the two shapes."""


@dataclass(frozen=True)
class Case:
    """One worked case. ``raw`` is the whole mapping as the file has it, for groups that say more than in and out."""

    family: str
    group: str
    id: str
    input: Any
    expected: Any
    raw: dict[str, Any]
    tolerance: float = 1e-6
    semantics: str = "both"


def load_cases(path: Path) -> list[Case]:
    """All cases of the file at ``path``. Raises ``VectorFileError``, ``OSError`` and ``msgspec.DecodeError``."""
    document = msgspec.json.decode(path.read_bytes())
    if not isinstance(document, dict):
        raise VectorFileError(f"{path}: expected a JSON object")
    if isinstance(document.get("vectors"), list):
        family = str(document.get("family") or _family_of(path))
        return [_flat(family, raw) for raw in document["vectors"]]
    if isinstance(document.get("groups"), list):
        family = str(document.get("family") or _family_of(path))
        return [
            _grouped(family, str(group["id"]), number, raw)
            for group in document["groups"]
            for number, raw in enumerate(group["cases"], start=1)
        ]
    raise VectorFileError(f'{path}: expected a key "vectors" or "groups" that holds a list')


def _family_of(path: Path) -> str:
    return path.stem.split("_vectors")[0]


def _flat(family: str, raw: dict[str, Any]) -> Case:
    return Case(
        family=family,
        group=str(raw["group"]),
        id=str(raw["id"]),
        input=raw.get("input"),
        expected=raw.get("expected"),
        raw=raw,
        tolerance=float(raw.get("tolerance", 1e-6)),
        semantics=str(raw.get("semantics", "both")),
    )


def _grouped(family: str, group: str, number: int, raw: dict[str, Any]) -> Case:
    return Case(
        family=family,
        group=group,
        id=f"{group}/{number} {raw.get('desc', '')}".strip(),
        input=raw.get("in"),
        expected=raw.get("expect"),
        raw=raw,
    )
