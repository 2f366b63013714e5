"""Reads vector files as typed cases, in either of two shapes.

- ``{"family": F, "vectors": [{"id", "group", "input", "expected", "semantics"?, "tolerance"?}]}``
- ``{"groups": [{"id", "cases": [{"desc", "in", "expect", "op"?, "steps"?, ...}]}]}``: the family is the file's name up
  to ``_vectors``; a case is called ``GROUP/NUMBER DESC``.

Keys that only document a case or a group are left out. All others must be read by what answers the case; of a group's
those are ``group.KEY`` of each of its cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.vectors.reading import TrackedMapping, tracked

_DOCUMENTATION: Final = {"id", "group", "desc", "source", "note", "semantics", "tolerance"}
_OF_GROUPS: Final = {"id", "cases", "origin", "rule", "units", "note", "source"}
_OF_FILES: Final = {"family", "semantics_key"}
SEMANTICS: Final = frozenset({"both", "seed", "upstream", "recommended"})
_NAMES: Final = {"in": "input", "expect": "expected"}


class VectorFileError(ValueError):
    """A file that has neither of the two shapes."""


@dataclass(frozen=True)
class Case:
    """One worked case. ``content`` holds ``input``, ``expected`` and other values of the group, by name. ``text`` is
    the description; some cases have nothing else.
    """

    family: str
    group: str
    id: str
    content: Mapping[str, Any]
    text: str = ""
    tolerance: float = 1e-6
    semantics: str = "both"
    _reads: TrackedMapping = field(default_factory=lambda: tracked({}), repr=False, compare=False)

    @property
    def input(self) -> Any:
        """The input; None if the text or the steps contain everything."""
        return self._reads.get("input")

    @property
    def expected(self) -> Any:
        """The expected result."""
        return self._reads.get("expected")

    @property
    def more(self) -> Mapping[str, Any]:
        """All other keys: ``op``, ``steps`` and so on."""
        return self._reads

    def unread(self) -> list[str]:
        """The dotted paths of all values that were not read since ``fresh``."""
        return self._reads.unread()

    def fresh(self) -> Case:
        """The same case, with nothing read yet. An input of null gives nothing that could be used."""
        given = {key: value for key, value in self.content.items() if (key, value) != ("input", None)}
        return replace(self, _reads=tracked(given))


def load_cases(path: Path) -> list[Case]:
    """All cases of the file at ``path``. Raises ``VectorFileError``, ``OSError`` and ``msgspec.DecodeError``."""
    document = msgspec.json.decode(path.read_bytes())
    if not isinstance(document, dict):
        raise VectorFileError(f"{path}: expected a JSON object")
    shape = next((each for each in ("vectors", "groups") if isinstance(document.get(each), list)), "")
    unused = [key for key in document if key not in {shape, *_OF_FILES} and not key.startswith("_")]
    if shape and unused:
        raise VectorFileError(f"{path}: does not use {', '.join(unused)}")
    family = str(document.get("family") or path.stem.split("_vectors")[0])
    if shape == "vectors":
        return [_case(family, str(raw["group"]), str(raw["id"]), raw) for raw in document["vectors"]]
    if shape == "groups":
        return [
            _case(
                family,
                str(group["id"]),
                f"{group['id']}/{number} {raw.get('desc', '')}".strip(),
                raw | _undocumented(group),
            )
            for group in document["groups"]
            for number, raw in enumerate(group["cases"], start=1)
        ]
    raise VectorFileError(f'{path}: expected a key "vectors" or "groups" that holds a list')


def _undocumented(group: dict[str, Any]) -> dict[str, Any]:
    """Fields of a group other than its cases, as parts of each case."""
    return {f"group.{key}": value for key, value in group.items() if key not in _OF_GROUPS}


def _case(family: str, group: str, name: str, raw: dict[str, Any]) -> Case:
    return Case(
        family=family,
        group=group,
        id=name,
        content={_name(key, raw): value for key, value in raw.items() if key not in _DOCUMENTATION},
        text=str(raw.get("desc", "")),
        tolerance=float(raw.get("tolerance", 1e-6)),
        semantics=str(raw.get("semantics", "both")),
    ).fresh()


def _name(key: str, raw: dict[str, Any]) -> str:
    """The long form of a key, unless the case has that too: then the short one is not used."""
    name = _NAMES.get(key, key)
    return key if name in raw else name
