"""Memory of node groups that were chosen and brought no nodes, as shown by pods that come up again (S2.8a)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from protocol.backoff import Backoff
from protocol.units import Instant, Seconds
from scheduler_plugin.expander import texts

MOST_OPEN_CHOICES = 1000
"""Choices whose outcome is still open; beyond this the oldest is forgotten."""


_Span = Annotated[Seconds, msgspec.Meta(gt=0)]


class FailureRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules by which failures are recognised, and how long they count, as the settings give them."""

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
class _Group:
    failures: int = 0
    demoted_until: Instant = Instant(float("-inf"))
    suspect_until: Instant = Instant(float("-inf"))
    chosen_at: Instant = Instant(float("-inf"))


class Failures:
    """The memory of one expander. Every call takes the present moment; moments never go back."""

    def __init__(self, rules: FailureRules) -> None:
        self.rules = rules
        self._open: list[_Choice] = []
        self._groups: dict[str, _Group] = {}

    def asked(self, pods: Collection[str], now: Instant) -> list[str]:
        """Learns from the pods of a new question; returns what was learnt, a line each."""
        learnt: list[str] = []
        still_open: list[_Choice] = []
        asked_again = set(pods)
        for choice in self._open:
            age = now - choice.at
            # The autoscaler counts nodes that are on their way and does not ask for their pods again. So if at least
            # half of the pods come up again, the choice failed.
            if age >= self.rules.grace and 2 * len(choice.pods & asked_again) >= len(choice.pods):
                learnt.append(self._failed(choice, now))
            # No question about the pods for this long is success.
            elif age < self.rules.remember:
                still_open.append(choice)
            else:
                self._worked(choice)
        self._open = still_open
        return learnt

    def answered(self, groups: Sequence[str], pods: Collection[str], now: Instant) -> None:
        """Remembers that ``groups`` (tied, if several) were named for ``pods``."""
        # Without pods nothing can come up again, so the outcome would never be known.
        if not pods:
            return
        for group in groups:
            # Also for groups that have never failed: it breaks later ties.
            self._of(group).chosen_at = now
        self._open = [*self._open, _Choice(now, tuple(groups), frozenset(pods))][-MOST_OPEN_CHOICES:]

    def demoted(self, group: str, now: Instant) -> bool:
        """Return True if ``group`` should come after every other at this moment."""
        state = self._groups.get(group)
        return state is not None and now < state.demoted_until

    def one_of(self, tied: Sequence[str], now: Instant) -> Sequence[str]:
        """``tied`` as it is, or one group of it if there is a suspect among them."""
        states = {group: self._groups.get(group, _Group()) for group in tied}
        # Without a suspect the autoscaler's own next expander breaks the tie.
        if not any(now < group.suspect_until for group in states.values()):
            return tied
        # One group only, so that the next failure is clearly its own: preferably an unsuspected one, and of several the
        # one that was named longest ago.
        return [min(tied, key=lambda group: (now < states[group].suspect_until, states[group].chosen_at))]

    def _of(self, group: str) -> _Group:
        """The memory of the group; a success of another choice may have cleared it meanwhile."""
        return self._groups.setdefault(group, _Group())

    def _failed(self, choice: _Choice, now: Instant) -> str:
        # The autoscaler tried one of them and does not say which.
        if len(choice.groups) > 1:
            for name in choice.groups:
                self._of(name).suspect_until = Instant(now + self.rules.demote)
            return texts.ONE_FAILED.format(groups=", ".join(choice.groups))
        group = self._of(choice.groups[0])
        group.failures += 1
        # Twice as long for each further failure in a row. No spread, since nobody else retries at the same time.
        span = Backoff(self.rules.demote, self.rules.longest, spread=0.0).delay(group.failures, 0.0)
        group.demoted_until = Instant(now + span)
        return texts.FAILED_AGAIN.format(group=choice.groups[0], failures=group.failures, span=span)

    def _worked(self, choice: _Choice) -> None:
        for name in choice.groups:
            # A success forgives everything, suspicion included.
            self._groups.pop(name, None)
