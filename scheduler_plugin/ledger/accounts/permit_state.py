"""Fields of a VM's account, the sums over them (held, stored, reserved), and updates from the VM's object.

See ``permit_account`` for the terms. An agent holds the response to its newest message. Any response of the last
``SETTLE`` may be that one, unless a message is known to be newer. An older response is not, once another message has
arrived.
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

MAX_OUTSTANDING: Final = 8

MAX_LOST: Final = 10_000
"""Messages of one process that may be lost in a row. A process counts up by one from its clock in nanoseconds at start,
so sequences further apart belong to two processes.
"""

LONG_AGO: Final = Instant(float("-inf"))

SILENT: Final = Seconds(45.0)
"""An agent silent for this long requests nothing: three times the longest interval between requests of our agents.

Denials of a slower agent expire between its requests.
"""


class OtherAgent(NamedTuple):
    """An agent whose requests are refused now: its last sequence, and what it may hold.

    Since ``since`` it has reported at most ``reported``.
    """

    sequence: int | None
    maximum: Resources
    reported: Resources = ZERO
    since: Instant | None = None

    def after(self, sequence: int | None, reported: Resources, now: Instant) -> OtherAgent:
        """This agent after another message; lowers ``maximum`` if it is the newest or all older ones have expired."""
        if follows(sequence, self.sequence):
            return OtherAgent(sequence, reported)
        latest = sequence if self.sequence is None else self.sequence
        # A report above ``maximum`` is proof; one below it may come from a late message.
        if self.since is None or not reported.within(self.maximum):
            return OtherAgent(latest, self.maximum.at_least(reported), reported, now)
        # All messages from before ``since`` have arrived or expired, so the newest one is included.
        if now - self.since >= SETTLE:
            return OtherAgent(sequence, self.reported.at_least(reported))
        return OtherAgent(latest, self.maximum, self.reported.at_least(reported), self.since)


def follows(sequence: int | None, other: int | None) -> bool:
    """Return True if the same process certainly created ``sequence`` after ``other``."""
    # Clocks can be set back, so the process with lower sequences may be the newer one. Only a small step up is proof.
    return sequence is not None and other is not None and 0 < sequence - other <= MAX_LOST


@dataclass(slots=True)
class OutstandingPermits:
    """Recent responses; ``maximum`` is the maximum that the agent may hold because of any of them."""

    maximum: Resources = ZERO
    _recent: list[tuple[Instant, Resources]] = field(default_factory=list)

    def add(self, permit: Resources, now: Instant) -> None:
        """Add a response to a message that may be older than earlier ones."""
        # The agent holds at most this, whichever message is the newest.
        if self.maximum.within(permit):
            self.replace(permit, now)
            return
        # An older response counts only if it grants more, and only while its message may be the newest.
        recent = [(at, older) for at, older in self._recent if now - at < SETTLE and not older.within(permit)]
        recent.append((now, permit))
        # Merge upwards: this may reserve too much, never too little.
        if len(recent) > MAX_OUTSTANDING:
            (_, first), (at, second), *rest = recent
            recent = [(at, first.at_least(second)), *rest]
        self._recent = recent
        self.maximum = permit
        for _, older in recent[:-1]:
            self.maximum = self.maximum.at_least(older)

    def cap(self, most: Resources) -> None:
        """Lower all permits to at most ``most``: the rest was revoked."""
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
    """Fields of one VM's account."""

    facts: VmFacts | None = None  # None if only its pods are known
    permit: Resources | None = None  # last decision
    outstanding: OutstandingPermits = field(default_factory=OutstandingPermits)
    others: dict[str, OtherAgent] = field(default_factory=dict)
    offers: dict[int, Offer] = field(default_factory=dict)
    orders: dict[int, Resources] = field(default_factory=dict)  # writes in flight, by revision
    uncertain_permits: tuple[Resources, ...] = ()  # of writes with an unknown outcome
    uncertain_version: int = 0  # a later version settles them; 0: only a confirmed write does
    stored_low: Resources = ZERO
    stored_high: Resources = ZERO
    pending: PersistPermit | None = None
    refusal: str = ""  # why the last write did not store its permit
    last_sequence: int | None = None
    last_pod: str | None = None  # UID of the VM's pod that the last message named
    agent: str | None = None  # sender of the last message
    holder_revision: int = 0  # first write that stores ``agent`` as a holder; 0 once such a write is confirmed
    last_message_at: Instant = LONG_AGO
    trusted_from: Instant = LONG_AGO  # sequences are comparable again from then on
    active_until: Instant = LONG_AGO  # another agent may take over afterwards
    restored_at: Instant = LONG_AGO
    revoked_at: Instant = LONG_AGO
    raised_at: Instant | None = None
    off_since: Instant | None = None  # when autoscaling was switched off
    wake_asked_at: Instant | None = None  # first request for the permit to wake; None if awake
    # Permit that the previous process may have started to write for a waking VM: once it lands, the guest starts.
    uncertain_wake: Resources = ZERO
    is_off: bool = False  # autoscaling was switched off ``SETTLE`` ago
    is_quiet: bool = False  # since then no agent was answered for as long
    is_unproven: bool = False  # found at a rebuild without a stored permit: only ``lastPermit`` says what it may use
    # An unproven pod without a message so far: its permit is never stored, so it may use all that its node had free.
    awaits_first_message: bool = False
    awaits_kubelet: bool = False  # found at a rebuild: the kubelet may yet apply earlier, unknown requests
    is_deleted: bool = False
    reserved: Resources = ZERO

    @property
    def held(self) -> Resources:
        """The maximum that any agent may hold by our responses."""
        answered = self.outstanding.maximum
        return (
            Resources.most((answered, *(other.maximum for other in self.others.values()))) if self.others else answered
        )

    @property
    def in_use_or_held(self) -> Resources:
        """The size that the VM has and its agents hold, without the object."""
        return self.in_use.at_least(self.held)

    @property
    def is_stored(self) -> bool:
        """True if the API server is known to store exactly what the agent may hold; always true for a pod."""
        if self.permit is None:
            return False
        return self.stored_low == self.permit_to_store == self.stored_high or (
            self.facts is not None and self.facts.is_pod
        )

    @property
    def in_use(self) -> Resources:
        """The size that the VM has, or is about to have without asking us, including grants of another scheduler."""
        if self.facts is None:
            return ZERO
        # A shrinking guest still has more than its spec; a growing one has less.
        size = self.facts.use.at_least(self.facts.actual or ZERO).at_least(self.facts.granted)
        return size if self.facts.wakes_with is None else size.at_least(self.waking_permit)

    @property
    def sleeps(self) -> bool:
        """True if the VM has an agent and sleeps or is waking; then its requests are for waking."""
        return self.facts is not None and self.facts.wakes_with is not None

    @property
    def waking_permit(self) -> Resources:
        """The part of the stored permit by which the guest may be waking already; it must not be lowered."""
        # The controller reads only the stored permit. It starts no guest in phase Asleep, and a write to such a version
        # cannot land after the phase has changed.
        return ZERO if self.facts is None else self.facts.may_be_woken.at_most(self.stored_high)

    @property
    def permit_to_store(self) -> Resources:
        """The permit that the object should have."""
        return self.held.at_least(self.waking_permit) if self.sleeps else self.held

    @property
    def has_agent(self) -> bool:
        """True if an agent may hold permits for the VM."""
        return self.facts is not None and self.facts.has_agent

    @property
    def max_usable(self) -> Resources:
        """The maximum that the VM may use without another response."""
        return self.in_use_or_held.at_least(self.stored_high)

    def _update_stored(self) -> None:
        high = (self.facts and self.facts.permit) or ZERO
        # An unreadable permit may be anything, so nothing is known to be stored.
        low = high if self.facts is None or self.facts.is_permit_known else ZERO
        # A write with an unknown outcome may have landed: the stored permit is between the minimum and maximum of all.
        for permit in (*self.orders.values(), *self.uncertain_permits):
            low, high = low.at_most(permit), high.at_least(permit)
        self.stored_low, self.stored_high = low, high

    def _settle(self) -> None:
        """Update the reservation. Once its permit is revoked, a disabled agent holds only what the VM has."""
        if self.is_off and self.facts and not self.facts.unreadable and self.stored_high.within(self.in_use):
            # A guest that shrank after the last response may grow back to it.
            answered = ZERO if self.is_quiet or self.permit is None else self.permit
            self._cap(self.in_use.at_least(answered))
        self._update_reserved()

    def _cap(self, most: Resources) -> None:
        """Cap what agents hold: even an agent that still runs cannot use a revoked permit."""
        self.outstanding.cap(most)
        self.others = {
            agent: OtherAgent(other.sequence, other.maximum.at_most(most)) for agent, other in self.others.items()
        }
        self.offers, self.refusal, self.is_unproven = {}, "", False
        self.permit = self.permit and self.permit.at_most(most)

    def _update_reserved(self) -> None:
        reserved = self.max_usable.at_least(self.uncertain_wake)
        # Reserve before the write is sent: once stored, the response may follow at any time.
        for offer in self.offers.values():
            reserved = reserved.at_least(offer.permit)
        self.reserved = reserved

    # The VM's object, and what lapses with time ----------------------------------------------------------------------

    def open(self, facts: VmFacts, now: Instant, *, at_rebuild: bool) -> None:
        """Store the first facts of the VM. ``at_rebuild``: an agent may hold grants of a previous scheduler."""
        self.facts, self.is_deleted = facts, False
        if at_rebuild and facts.permit is not None:
            self.uncertain_permits = (
                facts.permit.at_most(self.in_use),
            )  # a decrease of the previous process may still land
            self.uncertain_version = facts.version
        self.uncertain_wake = facts.may_be_woken if at_rebuild else ZERO
        self._update_stored()
        # A pod's agent, and its permit, outlive the container.
        may_have_agent = facts.has_agent and (facts.is_pod or facts.phase not in WITHOUT_GUEST)
        if facts.permit is not None or (at_rebuild and may_have_agent):
            self.outstanding.add(self.in_use.at_least(self.stored_high), now)
            # Messages answered by the previous process may still be in flight.
            self.trusted_from = Instant(now + SETTLE)
            self._remember_holders(facts, now)
        # A sleeping VM uses nothing until a permit is stored, even if its agent holds one.
        self.is_unproven = at_rebuild and facts.has_agent and facts.permit is None and not self.sleeps
        self.awaits_first_message = self.is_unproven and facts.is_pod
        self.awaits_kubelet = at_rebuild and not facts.is_seen
        self._note_opt_out(now)
        self._settle()

    def _remember_holders(self, facts: VmFacts, now: Instant) -> None:
        """Restore the agents that the object names: the first is active, and each holds the permit until it reports
        less.
        """
        if len(facts.holders) < 2:
            return
        self.last_pod, self.agent, *others = facts.holders
        # The last active agent stays active across a restart of the scheduler.
        self.active_until = Instant(now + SILENT)
        for agent in others:
            self.others[agent] = OtherAgent(None, self.outstanding.maximum)

    def observe(self, facts: VmFacts) -> None:
        """Store newer facts of the same VM; older ones are ignored."""
        # The VM may still have what it had before its object became unreadable.
        if self.facts is not None and facts.unreadable:
            uid, version = self.facts.uid, facts.version or self.facts.version
            facts = replace(facts, use=facts.use.at_least(self.reserved), version=version, uid=uid)
        elif self.facts is not None and not facts.is_seen:
            # The kubelet may yet apply requests that were lowered since.
            facts = replace(facts, use=facts.use.at_least(self.in_use))
        if self.facts is None or facts.version < self.facts.version:
            return
        # The writes in doubt were for an older version of the object.
        self.uncertain_wake = self.uncertain_wake if facts.version == self.facts.version else ZERO
        if facts.version > self.uncertain_version > 0:
            self.uncertain_permits = ()
        self.awaits_kubelet = self.awaits_kubelet and not facts.is_seen
        self.facts, self.is_deleted = facts, False
        if not self.sleeps:
            self.wake_asked_at = None
        if facts.has_agent:
            self.off_since, self.is_off = None, False
        self._update_stored()
        self._settle()

    def expire(self, now: Instant) -> bool:
        """Expire what agents no longer hold. Return True if the reservation or ``awaits_first_message`` changed.

        The agent of a VM that opted out ``SETTLE`` ago holds nothing once its permit is revoked.
        """
        if self.has_agent and not (self.is_unproven or self.uncertain_wake.any):
            return False
        before = self.reserved, self.awaits_first_message
        self.uncertain_wake = self.uncertain_wake if now < self.trusted_from else ZERO
        # No message since a rebuild, and no stored permit: the agent holds nothing.
        if self.is_unproven and self.permit is None and now >= self.trusted_from:
            self.outstanding, self.awaits_first_message = OutstandingPermits(), False
        self._note_opt_out(now)
        self._settle()
        return (self.reserved, self.awaits_first_message) != before

    def _note_opt_out(self, now: Instant) -> None:
        if self.facts is not None and not self.facts.has_agent:
            self.off_since = now if self.off_since is None else self.off_since
            self.is_off = now - self.off_since >= SETTLE
            # An agent answered just before the opt-out may still resize by that permit.
            self.is_quiet = now - self.last_message_at >= SETTLE

    def learn(self, facts: VmFacts) -> None:
        """Like ``observe``, for facts that did not come from a watch: a deleted VM stays deleted."""
        current, is_deleted = self.facts, self.is_deleted
        self.observe(facts if current is None or facts.version >= current.version else current)
        self.is_deleted = is_deleted

    def forget_agent(self) -> None:
        """Forget the agent when the VM's last pod is gone: only the stored permit still counts."""
        self.permit, self.outstanding, self.last_sequence, self.last_pod = None, OutstandingPermits(), None, None
        self.agent, self.others, self.offers, self.refusal = None, {}, {}, ""
        self.last_message_at = self.trusted_from = self.active_until = LONG_AGO
        self.is_unproven = self.awaits_first_message = False
        self._update_reserved()
