"""Messages of a VM's agents, their order, and agents that wait for their turn."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.accounts.outstanding_permits import SETTLE

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
