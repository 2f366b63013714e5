"""One VM's account: what its agent may hold, and what therefore stays reserved whatever message or write is lost.

Rules that hold here:

- ``reserved`` is the largest of: every permit that the agent may still hold, every permit that the API may hold,
  ``spec.use``, and what the guest has. It falls only when each of these has provably fallen.
- Promises are for agents that exist: permits count only while autoscaling is enabled for the VM, and are taken back
  from the API once its last pod is gone. A VM without an agent follows its object.
- A smaller permit counts as held only once the message is known to be newer than what was answered before: by its
  sequence, or by time (``promises``). So a late "decrease" never takes away what was granted after it was sent.
- An agent that is permitted less than it asked for and held goes on with the older permit until it hears of that; that
  it has heard is known once it asks for less.
- A message that is not newer than the last one changes no amount; it is answered as things stand. Only messages of one
  pod are compared: an agent in another pod of the VM is heard only once the VM runs there, and counts from elsewhere.
- Sequences prove nothing for ``SETTLE`` after the account was opened on what a predecessor has granted, and after one
  went back: then an unknown answer, or one to an unknown agent, may be the newest.
- What is persisted is the most that the agent may hold, not the last decision: a restarted scheduler must know it.
- The API may hold any permit between ``stored_low`` and ``stored_high``. Only what is within ``stored_low`` may be
  answered without waiting for a write.
- A permit that a rebuild found may yet be lowered by a write of the process before, which is still on its way. So it
  counts as stored only as far as the VM uses it, until a write of our own has made any older one impossible.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.outstanding_permits import SETTLE, OutstandingPermits
from scheduler_plugin.ledger.facts import WITHOUT_GUEST, VmFacts
from scheduler_plugin.ledger.outcomes import PersistPermit

LONG_AGO: Final = Instant(float("-inf"))

SILENT: Final = Seconds(45.0)
"""An agent that has not asked for so long wants nothing: three times the longest that ours wait before they ask again.

What a slower one was denied is forgotten between its messages, and known again with the next.
"""


@dataclass(slots=True, eq=False)
class PermitAccount:
    """What is known of one VM. ``facts`` is None while only its pods have been seen.

    ``permit`` is the last decision, ``promises`` are all that the agent may still hold. ``heard`` is the sequence of
    the last message, ``heard_from`` the UID of its pod, ``trusted_from`` when sequences prove something again.
    ``is_unproven`` marks a VM that a rebuild found without a persisted permit: its agent's ``lastPermit`` is the only
    witness of what it may use.
    """

    facts: VmFacts | None = None
    permit: Resources | None = None
    promises: OutstandingPermits = field(default_factory=OutstandingPermits)
    stored_low: Resources = ZERO
    stored_high: Resources = ZERO
    in_doubt: bool = False
    pending: PersistPermit | None = None
    heard: int | None = None
    heard_from: str | None = None
    heard_at: Instant = LONG_AGO
    trusted_from: Instant = LONG_AGO
    is_unproven: bool = False
    is_deleted: bool = False
    reserved: Resources = ZERO

    @property
    def is_stored(self) -> bool:
        """Whether the API is known to hold exactly what the agent may hold."""
        return self.permit is not None and self.stored_low == self.promises.held == self.stored_high

    @property
    def in_use(self) -> Resources:
        """What the VM has, or is about to have without asking us: what another scheduler granted is that, too."""
        if self.facts is None:
            return ZERO
        return self.facts.use.at_least(self.facts.actual or ZERO).at_least(self.facts.granted)

    @property
    def has_agent(self) -> bool:
        """Whether an agent may hold permits for the VM."""
        return self.facts is not None and self.facts.has_agent

    def is_silent(self, now: Instant) -> bool:
        """Whether an agent has not been heard of for so long that what it asked for is no wish any more."""
        return now - self.heard_at >= SILENT

    def open(self, facts: VmFacts, now: Instant, *, at_rebuild: bool) -> None:
        """The first facts about this VM. ``at_rebuild``: an agent may hold what a scheduler before this one granted."""
        self.facts, self.is_deleted = facts, False
        self.stored_low = self.stored_high = facts.permit or ZERO
        if at_rebuild and facts.permit is not None:
            self.stored_low, self.in_doubt = facts.permit.at_most(self.in_use), True
        may_have_agent = facts.has_agent and facts.phase not in WITHOUT_GUEST
        if facts.permit is not None or (at_rebuild and may_have_agent):
            self.promises.add(self.reserved_without_agent, now)
            self.trusted_from = Instant(now + SETTLE)
        self.is_unproven = at_rebuild and facts.has_agent and facts.permit is None
        self._derive()

    @property
    def reserved_without_agent(self) -> Resources:
        """What the API's facts alone require: the rebuild rule."""
        return self.in_use.at_least(self.stored_high) if self.has_agent else self.in_use

    @property
    def may_be_used(self) -> Resources:
        """The most that the VM may come to use without another answer."""
        return self.reserved_without_agent.at_least(self.permit or ZERO) if self.has_agent else self.in_use

    def observe(self, facts: VmFacts) -> None:
        """Newer facts of the same VM; older ones than those known change nothing."""
        if self.facts is not None and facts.unreadable:
            facts = self._at_most(facts, self.facts)
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

    def _at_most(self, facts: VmFacts, known: VmFacts) -> VmFacts:
        """An object that has become unreadable: its VM may still have whatever it had."""
        return replace(
            facts, use=facts.use.at_least(self.reserved), version=facts.version or known.version, uid=known.uid
        )

    def forget_version(self) -> None:
        """Facts of any version are newer from now on."""
        self.facts = self.facts and replace(self.facts, version=0)

    def lapse(self, now: Instant) -> bool:
        """An agent that has not been heard of since a rebuild, and to which nothing was ever persisted, holds nothing.

        Whether that changes what is reserved.
        """
        if not self.is_unproven or self.permit is not None or now < self.trusted_from:
            return False
        before = self.reserved
        self.promises = OutstandingPermits()
        self._derive()
        return self.reserved != before

    def is_old(self, pod: str, sequence: int | None, now: Instant) -> bool:
        """Whether a message from the pod with this UID is doubled, or was overtaken by one already answered."""
        if sequence is None or self.heard is None or now - self.heard_at >= SETTLE or pod != self.heard_from:
            return False
        return sequence <= self.heard

    def answer_old(self, permit: Resources, sequence: int | None, now: Instant) -> None:
        """Records the answer to an old message; an agent may hold it, unless the message is a duplicate."""
        if sequence != self.heard:
            self.promises.add(permit, now)
            self.trusted_from = Instant(now + SETTLE)
            self._derive()

    def answer(self, permit: Resources, asked: Resources, pod: str, sequence: int | None, now: Instant) -> None:
        """Records the decision for a message that is not old, from the pod with this UID."""
        is_newest = sequence is not None and self.heard is not None and sequence > self.heard
        held = self.promises.held
        may_hold = permit.at_least(asked.at_most(held))
        if is_newest and now >= self.trusted_from:
            self.promises.replace(may_hold, now)
        else:
            self.promises.add(may_hold, now)
        if self.heard is not None and not is_newest:
            self.trusted_from = Instant(now + SETTLE)
        self.permit, self.heard, self.heard_from, self.heard_at = permit, sequence, pod, now
        self.is_unproven = False
        if self.promises.held != held:
            self._derive()

    def write(self, revision: int) -> PersistPermit | None:
        """The write that the API needs now, if any; the same one again while its outcome is open.

        A new write gets ``revision``, which must be above every earlier one.
        """
        if self.permit is None or self.facts is None or self.is_stored or not self.has_agent:
            return None
        return self._order(self.facts, self.promises.held, revision, is_urgent=not self.permit.within(self.stored_low))

    def take_back(self, revision: int) -> PersistPermit | None:
        """The write that takes a permit back whose agent is gone, if the API may hold one above what the VM needs."""
        if self.facts is None or self.is_deleted or not self.has_agent or self.stored_high.within(self.in_use):
            return None
        return self._order(self.facts, self.in_use, revision, is_urgent=False)

    def _order(self, facts: VmFacts, permit: Resources, revision: int, *, is_urgent: bool) -> PersistPermit:
        if self.pending is not None and self.pending.permit == permit:
            revision = self.pending.revision
        self.pending = PersistPermit(facts.name, permit, revision, before_answer=is_urgent, uid=facts.uid)
        self.stored_low = self.stored_low.at_most(permit)
        self.stored_high = self.stored_high.at_least(permit)  # of what is reserved already
        return self.pending

    def stored(self, revision: int, facts: VmFacts) -> None:
        """The API confirmed a write and returned ``facts``; only the newest write says what is stored now.

        A VM that has been deleted since is not back.
        """
        if self.facts is None or facts.uid != self.facts.uid:
            return
        if self.pending is not None and self.pending.revision == revision:
            self.pending, self.in_doubt = None, False
        is_deleted = self.is_deleted
        self.observe(facts if facts.version >= self.facts.version else self.facts)
        self.is_deleted = is_deleted

    def unsure(self, revision: int) -> None:
        """A write failed, or its outcome is unknown: the next message orders it again."""
        if self.pending is not None and self.pending.revision == revision:
            self.pending, self.in_doubt = None, True

    def agent_gone(self) -> None:
        """The VM's last pod is gone and its agent with it: only what the API holds still counts."""
        self._forget_agent()
        self._derive()

    def _forget_agent(self) -> None:
        self.permit, self.promises, self.heard, self.heard_from = None, OutstandingPermits(), None, None
        self.heard_at = self.trusted_from = LONG_AGO
        self.is_unproven = False

    def _derive(self) -> None:
        needed = self.reserved_without_agent
        self.reserved = needed.at_least(self.promises.held) if self.has_agent else needed
