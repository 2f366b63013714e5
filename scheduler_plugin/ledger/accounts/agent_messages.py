"""Messages of a VM's agents, their order, agents that wait for their turn, and the permits that were answered.

An agent holds the answer to its newest message. What was answered less than ``SETTLE`` ago may be that answer, unless a
message is known to be newer. An older answer is not, once another message arrives: messages do not live that long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from protocol.units import ZERO, Instant, Resources, Seconds

SETTLE: Final = Seconds(30.0)
"""No message between agent and scheduler lives longer: both sides' time-outs are far below it."""

MOST_OUTSTANDING: Final = 8

MOST_UNHEARD: Final = 10_000
"""How many messages of one process may be lost in a row. A process counts up by one from its clock in nanoseconds at
the start, so numbers that lie further apart are of two processes.
"""


class Message(msgspec.Struct, frozen=True, gc=False):
    """A request as the account sees it. ``pod`` is the UID of the VM's pod, ``agent`` tells who speaks for it."""

    pod: str
    agent: str
    sequence: int | None
    asked: Resources
    last_permit: Resources | None = None


class OtherAgent(NamedTuple):
    """An agent that is not answered now: the sequence of its last message, and what it may hold.

    Since ``since`` it has said that it holds ``says`` at most.
    """

    sequence: int | None
    held: Resources
    says: Resources = ZERO
    since: Instant | None = None

    def after(self, sequence: int | None, says: Resources, now: Instant) -> OtherAgent:
        """This agent after another message, which lowers ``held`` if it is the newest, or all older ones have died."""
        if follows(sequence, self.sequence):
            return OtherAgent(sequence, says)
        latest = sequence if self.sequence is None else self.sequence
        # A message that names more than is held proves it; one that names less may be a late one.
        if self.since is None or not says.within(self.held):
            return OtherAgent(latest, self.held.at_least(says), says, now)
        # All messages from before ``since`` have arrived or died, so the latest of them is among those heard.
        if now - self.since >= SETTLE:
            return OtherAgent(sequence, self.says.at_least(says))
        return OtherAgent(latest, self.held, self.says.at_least(says), self.since)


def follows(sequence: int | None, other: int | None) -> bool:
    """Return True if ``sequence`` was given out after ``other`` by the same process."""
    # Of two processes, the one with the lower numbers may be the later one: clocks are set back. So only a small step
    # up proves anything.
    return sequence is not None and other is not None and 0 < sequence - other <= MOST_UNHEARD


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
