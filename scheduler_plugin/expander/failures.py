"""Node groups that were chosen and got no nodes, detected by pods that come up again (S2.8a)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from protocol.backoff import Backoff
from protocol.units import Instant, Seconds
from scheduler_plugin.expander import texts

MOST_OPEN_CHOICES = 1000
"""Maximum number of choices with an open outcome; the oldest are dropped."""


_Span = Annotated[Seconds, msgspec.Meta(gt=0)]


class FailureRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings: how failures are detected, and how long they count."""

    grace: _Span = Seconds(5)
    remember: _Span = Seconds(1800)
    demote: _Span = Seconds(300)
    longest: _Span = Seconds(3600)


@dataclass(frozen=True, slots=True)
class _Choice:
    at: Instant
    groups: tuple[str, ...]
    pods: frozenset[str]


@dataclass(slots=True)
class _GroupState:
    failures: int = 0
    demoted_until: Instant = Instant(float("-inf"))
    suspect_until: Instant = Instant(float("-inf"))
    chosen_at: Instant = Instant(float("-inf"))


class Failures:
    """In memory only. Times are arguments and never go back."""

    def __init__(self, rules: FailureRules) -> None:
        self.rules = rules
        self._open: list[_Choice] = []
        self._groups: dict[str, _GroupState] = {}

    def asked(self, pods: Collection[str], now: Instant) -> list[str]:
        """Learn outcomes from the pods of a new call; return a line for each."""
        learnt: list[str] = []
        still_open: list[_Choice] = []
        asked_again = set(pods)
        for choice in self._open:
            age = now - choice.at
            # The autoscaler does not ask again for pods whose nodes are coming. So if at least half of the pods come up
            # again, the choice failed.
            if age >= self.rules.grace and 2 * len(choice.pods & asked_again) >= len(choice.pods):
                learnt.append(self._failed(choice, now))
            # Success: the pods did not come up for this long.
            elif age < self.rules.remember:
                still_open.append(choice)
            else:
                self._worked(choice)
        self._open = still_open
        return learnt

    def answered(self, groups: Sequence[str], pods: Collection[str], now: Instant) -> None:
        """Record the choice of ``groups`` (tied, if several) for ``pods``."""
        # Without pods the outcome would never be known.
        if not pods:
            return
        for group in groups:
            # Also for groups that never failed: it breaks later ties.
            self._of(group).chosen_at = now
        self._open = [*self._open, _Choice(now, tuple(groups), frozenset(pods))][-MOST_OPEN_CHOICES:]

    def demoted(self, group: str, now: Instant) -> bool:
        """Return True if ``group`` should come last now."""
        state = self._groups.get(group)
        return state is not None and now < state.demoted_until

    def one_of(self, tied: Sequence[str], now: Instant) -> Sequence[str]:
        """``tied`` unchanged, or a single group if one of them is suspect."""
        states = {group: self._groups.get(group, _GroupState()) for group in tied}
        # The autoscaler's next expander breaks the tie.
        if not any(now < group.suspect_until for group in states.values()):
            return tied
        # A single group, so that its failure is certain: an unsuspected one first, then the one chosen longest ago.
        return [min(tied, key=lambda group: (now < states[group].suspect_until, states[group].chosen_at))]

    def _of(self, group: str) -> _GroupState:
        """State of the group; a success of another choice may have removed it."""
        return self._groups.setdefault(group, _GroupState())

    def _failed(self, choice: _Choice, now: Instant) -> str:
        # The autoscaler does not say which of them it tried.
        if len(choice.groups) > 1:
            for name in choice.groups:
                self._of(name).suspect_until = Instant(now + self.rules.demote)
            return texts.ONE_FAILED.format(groups=", ".join(choice.groups))
        group = self._of(choice.groups[0])
        group.failures += 1
        # Doubles per failure. No jitter, because nobody else retries at the same time.
        span = Backoff(self.rules.demote, self.rules.longest, spread=0.0).delay(group.failures, 0.0)
        group.demoted_until = Instant(now + span)
        return texts.FAILED_AGAIN.format(group=choice.groups[0], failures=group.failures, span=span)

    def _worked(self, choice: _Choice) -> None:
        for name in choice.groups:
            # Success clears everything.
            self._groups.pop(name, None)
