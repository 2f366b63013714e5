"""The attack table as people read it; run as a module it is written into docs/security.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tests.deploy.manifests import ROOT
from tests.kubernetes.attacks.attempt import Attempt
from tests.kubernetes.attacks.attempts import ATTEMPTS
from tests.kubernetes.attacks.doors import DOORS, Door


def rows(found: Iterable[tuple[Attempt, str]]) -> Iterator[str]:
    """Markdown: who, what, and what refused it; all of one identity together."""
    yield "| Who | Tries | Refused by |"
    yield "|---|---|---|"
    by_who: dict[str, list[tuple[str, str]]] = {}
    for tried, end in found:
        by_who.setdefault(tried.who.name, []).append((tried.what, end or "passes"))
    for who, ends in by_who.items():
        for number, (what, end) in enumerate(ends):
            yield f"| {'' if number else who} | {what} | {end} |"


def door_rows(found: Iterable[tuple[Door, str]]) -> Iterator[str]:
    """Markdown: where, who, and what refused it."""
    yield "| Where | Who | Refused by |"
    yield "|---|---|---|"
    last = ""
    for door, end in found:
        where = "" if door.port == last else door.port
        last = door.port
        yield f"| {where} | {door.who} | {end or 'accepted'} |"


def tables() -> str:
    """Both tables, as they have to be."""
    attempts = rows((tried, tried.refused_by) for tried in ATTEMPTS)
    doors = door_rows((each, each.refused_by) for each in DOORS)
    return "\n".join([*attempts, "", *doors])


DOCUMENT: Final = ROOT / "docs" / "security.md"
_BEGIN: Final = "<!-- attacks -->\n"
_END: Final = "<!-- /attacks -->\n"


def with_tables(text: str) -> str:
    """A document with the tables between its marks."""
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}{tables()}\n{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text()))
