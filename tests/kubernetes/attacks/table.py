"""The attack table as people read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.kubernetes.attacks.attempt import Attempt
from tests.kubernetes.attacks.attempts import ATTEMPTS


def rows(found: Iterable[tuple[Attempt, str]]) -> Iterator[str]:
    """Markdown: who, what, and what refused it."""
    yield "| Who | Tries | Refused by |"
    yield "|---|---|---|"
    last = ""
    for tried, end in found:
        who = "" if tried.who.name == last else tried.who.name
        last = tried.who.name
        yield f"| {who} | {tried.what} | {end or 'passes'} |"


def table() -> str:
    """The whole table, as it has to be."""
    return "\n".join(rows((tried, tried.refused_by) for tried in ATTEMPTS))
