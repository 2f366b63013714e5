"""One input at a time to one target; a failure names the input, its target and how to make it again."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from time import process_time

from tests.fuzz.targets import LIMIT, TARGETS, Target


@dataclass(frozen=True, slots=True)
class Failure:
    """A forbidden outcome of an input."""

    target: str
    number: int
    what: str
    given: object

    def __str__(self) -> str:
        return f"{self.target}, input {self.number}: {self.what}\n  {self.given!r:.400}"


def failures(target: Target, seed: int, count: int) -> Iterable[Failure]:
    """Feeds ``count`` inputs to ``target``."""
    for number in range(count):
        given = target.make(Random(f"{seed}/{target.name}/{number}"))
        what = problem(target, given)
        if what is not None:
            yield Failure(target.name, number, what, given)


def problem(target: Target, given: object) -> str | None:
    """The problem with how ``target`` handles the input; None if there is none."""
    try:
        spent = _spent(target, given)
    except Exception as error:  # noqa: BLE001 - finding errors of any kind is the point
        return f"{type(error).__name__}: {error}"
    return f"cost {spent * 1000:.0f} ms of CPU" if spent > LIMIT else None


def _spent(target: Target, given: object) -> float:
    """CPU seconds of one feeding; the least of three where the first was over the limit, for noise only adds."""
    spent = _once(target, given)
    return min(spent, _once(target, given), _once(target, given)) if spent > LIMIT else spent


def _once(target: Target, given: object) -> float:
    began = process_time()
    with suppress(*target.errors):
        target.feed(given)
    return process_time() - began


def shares(inputs: int) -> list[tuple[Target, int]]:
    """The targets with their shares of ``inputs``, each at least one."""
    whole = sum(target.weight for target in TARGETS)
    return [(target, max(1, -(-inputs * target.weight // whole))) for target in TARGETS]
