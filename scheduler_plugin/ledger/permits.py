"""One VM's account: what its agent may hold, and what therefore stays reserved whatever message or write is lost.

Rules that hold here:

- ``reserved`` is the largest of: every permit that the agent may still hold, every permit that the API may hold,
  ``spec.use``, and what the guest has. It falls only when each of these has provably fallen.
- A smaller permit counts as held only once the message is known to be newer than the last raise: by its sequence, or
  because the raise is older than ``SETTLE``, in which time every message has arrived or died. A late "decrease"
  therefore never takes away what was granted after it was sent.
- An account opened on a persisted permit does not know what its predecessor answered last, so nothing falls for the
  first ``SETTLE``.
- A message that is not newer than the last one changes no amount; it is answered as things stand.
- The API may hold any permit between ``stored_low`` and ``stored_high``. Only what is within ``stored_low`` may be
  answered without waiting for a write.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.facts import VmFacts
from scheduler_plugin.ledger.outcomes import PersistPermit

if TYPE_CHECKING:
    from scheduler_plugin.ledger.claims import Claim

SETTLE: Final = Seconds(30.0)
"""No message between agent and scheduler lives longer: both sides' time-outs are far below it."""

LONG_AGO: Final = Instant(float("-inf"))


@dataclass(slots=True, eq=False)
class VmAccount:
    """What is known of one VM. ``facts`` is None while only its pods have been seen.

    ``permit`` is the last decision, ``held`` the most that the agent may hold because of any decision. ``heard_*`` is
    the last message, ``raised_*`` the one that last got more than the permit before it. ``is_unproven`` marks a VM that
    a rebuild found without a persisted permit: its agent's ``lastPermit`` is the only witness of what it may use.
    """

    facts: VmFacts | None = None
    claims: list[Claim] = field(default_factory=list)
    permit: Resources | None = None
    held: Resources = ZERO
    stored_low: Resources = ZERO
    stored_high: Resources = ZERO
    in_doubt: bool = False
    pending: PersistPermit | None = None
    heard: int | None = None
    heard_at: Instant = LONG_AGO
    raised: int | None = None
    raised_at: Instant = LONG_AGO
    opened_at: Instant = LONG_AGO
    is_unproven: bool = False
    is_deleted: bool = False
    reserved: Resources = ZERO

    @property
    def is_stored(self) -> bool:
        """Whether the API is known to hold exactly the last decision."""
        return self.permit is not None and self.stored_low == self.permit == self.stored_high

    @property
    def in_use(self) -> Resources:
        """What the VM has or is about to have without asking anybody."""
        if self.facts is None:
            return ZERO
        return self.facts.use if self.facts.actual is None else self.facts.use.at_least(self.facts.actual)

    def open(self, facts: VmFacts, now: Instant, *, at_rebuild: bool) -> None:
        """The first facts about this VM, or about a new VM of the same name."""
        self.facts, self.is_deleted = facts, False
        self.permit, self.held, self.pending, self.in_doubt = None, ZERO, None, False
        self.stored_low = self.stored_high = facts.permit or ZERO
        self.opened_at = now if facts.permit is not None or at_rebuild else LONG_AGO
        self.held = self.reserved_without_agent if self.opened_at == now else ZERO
        self.heard = self.raised = None
        self.heard_at = self.raised_at = LONG_AGO
        self.is_unproven = at_rebuild and facts.permit is None
        self._derive()

    @property
    def reserved_without_agent(self) -> Resources:
        """What the API's facts alone require: the rebuild rule."""
        return self.in_use.at_least(self.stored_high)

    def observe(self, facts: VmFacts) -> None:
        """Newer facts of the same VM; older ones than those known change nothing."""
        if self.facts is None or facts.version < self.facts.version:
            return
        self.facts, self.is_deleted = facts, False
        stored = facts.permit or ZERO
        if self.pending is None and not self.in_doubt:
            self.stored_low = self.stored_high = stored
        else:
            self.stored_low = self.stored_low.at_most(stored)
            self.stored_high = self.stored_high.at_least(stored)
        self._derive()

    def is_old(self, sequence: int | None, now: Instant) -> bool:
        """Whether a message is doubled, or was overtaken by one already answered."""
        if sequence is None or self.heard is None or now - self.heard_at >= SETTLE:
            return False
        return sequence <= self.heard

    def answer_old(self, sequence: int | None, now: Instant) -> None:
        """An overtaken message is answered all the same, and whoever hears it may hold the permit: counts as a raise."""
        if sequence != self.heard:
            self.raised, self.raised_at = None, now

    def answer(self, permit: Resources, sequence: int | None, now: Instant) -> None:
        """Records the decision for a message that is not old."""
        self.held = permit if self._is_newer_than_raise(sequence, now) else self.held.at_least(permit)
        if self.permit is None or not permit.within(self.permit):
            self.raised, self.raised_at = sequence, now
        self.permit = permit
        self.heard_at = now
        self.heard = sequence
        self.is_unproven = False
        self._derive()

    def _is_newer_than_raise(self, sequence: int | None, now: Instant) -> bool:
        if now - self.opened_at < SETTLE:
            return False
        if sequence is not None and self.raised is not None and sequence > self.raised:
            return True
        return now - self.raised_at >= SETTLE

    def write(self, revision: int) -> PersistPermit | None:
        """The write that the API needs now, if any; the same one again while its outcome is open.

        A new write gets ``revision``, which must be above every earlier one.
        """
        if self.permit is None or self.facts is None:
            return None
        if self.pending is not None and self.pending.permit == self.permit:
            return self.pending
        if self.is_stored:
            return None
        urgent = not self.permit.within(self.stored_low)
        self.pending = PersistPermit(self.facts.name, self.permit, revision, before_answer=urgent)
        self.stored_low = self.stored_low.at_most(self.permit)
        self.stored_high = self.stored_high.at_least(self.permit)
        self._derive()
        return self.pending

    def stored(self, revision: int, facts: VmFacts) -> None:
        """The API confirmed a write and returned ``facts``; only the newest write says what is stored now."""
        if self.facts is None or facts.uid != self.facts.uid:
            return
        if self.pending is not None and self.pending.revision == revision:
            self.pending, self.in_doubt = None, False
        self.observe(facts if facts.version >= self.facts.version else self.facts)

    def unsure(self, revision: int) -> None:
        """A write failed, or nobody knows: the next message orders it again."""
        if self.pending is not None and self.pending.revision == revision:
            self.pending, self.in_doubt = None, True

    def agent_gone(self) -> None:
        """The VM's last pod is gone and its agent with it: only what the API holds still counts."""
        self.permit, self.held, self.heard, self.raised = None, ZERO, None, None
        self.heard_at = self.raised_at = self.opened_at = LONG_AGO
        self._derive()

    def _derive(self) -> None:
        self.reserved = self.reserved_without_agent.at_least(self.held)
