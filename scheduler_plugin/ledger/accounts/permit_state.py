"""Fields of a VM's account, the sums over them (held, stored, reserved), and updates from the VM's object.

See ``permit_account`` for the terms. An agent holds the response to its newest message. Any response of the last
``SETTLE`` may be that one, unless a message is known to be newer. Older responses are not, once another message
arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.facts import WITHOUT_GUEST, VmFacts
from scheduler_plugin.ledger.outcomes import PersistPermit

SETTLE: Final = Seconds(30.0)
"""Longest life of a message between agent and scheduler; timeouts on both sides are far shorter."""

MOST_OUTSTANDING: Final = 8

MOST_UNHEARD: Final = 10_000
"""Messages of one process that may be lost in a row. A process counts up by one from its clock in nanoseconds at start,
so sequences further apart belong to two processes.
"""

LONG_AGO: Final = Instant(float("-inf"))

SILENT: Final = Seconds(45.0)
"""An agent silent for this long wants nothing: three times the longest interval between requests of our agents.

For a slower agent, a denial is forgotten between its requests.
"""


class OtherAgent(NamedTuple):
    """An agent that is refused now: its last sequence, and what it may hold.

    Since ``since`` it has reported at most ``says``.
    """

    sequence: int | None
    maximum: Resources
    says: Resources = ZERO
    since: Instant | None = None

    def after(self, sequence: int | None, says: Resources, now: Instant) -> OtherAgent:
        """This agent after another message; lowers ``maximum`` if it is the newest or all older ones have expired."""
        if follows(sequence, self.sequence):
            return OtherAgent(sequence, says)
        latest = sequence if self.sequence is None else self.sequence
        # A report above ``maximum`` is proof; one below it may come from a late message.
        if self.since is None or not says.within(self.maximum):
            return OtherAgent(latest, self.maximum.at_least(says), says, now)
        # All messages from before ``since`` have arrived or expired, so the newest one is included.
        if now - self.since >= SETTLE:
            return OtherAgent(sequence, self.says.at_least(says))
        return OtherAgent(latest, self.maximum, self.says.at_least(says), self.since)


def follows(sequence: int | None, other: int | None) -> bool:
    """Return True if ``sequence`` was given out after ``other`` by the same process."""
    # Clocks can be set back, so the process with lower sequences may be the newer one. Only a small step up is proof.
    return sequence is not None and other is not None and 0 < sequence - other <= MOST_UNHEARD


@dataclass(slots=True)
class OutstandingPermits:
    """Recent responses; ``maximum`` is the maximum that the agent may hold because of any of them."""

    maximum: Resources = ZERO
    _recent: list[tuple[Instant, Resources]] = field(default_factory=list)

    def add(self, permit: Resources, now: Instant) -> None:
        """Add a response to a message that may be older than those answered before."""
        # The agent holds at most this, whichever message is the newest.
        if self.maximum.within(permit):
            self.replace(permit, now)
            return
        # An older response counts only if it grants more, and only while its message may be the newest.
        recent = [(at, older) for at, older in self._recent if now - at < SETTLE and not older.within(permit)]
        recent.append((now, permit))
        # Merge upwards: this may reserve too much, never too little.
        if len(recent) > MOST_OUTSTANDING:
            (_, first), (at, second), *rest = recent
            recent = [(at, first.at_least(second)), *rest]
        self._recent = recent
        self.maximum = permit
        for _, older in recent[:-1]:
            self.maximum = self.maximum.at_least(older)

    def cap(self, most: Resources) -> None:
        """Lower all permits to at most ``most``: the rest was taken back."""
        self._recent = [(at, permit.at_most(most)) for at, permit in self._recent]
        self.maximum = self.maximum.at_most(most)

    def replace(self, permit: Resources, now: Instant) -> None:
        """Replace all by the response to the certainly newest message, or by one that grants at least as much."""
        self._recent = [(now, permit)]
        self.maximum = permit


class Offer(NamedTuple):
    """A permit decided at ``at``, sent to the agent once its write is confirmed."""

    permit: Resources
    at: Instant


@dataclass(slots=True, eq=False)
class PermitState:
    """Account of one VM. ``facts`` is None if only its pods are known.

    ``permit`` is the last decision. ``last_sequence`` is the sequence of the last message, ``heard_from`` the UID of
    its pod, ``agent`` its sender. Another agent may take over after ``turn_until``; sequences are comparable again
    after ``trusted_from``. ``unnamed_since`` is the revision of the first write that stores ``agent`` as a holder; 0
    once such a write is confirmed. ``orders`` are writes in flight by revision. ``doubts`` are permits of writes with
    an unknown outcome, until a version above ``doubted_version`` is seen (0: until a write is confirmed). ``refusal``
    is why the last write did not store its permit; empty if it did.

    ``wake_asked_at`` is when the agent first asked for the permit to wake; None if it did not, or if the VM is awake.
    ``wake_doubt`` is what the previous process may have started to write for a waking VM: once it lands, the guest
    starts. ``off_since`` is when autoscaling was switched off; ``is_off`` is true ``SETTLE`` later, ``is_quiet`` once
    no agent was answered for as long. ``is_unproven`` marks a VM found at a rebuild without a stored permit: only its
    agent's ``lastPermit`` says what it may use. ``is_unheard`` marks such a pod until its first message: its permit is
    never stored, so it may use all that its node had free.
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
    last_sequence: int | None = None
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
        """The maximum that any agent may hold by our responses."""
        answered = self.promises.maximum
        return (
            Resources.most((answered, *(other.maximum for other in self.others.values()))) if self.others else answered
        )

    @property
    def had(self) -> Resources:
        """The size that the VM has and its agents hold, without the object."""
        return self.in_use.at_least(self.held)

    @property
    def is_stored(self) -> bool:
        """True if the API is known to store exactly what the agent may hold; always true for a pod."""
        if self.permit is None:
            return False
        return self.stored_low == self.to_store == self.stored_high or (self.facts is not None and self.facts.is_pod)

    @property
    def in_use(self) -> Resources:
        """The size that the VM has, or is about to have without asking us, including grants of another scheduler."""
        if self.facts is None:
            return ZERO
        # A shrinking guest still has more than its spec; a growing one has less.
        size = self.facts.use.at_least(self.facts.actual or ZERO).at_least(self.facts.granted)
        return size if self.facts.wakes_with is None else size.at_least(self.wakes_by)

    @property
    def sleeps(self) -> bool:
        """True if the VM has an agent and sleeps or is waking; then its requests are for waking."""
        return self.facts is not None and self.facts.wakes_with is not None

    @property
    def wakes_by(self) -> Resources:
        """The part of the stored permit by which the guest may be waking already; it must not be lowered."""
        # The controller reads only the stored permit. It starts no guest in phase Asleep, and a write to such a version
        # cannot land after the phase has changed.
        return ZERO if self.facts is None else self.facts.may_be_woken.at_most(self.stored_high)

    @property
    def to_store(self) -> Resources:
        """The permit that the object should have."""
        return self.held.at_least(self.wakes_by) if self.sleeps else self.held

    @property
    def has_agent(self) -> bool:
        """True if an agent may hold permits for the VM."""
        return self.facts is not None and self.facts.has_agent

    @property
    def may_be_used(self) -> Resources:
        """The maximum that the VM may use without another response."""
        return self.had.at_least(self.stored_high)

    def _bound(self) -> None:
        high = (self.facts and self.facts.permit) or ZERO
        # An unreadable permit may be anything, so nothing is known to be stored.
        low = high if self.facts is None or self.facts.is_permit_known else ZERO
        # A write with an unknown outcome may have landed: the stored permit is between the minimum and maximum of all.
        for permit in (*self.orders.values(), *self.doubts):
            low, high = low.at_most(permit), high.at_least(permit)
        self.stored_low, self.stored_high = low, high

    def _settle(self) -> None:
        """Update the reservation. After its permit was taken back, a disabled agent holds only what the VM has."""
        if self.is_off and self.facts and not self.facts.unreadable and self.stored_high.within(self.in_use):
            # A guest that shrank after the last response may grow back to it.
            answered = ZERO if self.is_quiet or self.permit is None else self.permit
            self._cap(self.in_use.at_least(answered))
        self._derive()

    def _cap(self, most: Resources) -> None:
        """Cap what agents hold: an agent that does not know that it was switched off cannot use what was taken back."""
        self.promises.cap(most)
        self.others = {
            agent: OtherAgent(other.sequence, other.maximum.at_most(most)) for agent, other in self.others.items()
        }
        self.offers, self.refusal, self.is_unproven = {}, "", False
        self.permit = self.permit and self.permit.at_most(most)

    def _derive(self) -> None:
        reserved = self.may_be_used.at_least(self.wake_doubt)
        # Reserve before the write is sent: once stored, the response may follow at any time.
        for offer in self.offers.values():
            reserved = reserved.at_least(offer.permit)
        self.reserved = reserved

    # The VM's object, and what lapses with time ----------------------------------------------------------------------

    def open(self, facts: VmFacts, now: Instant, *, at_rebuild: bool) -> None:
        """Store the first facts of the VM. ``at_rebuild``: an agent may hold grants of a previous scheduler."""
        self.facts, self.is_deleted = facts, False
        if at_rebuild and facts.permit is not None:
            self.doubts = (facts.permit.at_most(self.in_use),)  # a decrease of the previous process may still land
            self.doubted_version = facts.version
        self.wake_doubt = facts.may_be_woken if at_rebuild else ZERO
        self._bound()
        # A pod's agent, and its permit, outlive the container.
        may_have_agent = facts.has_agent and (facts.is_pod or facts.phase not in WITHOUT_GUEST)
        if facts.permit is not None or (at_rebuild and may_have_agent):
            self.promises.add(self.in_use.at_least(self.stored_high), now)
            # Messages answered by the previous process may still be in flight.
            self.trusted_from = Instant(now + SETTLE)
            self._remember_holders(facts, now)
        # A sleeping VM uses nothing until a permit is stored, whatever its agent holds.
        self.is_unproven = at_rebuild and facts.has_agent and facts.permit is None and not self.sleeps
        self.is_unheard = self.is_unproven and facts.is_pod
        self._note_opt_out(now)
        self._settle()

    def _remember_holders(self, facts: VmFacts, now: Instant) -> None:
        """Restore the agents that the object names: the first is active, and each holds the permit until it reports
        less.
        """
        if len(facts.holders) < 2:
            return
        self.heard_from, self.agent, *others = facts.holders
        # The last active agent stays active across a restart of the scheduler.
        self.turn_until = Instant(now + SILENT)
        for agent in others:
            self.others[agent] = OtherAgent(None, self.promises.maximum)

    def observe(self, facts: VmFacts) -> None:
        """Store newer facts of the same VM; older ones are ignored."""
        # The VM may still have what it had before its object became unreadable.
        if self.facts is not None and facts.unreadable:
            uid, version = self.facts.uid, facts.version or self.facts.version
            facts = replace(facts, use=facts.use.at_least(self.reserved), version=version, uid=uid)
        if self.facts is None or facts.version < self.facts.version:
            return
        # The writes in doubt were for an older version of the object.
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
        """Expire what agents no longer hold. Return True if the reservation or ``is_unheard`` changed.

        The agent of a VM that was opted out ``SETTLE`` ago holds nothing once its permit was taken back.
        """
        if self.has_agent and not (self.is_unproven or self.wake_doubt.any):
            return False
        before = self.reserved, self.is_unheard
        self.wake_doubt = self.wake_doubt if now < self.trusted_from else ZERO
        # No message since a rebuild, and no stored permit: the agent holds nothing.
        if self.is_unproven and self.permit is None and now >= self.trusted_from:
            self.promises, self.is_unheard = OutstandingPermits(), False
        self._note_opt_out(now)
        self._settle()
        return (self.reserved, self.is_unheard) != before

    def _note_opt_out(self, now: Instant) -> None:
        if self.facts is not None and not self.facts.has_agent:
            self.off_since = now if self.off_since is None else self.off_since
            self.is_off = now - self.off_since >= SETTLE
            # An agent answered just before the opt-out may still resize by that permit.
            self.is_quiet = now - self.heard_at >= SETTLE

    def learn(self, facts: VmFacts) -> None:
        """As ``observe``, for facts that did not come from a watch: a deleted VM stays deleted."""
        current, is_deleted = self.facts, self.is_deleted
        self.observe(facts if current is None or facts.version >= current.version else current)
        self.is_deleted = is_deleted

    def agent_gone(self) -> None:
        """The VM's last pod and its agent are gone: only the stored permit still counts."""
        self.permit, self.promises, self.last_sequence, self.heard_from = None, OutstandingPermits(), None, None
        self.agent, self.others, self.offers, self.refusal = None, {}, {}, ""
        self.heard_at = self.trusted_from = self.turn_until = LONG_AGO
        self.is_unproven = self.is_unheard = False
        self._derive()
