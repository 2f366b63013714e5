"""The fields of a VM's account, the sums over them (what is held, stored and reserved), and news of the VM's object.

``permit_account`` says what they mean. An agent holds the answer to its newest message. What was answered less than
``SETTLE`` ago may be that answer, unless a message is known to be newer. An older answer is not, once another message
arrives: messages do not live that long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.facts import WITHOUT_GUEST, VmFacts
from scheduler_plugin.ledger.outcomes import PersistPermit

SETTLE: Final = Seconds(30.0)
"""No message between agent and scheduler lives longer: both sides' time-outs are far below it."""

MOST_OUTSTANDING: Final = 8

MOST_UNHEARD: Final = 10_000
"""How many messages of one process may be lost in a row. A process counts up by one from its clock in nanoseconds at
the start, so numbers that lie further apart are of two processes.
"""

LONG_AGO: Final = Instant(float("-inf"))

SILENT: Final = Seconds(45.0)
"""An agent that has not asked for this long wants nothing: three times the longest that ours wait between requests.

What a slower one was denied is forgotten between its messages, and known again with the next.
"""


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


class Offer(NamedTuple):
    """A permit that was decided at ``at`` and is answered once its write is confirmed."""

    permit: Resources
    at: Instant


@dataclass(slots=True, eq=False)
class PermitState:
    """Account of one VM. ``facts`` is None while only its pods have been seen.

    ``permit`` is the last decision. ``heard`` is the sequence of the last message, ``heard_from`` the UID of its
    pod, ``agent`` who sent it, ``turn_until`` when another agent may be answered, ``trusted_from`` when sequences
    prove something again. ``unnamed_since`` is the revision of the first write that names ``agent`` as a holder, 0
    once one of those is confirmed. ``orders`` are the writes by revision whose outcome is open, ``doubts`` the
    permits of those whose outcome is unknown until a version above ``doubted_version`` is seen (0: until a write is
    confirmed), ``refusal`` is why the last write did not store its permit (empty if it did).

    ``wake_asked_at`` is when the agent first asked for the permit to wake; None if it did not, or the VM is awake.
    ``wake_doubt`` is what the process before may have begun to write for a waking VM: once that lands its guest starts.
    ``off_since`` is when autoscaling was seen to be switched off, ``is_off`` is true once it has been for ``SETTLE``,
    ``is_quiet`` once no agent has been answered for as long.
    ``is_unproven`` marks a VM that a rebuild found without a persisted permit: its agent's ``lastPermit`` is the only
    witness of what it may use. ``is_unheard`` marks such a pod until its agent is heard: nothing is ever persisted for
    it, so it may be about to use anything that its node had free.
    """

    facts: VmFacts | None = None
    permit: Resources | None = None
    promises: OutstandingPermits = field(default_factory=OutstandingPermits)
    others: dict[str, OtherAgent] = field(default_factory=dict)
    offers: dict[int, Offer] = field(default_factory=dict)
    orders: dict[int, Resources] = field(default_factory=dict)
    doubts: tuple[Resources, ...] = ()
    doubted_version: int = 0
    stored_low: Resources = ZERO
    stored_high: Resources = ZERO
    pending: PersistPermit | None = None
    refusal: str = ""
    heard: int | None = None
    heard_from: str | None = None
    agent: str | None = None
    unnamed_since: int = 0
    heard_at: Instant = LONG_AGO
    trusted_from: Instant = LONG_AGO
    turn_until: Instant = LONG_AGO
    mended_at: Instant = LONG_AGO
    taken_back_at: Instant = LONG_AGO
    raised_at: Instant | None = None
    off_since: Instant | None = None
    wake_asked_at: Instant | None = None
    wake_doubt: Resources = ZERO
    is_off: bool = False
    is_quiet: bool = False
    is_unproven: bool = False
    is_unheard: bool = False
    is_deleted: bool = False
    reserved: Resources = ZERO

    @property
    def held(self) -> Resources:
        """The most that any agent may hold because it was answered."""
        answered = self.promises.held
        return Resources.most((answered, *(other.held for other in self.others.values()))) if self.others else answered

    @property
    def had(self) -> Resources:
        """Size that the VM has and its agents hold, whatever the object says."""
        return self.in_use.at_least(self.held)

    @property
    def is_stored(self) -> bool:
        """True if the API is known to hold exactly what the agent may hold; nothing has to be stored for a pod."""
        if self.permit is None:
            return False
        return self.stored_low == self.to_store == self.stored_high or (self.facts is not None and self.facts.is_pod)

    @property
    def in_use(self) -> Resources:
        """Size that the VM has, or is about to have without asking us: a grant of another scheduler is that, too."""
        if self.facts is None:
            return ZERO
        # A guest that shrinks still has more than its spec asks for; one that grows has less.
        size = self.facts.use.at_least(self.facts.actual or ZERO).at_least(self.facts.granted)
        return size if self.facts.wakes_with is None else size.at_least(self.wakes_by)

    @property
    def sleeps(self) -> bool:
        """True if the VM has an agent and sleeps, or is waking: whatever its agent asks for is to wake."""
        return self.facts is not None and self.facts.wakes_with is not None

    @property
    def wakes_by(self) -> Resources:
        """Part of the stored permit by which the guest may be waking already: it must not be lowered."""
        # The controller reads nothing else. In phase Asleep it starts no guest, and a write onto such a version of the
        # object cannot land once the phase is another.
        return ZERO if self.facts is None else self.facts.may_be_woken.at_most(self.stored_high)

    @property
    def to_store(self) -> Resources:
        """The permit that the object should name."""
        return self.held.at_least(self.wakes_by) if self.sleeps else self.held

    @property
    def has_agent(self) -> bool:
        """True if an agent may hold permits for the VM."""
        return self.facts is not None and self.facts.has_agent

    @property
    def may_be_used(self) -> Resources:
        """The most that the VM may come to use without another answer."""
        return self.had.at_least(self.stored_high)

    def _bound(self) -> None:
        high = (self.facts and self.facts.permit) or ZERO
        # A permit that cannot be read may be anything, so nothing is known to be stored.
        low = high if self.facts is None or self.facts.is_permit_known else ZERO
        # A write whose outcome is open may have landed or not: the stored permit lies between the least and the most
        # of them.
        for permit in (*self.orders.values(), *self.doubts):
            low, high = low.at_most(permit), high.at_least(permit)
        self.stored_low, self.stored_high = low, high

    def _settle(self) -> None:
        """Settle the reservation; once its permit is taken back, a disabled agent holds what the VM has."""
        if self.is_off and self.facts and not self.facts.unreadable and self.stored_high.within(self.in_use):
            # A guest that has shrunk since its agent was answered has less than the agent may order again.
            answered = ZERO if self.is_quiet or self.permit is None else self.permit
            self._cap(self.in_use.at_least(answered))
        self._derive()

    def _cap(self, most: Resources) -> None:
        """Cap what agents hold: an agent that has not heard that autoscaling is off cannot use what was taken back."""
        self.promises.cap(most)
        self.others = {
            agent: OtherAgent(other.sequence, other.held.at_most(most)) for agent, other in self.others.items()
        }
        self.offers, self.refusal, self.is_unproven = {}, "", False
        self.permit = self.permit and self.permit.at_most(most)

    def _derive(self) -> None:
        reserved = self.may_be_used.at_least(self.wake_doubt)
        # A permit is reserved before its write is sent: once stored, it may be answered at any time.
        for offer in self.offers.values():
            reserved = reserved.at_least(offer.permit)
        self.reserved = reserved

    # The VM's object, and what lapses with time ----------------------------------------------------------------------

    def open(self, facts: VmFacts, now: Instant, *, at_rebuild: bool) -> None:
        """The first facts about this VM. ``at_rebuild``: an agent may hold what a scheduler before this one granted."""
        self.facts, self.is_deleted = facts, False
        if at_rebuild and facts.permit is not None:
            self.doubts = (facts.permit.at_most(self.in_use),)  # a decrease of the process before may land yet
            self.doubted_version = facts.version
        self.wake_doubt = facts.may_be_woken if at_rebuild else ZERO
        self._bound()
        # The agent of a pod outlives its container, and the agent's permit does, too.
        may_have_agent = facts.has_agent and (facts.is_pod or facts.phase not in WITHOUT_GUEST)
        if facts.permit is not None or (at_rebuild and may_have_agent):
            self.promises.add(self.in_use.at_least(self.stored_high), now)
            # Messages that the process before has answered may still be under way.
            self.trusted_from = Instant(now + SETTLE)
            self._remember_holders(facts, now)
        # One that sleeps uses nothing before a permit is stored, whatever its agent holds.
        self.is_unproven = at_rebuild and facts.has_agent and facts.permit is None and not self.sleeps
        self.is_unheard = self.is_unproven and facts.is_pod
        self._note_opt_out(now)
        self._settle()

    def _remember_holders(self, facts: VmFacts, now: Instant) -> None:
        """Whoever the object names is answered first, and holds the permit until it is known to hold less."""
        if len(facts.holders) < 2:
            return
        self.heard_from, self.agent, *others = facts.holders
        # The agent that was answered last keeps its turn across a restart of the scheduler.
        self.turn_until = Instant(now + SILENT)
        for agent in others:
            self.others[agent] = OtherAgent(None, self.promises.held)

    def observe(self, facts: VmFacts) -> None:
        """Newer facts of the same VM; older ones than those known change nothing."""
        # The VM may still have whatever it had before its object became unreadable.
        if self.facts is not None and facts.unreadable:
            uid, version = self.facts.uid, facts.version or self.facts.version
            facts = replace(facts, use=facts.use.at_least(self.reserved), version=version, uid=uid)
        if self.facts is None or facts.version < self.facts.version:
            return
        # The open writes were for an older version of the object.
        self.wake_doubt = self.wake_doubt if facts.version == self.facts.version else ZERO
        if facts.version > self.doubted_version > 0:
            self.doubts = ()
        self.facts, self.is_deleted = facts, False
        if not self.sleeps:
            self.wake_asked_at = None
        if facts.has_agent:
            self.off_since, self.is_off = None, False
        self._bound()
        self._settle()

    def lapse(self, now: Instant) -> bool:
        """End what agents hold no longer. Returns True if that changes what is reserved, or whether it is measured.

        An agent of a VM that was opted out ``SETTLE`` ago holds nothing once its permit is taken back.
        """
        if self.has_agent and not (self.is_unproven or self.wake_doubt.any):
            return False
        before = self.reserved, self.is_unheard
        self.wake_doubt = self.wake_doubt if now < self.trusted_from else ZERO
        # Not heard of since a rebuild, and nothing was ever persisted: the agent holds nothing.
        if self.is_unproven and self.permit is None and now >= self.trusted_from:
            self.promises, self.is_unheard = OutstandingPermits(), False
        self._note_opt_out(now)
        self._settle()
        return (self.reserved, self.is_unheard) != before

    def _note_opt_out(self, now: Instant) -> None:
        if self.facts is not None and not self.facts.has_agent:
            self.off_since = now if self.off_since is None else self.off_since
            self.is_off = now - self.off_since >= SETTLE
            # An agent answered just before the opt-out may still order what it was permitted.
            self.is_quiet = now - self.heard_at >= SETTLE

    def learn(self, facts: VmFacts) -> None:
        """As ``observe``, with what was not seen on the API: a VM that was deleted is not back."""
        current, is_deleted = self.facts, self.is_deleted
        self.observe(facts if current is None or facts.version >= current.version else current)
        self.is_deleted = is_deleted

    def agent_gone(self) -> None:
        """The VM's last pod is gone and its agent with it: only what the API holds still counts."""
        self.permit, self.promises, self.heard, self.heard_from = None, OutstandingPermits(), None, None
        self.agent, self.others, self.offers, self.refusal = None, {}, {}, ""
        self.heard_at = self.trusted_from = self.turn_until = LONG_AGO
        self.is_unproven = self.is_unheard = False
        self._derive()
