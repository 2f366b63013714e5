"""The permits that an agent may hold, when it is unknown which of its messages is the newest.

An agent holds the answer to its newest message. What was answered less than ``SETTLE`` ago may be that answer, unless a
message is known to be newer. An older answer is not, once another message arrives: messages do not live that long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocol.units import ZERO, Instant, Resources, Seconds

SETTLE: Final = Seconds(30.0)
"""No message between agent and scheduler lives longer: both sides' time-outs are far below it."""

MOST_OUTSTANDING: Final = 8


@dataclass(slots=True)
class OutstandingPermits:
    """Recent answers; ``held`` is the maximum that the agent may hold because of any of them."""

    held: Resources = ZERO
    _recent: list[tuple[Instant, Resources]] = field(default_factory=list)

    def add(self, permit: Resources, now: Instant) -> None:
        """Another answer, to a message that may be older than those answered before."""
        # Whichever message is the newest, the agent holds no more than this.
        if self.held.within(permit):
            self.replace(permit, now)
            return
        # An older answer counts only if it grants more of something, and only as long as its message may be the
        # newest.
        recent = [(at, older) for at, older in self._recent if now - at < SETTLE and not older.within(permit)]
        recent.append((now, permit))
        # Merged upwards: more may stay reserved, never less.
        if len(recent) > MOST_OUTSTANDING:
            (_, first), (at, second), *rest = recent
            recent = [(at, first.at_least(second)), *rest]
        self._recent = recent
        self.held = permit
        for _, older in recent[:-1]:
            self.held = self.held.at_least(older)

    def cap(self, most: Resources) -> None:
        """Forget permits above ``most``: they were taken back."""
        self._recent = [(at, permit.at_most(most)) for at, permit in self._recent]
        self.held = self.held.at_most(most)

    def replace(self, permit: Resources, now: Instant) -> None:
        """The answer to a message that is certainly the newest, or one that grants all that the earlier ones did."""
        self._recent = [(now, permit)]
        self.held = permit
