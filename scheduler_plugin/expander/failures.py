"""Detects node groups that were chosen but got no nodes, by pods that are still pending in later calls (S2.8a)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from protocol.backoff import Backoff
from protocol.units import Instant, Seconds
from scheduler_plugin.expander import texts

MOST_OPEN_CHOICES = 1000
"""Maximum number of choices whose outcome is open; the oldest are dropped."""


_Span = Annotated[Seconds, msgspec.Meta(gt=0)]


class FailureRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the detection of failures (``grace``, ``remember``) and of their effect (``demote``, ``longest``)."""

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
    """Outcomes of choices, in memory only. Times are arguments and must not decrease."""

    def __init__(self, rules: FailureRules) -> None:
        self.rules = rules
        self._open: list[_Choice] = []
        self._groups: dict[str, _GroupState] = {}

    def learn_outcomes(self, pods: Collection[str], now: Instant) -> list[str]:
        """Learn outcomes of earlier choices from the pods of a new call; return a line for each failure."""
        learnt: list[str] = []
        still_open: list[_Choice] = []
        pending = set(pods)
        for choice in self._open:
            age = now - choice.at
            # Calls do not include pods whose nodes are being created. So if at least half of the pods are in a later
            # call, the choice failed.
            if age >= self.rules.grace and 2 * len(choice.pods & pending) >= len(choice.pods):
                learnt.append(self._failed(choice, now))
            # It succeeded if its pods were in no call for this long.
            elif age < self.rules.remember:
                still_open.append(choice)
            else:
                self._worked(choice)
        self._open = still_open
        return learnt

    def record_choice(self, groups: Sequence[str], pods: Collection[str], now: Instant) -> None:
        """Record the choice of ``groups``, which are tied if there are several, for ``pods``."""
        # Without pods the outcome could not be found out.
        if not pods:
            return
        for group in groups:
            # Even for groups that never failed, because it breaks later ties.
            self._of(group).chosen_at = now
        self._open = [*self._open, _Choice(now, tuple(groups), frozenset(pods))][-MOST_OPEN_CHOICES:]

    def is_demoted(self, group: str, now: Instant) -> bool:
        """Return True if ``group`` comes last because of failures."""
        state = self._groups.get(group)
        return state is not None and now < state.demoted_until

    def one_of(self, tied: Sequence[str], now: Instant) -> Sequence[str]:
        """Return ``tied``, or a single one of them if any is suspected to fail."""
        states = {group: self._groups.get(group, _GroupState()) for group in tied}
        # Leave the tie to the autoscaler's next expander.
        if not any(now < group.suspect_until for group in states.values()):
            return tied
        # A single group, so that a failure is its own: one without suspicion first, then the one chosen longest ago.
        return [min(tied, key=lambda group: (now < states[group].suspect_until, states[group].chosen_at))]

    def _of(self, group: str) -> _GroupState:
        """State of the group; a new one if the success of another choice has removed it."""
        return self._groups.setdefault(group, _GroupState())

    def _failed(self, choice: _Choice, now: Instant) -> str:
        # The autoscaler does not tell which of them it tried.
        if len(choice.groups) > 1:
            for name in choice.groups:
                self._of(name).suspect_until = Instant(now + self.rules.demote)
            return texts.ONE_FAILED.format(groups=", ".join(choice.groups))
        group = self._of(choice.groups[0])
        group.failures += 1
        # It doubles with each failure. Without jitter, because there are no other clients.
        span = Backoff(self.rules.demote, self.rules.longest, spread=0.0).delay(group.failures, 0.0)
        group.demoted_until = Instant(now + span)
        return texts.FAILED_AGAIN.format(group=choice.groups[0], failures=group.failures, span=span)

    def _worked(self, choice: _Choice) -> None:
        for name in choice.groups:
            # A success clears the state.
            self._groups.pop(name, None)
