"""One VM's account. What is stored, what is held and what is granted are three facts:

| Fact | Field | Changed by | Reserved | Granted again | Persisted |
|---|---|---|---|---|---|
| in use | ``facts`` | agent, guest, people | yes | yes | no |
| held: answered to an agent | ``promises``, ``others`` | answers | until less is proven | as its agent names it | yes |
| offered: waits for its write | ``offers`` | decisions | until the write has ended | as there is room | by that |
| stored: is on the object | ``stored_low``, ``stored_high`` | all who write | yes | as there is room | it is |
| wished | the request | the agent | no | as there is room | no |

Room is what is reserved for the VM and what its node has free, less what the node has too much. So nothing is granted
because it stands on the object: a predecessor's write that lands late, and an edit, were answered to nobody.

Rules that hold here:

- ``reserved`` falls only when each of its parts has provably fallen.
- A smaller permit counts as held only once the message is known to be newer than what was answered before: by its
  sequence, or by time (``promises``). So a late "decrease" never takes away what was granted after it was sent.
- An agent that is permitted less than it asked for goes on with what it names as its last permit.
- A message that is not newer than the last one changes no amount; it is answered as things stand. Only messages of one
  agent in one pod are compared.
- Sequences prove nothing for ``SETTLE`` after the account was opened on what a predecessor has granted, after one
  went back or jumped (another process of the agent), and after another agent took over: then an unknown answer may be
  the newest.
- One agent at a time: others are refused while it is heard. What it held when it fell silent stays held as long as
  its pod exists.
- What is persisted is the most that any agent may hold, not the last decision: a restarted scheduler must know it.
- Only what is within ``stored_low`` may be answered without waiting for a write.
- A write that was refused leaves no doubt. One whose outcome is unknown does until the object is seen in a newer
  version, because each write names the version that it is for.
- Without an agent (autoscaling has been off for ``SETTLE``, or no pod is left) the permit is first taken back from the
  API; then the VM follows its object. Until then the agent may not have heard of it, or its last resize may be on its
  way; that of an original agent lands on any version of the object.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from protocol.permits import MOST_HOLDERS
from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.outstanding_permits import SETTLE, OutstandingPermits
from scheduler_plugin.ledger.facts import WITHOUT_GUEST, VmFacts
from scheduler_plugin.ledger.outcomes import PersistPermit

LONG_AGO: Final = Instant(float("-inf"))

SILENT: Final = Seconds(45.0)
"""An agent that has not asked for so long wants nothing: three times the longest that ours wait before they ask again.

What a slower one was denied is forgotten between its messages, and known again with the next.
"""

MOST_UNHEARD: Final = 10_000
"""How many messages of one process may be lost in a row. A process counts up by one from its clock in nanoseconds at
the start, so numbers that lie further apart are of two processes.
"""

MEND_EVERY: Final = Seconds(5.0)
"""The shortest time between two writes that undo another writer's edits, so that no fight fills the queue."""


class Offer(NamedTuple):
    """A permit that was decided at ``at`` and is answered once its write is confirmed."""

    permit: Resources
    at: Instant


class OtherAgent(NamedTuple):
    """An agent that is not answered now: the sequence of its last message, and what it may hold.

    Since ``since`` it has said that it holds ``says`` at most.
    """

    sequence: int | None
    held: Resources
    says: Resources = ZERO
    since: Instant | None = None

    def after(self, sequence: int | None, says: Resources, now: Instant) -> OtherAgent:
        """The same after another message. It proves less if it is the newest, or once all older ones have died."""
        if _follows(sequence, self.sequence):
            return OtherAgent(sequence, says)
        latest = sequence if self.sequence is None else self.sequence
        if self.since is None or not says.within(self.held):
            return OtherAgent(latest, self.held.at_least(says), says, now)
        if now - self.since >= SETTLE:
            return OtherAgent(sequence, self.says.at_least(says))
        return OtherAgent(latest, self.held, self.says.at_least(says), self.since)


class Message(msgspec.Struct, frozen=True, gc=False):
    """A request as the account sees it. ``pod`` is the UID of the VM's pod, ``agent`` tells who speaks for it."""

    pod: str
    agent: str
    sequence: int | None
    asked: Resources
    last_permit: Resources | None = None


@dataclass(slots=True, eq=False)
class PermitAccount:
    """What is known of one VM. ``facts`` is None while only its pods have been seen.

    ``permit`` is the last decision. ``heard`` is the sequence of the last message, ``heard_from`` the UID of its pod,
    ``agent`` who sent it, ``turn_until`` when another agent may be answered, ``trusted_from`` when sequences prove
    something again. ``orders`` are the writes by revision
    whose outcome is open, ``doubts`` the permits of those whose outcome is unknown until a version above
    ``doubted_version`` is seen (0: until a write is confirmed), ``refusal`` is why the last write did not store its
    permit (empty if it did). ``off_since`` is when autoscaling was seen to be switched off, ``is_off`` that it has been
    for ``SETTLE``. ``is_unproven`` marks a VM that a rebuild found without a
    persisted permit: its agent's ``lastPermit`` is the only witness of what it may use.
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
    heard_at: Instant = LONG_AGO
    trusted_from: Instant = LONG_AGO
    turn_until: Instant = LONG_AGO
    mended_at: Instant = LONG_AGO
    taken_back_at: Instant = LONG_AGO
    raised_at: Instant | None = None
    off_since: Instant | None = None
    is_off: bool = False
    is_unproven: bool = False
    is_deleted: bool = False
    reserved: Resources = ZERO

    @property
    def held(self) -> Resources:
        """The most that any agent may hold because it was answered."""
        held = self.promises.held
        return Resources.most((held, *(each.held for each in self.others.values()))) if self.others else held

    @property
    def had(self) -> Resources:
        """What the VM has and what its agents hold, whatever else stands on the object."""
        return self.in_use.at_least(self.held)

    @property
    def is_stored(self) -> bool:
        """Whether the API is known to hold exactly what the agent may hold."""
        return self.permit is not None and self.stored_low == self.held == self.stored_high

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

    @property
    def may_be_used(self) -> Resources:
        """The most that the VM may come to use without another answer."""
        return self.had.at_least(self.stored_high)

    def is_silent(self, now: Instant) -> bool:
        """Whether an agent has not been heard of for so long that what it asked for is no wish any more."""
        return now - self.heard_at >= SILENT

    # What the API says --------------------------------------------------------------------------------------------

    def open(self, facts: VmFacts, now: Instant, *, at_rebuild: bool) -> None:
        """The first facts about this VM. ``at_rebuild``: an agent may hold what a scheduler before this one granted."""
        self.facts, self.is_deleted = facts, False
        if at_rebuild and facts.permit is not None:
            self.doubts = (facts.permit.at_most(self.in_use),)  # a decrease of the process before may land yet
            self.doubted_version = facts.version
        self._bound()
        may_have_agent = facts.has_agent and facts.phase not in WITHOUT_GUEST
        if facts.permit is not None or (at_rebuild and may_have_agent):
            self.promises.add(self.in_use.at_least(self.stored_high), now)
            self.trusted_from = Instant(now + SETTLE)
            self._remember_holders(facts, now)
        self.is_unproven = at_rebuild and facts.has_agent and facts.permit is None
        self._note_opt_out(now)
        self._settle()

    def _remember_holders(self, facts: VmFacts, now: Instant) -> None:
        """Whoever the object names is answered first, and holds the permit until it is known to hold less."""
        if len(facts.holders) < 2:
            return
        self.heard_from, self.agent, *others = facts.holders
        self.turn_until = Instant(now + SILENT)
        for agent in others:
            self.others[agent] = OtherAgent(None, self.promises.held)

    def observe(self, facts: VmFacts) -> None:
        """Newer facts of the same VM; older ones than those known change nothing."""
        if self.facts is not None and facts.unreadable:
            facts = self._at_most(facts, self.facts)
        if self.facts is None or facts.version < self.facts.version:
            return
        if facts.version > self.doubted_version > 0:
            self.doubts = ()
        self.facts, self.is_deleted = facts, False
        if facts.has_agent:
            self.off_since, self.is_off = None, False
        self._bound()
        self._settle()

    def _at_most(self, facts: VmFacts, known: VmFacts) -> VmFacts:
        """An object that has become unreadable: its VM may still have whatever it had."""
        return replace(
            facts, use=facts.use.at_least(self.reserved), version=facts.version or known.version, uid=known.uid
        )

    def forget_version(self) -> None:
        """Facts of any version are newer from now on."""
        self.facts = self.facts and replace(self.facts, version=0)
        self.doubted_version = 0

    def lapse(self, now: Instant) -> bool:
        """Ends what agents hold no longer. Returns whether that changes what is reserved.

        An agent that has not been heard of since a rebuild, and to which nothing was ever persisted, holds nothing. Nor
        does one of a VM that was opted out ``SETTLE`` ago, once its permit is taken back.
        """
        if self.has_agent and not self.is_unproven:
            return False
        before = self.reserved
        if self.is_unproven and self.permit is None and now >= self.trusted_from:
            self.promises = OutstandingPermits()
        self._note_opt_out(now)
        self._settle()
        return self.reserved != before

    def _note_opt_out(self, now: Instant) -> None:
        if self.facts is not None and not self.facts.has_agent:
            self.off_since = now if self.off_since is None else self.off_since
            self.is_off = now - self.off_since >= SETTLE

    # What agents say ----------------------------------------------------------------------------------------------

    def rival_of(self, message: Message, now: Instant, alive: Container[str]) -> str | None:
        """The agent that is heard instead of the sender, if it is another one in a pod that is ``alive``."""
        if self.agent == message.agent or self.agent is None or self._has_moved(message):
            return None
        return self.agent if self.agent in alive and now < self.turn_until else None

    def _has_moved(self, message: Message) -> bool:
        """Whether the VM runs in another pod than that of the last message."""
        return self.heard_from is not None and message.pod != self.heard_from

    def turn_away(self, message: Message, now: Instant) -> None:
        """Records what an agent that is refused says that it holds.

        What is reserved changes with the next message of the agent that is answered.
        """
        says = (message.last_permit or ZERO).at_most(self.reserved)
        known = self.others.get(message.agent, OtherAgent(None, ZERO))
        self.others[message.agent] = known.after(message.sequence, says, now)

    def forget_gone(self, alive: Container[str]) -> None:
        """Agents whose pods are gone hold nothing."""
        self.others = {agent: other for agent, other in self.others.items() if agent in alive}
        self._derive()

    def is_old(self, message: Message, now: Instant) -> bool:
        """Whether a message is doubled, or was overtaken by one already answered."""
        if message.sequence is None or self.heard is None or now - self.heard_at >= SETTLE:
            return False
        return message.sequence <= self.heard and self._is_of_the_same(message)

    def answer_old(self, permit: Resources, sequence: int | None, now: Instant, revision: int) -> PersistPermit | None:
        """Records the answer to an old message, or to a duplicate: its first copy may never have been answered."""
        waits = self.has_agent and not permit.within(self.stored_low)
        if sequence != self.heard:
            self.trusted_from = Instant(now + SETTLE)
        if not waits and (sequence != self.heard or not permit.within(self.promises.held)):
            self.promises.add(permit, now)
        order = self.write(revision, Offer(permit, now) if waits else None)
        self._derive()
        return order

    def honour(self, permit: Resources, now: Instant) -> None:
        """The agent of an unproven VM may use this much without asking."""
        self.promises.add(permit, now)
        self._derive()

    def answer(
        self, message: Message, permit: Resources, now: Instant, revision: int, alive: Container[str] = ()
    ) -> PersistPermit | None:
        """Records the decision for a message that is not old. Returns the write that the API needs, if any.

        A new write gets ``revision``, which must be above every earlier one.
        """
        if not self._is_of_the_same(message):
            self._take_over(message, now, alive)
        is_newest = _follows(message.sequence, self.heard)
        held = self.promises.held
        carried = message.asked.at_most(held)
        if message.last_permit is not None:
            carried = carried.at_most(message.last_permit)
        may_hold = permit.at_least(carried)
        waits = not permit.within(self.stored_low) and self.has_agent
        if is_newest and now >= self.trusted_from:
            self.promises.replace(carried if waits else may_hold, now)
            self.offers.clear()
        else:
            self.promises.add(carried if waits else may_hold, now)
        if self.heard is not None and not is_newest:
            self.trusted_from = Instant(now + SETTLE)
        self.permit, self.heard, self.heard_at = permit, message.sequence, now
        self.turn_until = Instant(now + SILENT)
        self.is_unproven = False
        order = self.write(revision, Offer(may_hold, now) if waits else None)
        if order is not None or self.promises.held != held:
            self._derive()
        return order

    def _is_of_the_same(self, message: Message) -> bool:
        return message.agent == self.agent and message.pod == self.heard_from

    def _take_over(self, message: Message, now: Instant, alive: Container[str]) -> None:
        """Another agent is answered from now on. The one before may hold its permit as long as its pod exists, if the
        VM has not left the pod that it spoke for.
        """
        if self._has_moved(message):
            self.trusted_from = Instant(now + SETTLE)
            self._fold(list(self.others), now)
        elif self.agent not in (None, message.agent):
            self.trusted_from = Instant(now + SETTLE)
            if self.agent in alive:
                self.others[self.agent] = OtherAgent(self.heard, self.promises.held)
        self._fold([each for each in self.others if each == message.agent], now)
        self.heard, self.agent, self.heard_from = None, message.agent, message.pod

    def _fold(self, agents: list[str], now: Instant) -> None:
        for agent in agents:
            self.promises.add(self.promises.held.at_least(self.others.pop(agent).held), now)

    # Writes -------------------------------------------------------------------------------------------------------

    def write(self, revision: int, offer: Offer | None = None) -> PersistPermit | None:
        """The write that the API needs now, if any; the same one again while its outcome is open."""
        if offer is None and self.is_stored:
            return None
        if self.permit is None or self.facts is None or not self.facts.has_agent:
            return None
        due = Resources.most((self.held, *(each.permit for each in self.offers.values())))
        due = due if offer is None else due.at_least(offer.permit)
        order = self._order(self.facts, due, revision, is_urgent=offer is not None)
        if offer is not None:
            known = self.offers.get(order.revision, offer)
            self.offers[order.revision] = Offer(known.permit.at_least(offer.permit), offer.at)
        return order

    def edited(self, before: Resources, now: Instant, revision: int) -> PersistPermit | None:
        """Another writer may have changed the permit on the object, which was ``before`` at most. Returns the write
        that restores what agents hold. What is above that is lowered later: a rival may have answered it.
        """
        if not self.stored_high.within(before):
            self.raised_at = now
        is_lowered = not (self.orders or self.doubts or self.held.within(self.stored_low))
        if not is_lowered or now - self.mended_at < MEND_EVERY:
            return None
        self.mended_at = now
        return self.write(revision)

    def is_left_raised(self, now: Instant) -> bool:
        """Whether more than agents hold has stood on the object for so long that they would have said they hold it.

        If the object asks for more than counts, an agent may have ordered that within a permit of the process before:
        then it must have been heard since.
        """
        last = self.heard_at if self._asks_more else now
        if self.raised_at is None or last - self.raised_at < SETTLE or self.orders:
            return False
        self.raised_at = None
        return self.has_agent and not self.stored_high.within(self.had)

    @property
    def _asks_more(self) -> bool:
        """Whether the object asks for more than counts (``believed``)."""
        facts = self.facts
        return facts is not None and facts.said is not None and not facts.said.use.within(facts.use)

    def lower(self, revision: int) -> PersistPermit | None:
        """The write that brings the object back to what agents hold."""
        return None if self.facts is None else self._order(self.facts, self.held, revision, is_urgent=False)

    def take_back(self, revision: int, now: Instant | None = None) -> PersistPermit | None:
        """The write that takes a permit back whose agent is gone, if the API may hold one above what the VM needs.

        None again within ``SETTLE``: a webhook may refuse or raise it each time. Without ``now`` it is the first.
        """
        if self.facts is None or self.is_deleted or self.stored_high.within(self.in_use):
            return None
        if now is not None:
            if now - self.taken_back_at < SETTLE:
                return None
            self.taken_back_at = now
        return self._order(self.facts, self.in_use, revision, is_urgent=False, takes_back=True)

    def _order(
        self, facts: VmFacts, permit: Resources, revision: int, *, is_urgent: bool, takes_back: bool = False
    ) -> PersistPermit:
        if self.pending is not None and (self.pending.permit, self.pending.takes_back) == (permit, takes_back):
            revision = self.pending.revision
        holders: tuple[str, ...] = ()
        if self.heard_from is not None and self.agent is not None:
            holders = (self.heard_from, self.agent, *self.others)[:MOST_HOLDERS]
        self.pending = PersistPermit(facts.name, permit, revision, is_urgent, facts.uid, holders, takes_back)
        self.orders[revision] = permit
        self._bound()
        return self.pending

    def confirmed(self, revision: int, facts: VmFacts) -> None:
        """The API confirmed a write and returned ``facts``: no earlier write can land any more.

        A VM that has been deleted since is not back.
        """
        if self.facts is None or facts.uid != self.facts.uid:
            return
        offer = self.offers.get(revision)
        if offer is not None:
            self.promises.add(offer.permit, offer.at)
        self._ended(revision)
        self.doubts, self.refusal = (), ""
        self.learn(facts)

    def refused(self, revision: int, why: str, facts: VmFacts | None = None) -> None:
        """A write certainly did not store its permit: nobody is answered it. ``facts``: it stored something else."""
        self._ended(revision)
        self.refusal = why
        self.permit = self.permit and self.permit.at_most(self.had)
        if facts is not None and self.facts is not None and facts.uid == self.facts.uid:
            self.doubts = ()
            self.learn(facts)
        self._bound()
        self._settle()

    def unsure(self, revision: int, version: int) -> None:
        """The outcome of a write onto ``version`` of the object (0: not known) is unknown: the next message orders it
        again. A newer version settles it.
        """
        doubt = self.orders.get(revision)
        self._ended(revision)
        if doubt is not None:
            is_known = version and (self.doubted_version or not self.doubts)
            self.doubted_version = max(version, self.doubted_version) if is_known else 0
            self.doubts = _extremes((*self.doubts, doubt))
        self._bound()
        self._derive()

    def _ended(self, revision: int) -> None:
        """Writes go one at a time: those before this one have ended, or were never sent."""
        if self.pending is not None and self.pending.revision <= revision:
            self.pending = None
        self.orders = {each: permit for each, permit in self.orders.items() if each > revision}
        self.offers = {each: offer for each, offer in self.offers.items() if each > revision}

    def learn(self, facts: VmFacts) -> None:
        """As ``observe``, with what was not seen on the API: a VM that was deleted is not back."""
        known, is_deleted = self.facts, self.is_deleted
        self.observe(facts if known is None or facts.version >= known.version else known)
        self.is_deleted = is_deleted

    def agent_gone(self) -> None:
        """The VM's last pod is gone and its agent with it: only what the API holds still counts."""
        self._forget_agent()
        self._derive()

    def _forget_agent(self) -> None:
        self.permit, self.promises, self.heard, self.heard_from = None, OutstandingPermits(), None, None
        self.agent, self.others, self.offers, self.refusal = None, {}, {}, ""
        self.heard_at = self.trusted_from = self.turn_until = LONG_AGO
        self.is_unproven = False

    # Sums ---------------------------------------------------------------------------------------------------------

    def _bound(self) -> None:
        high = (self.facts and self.facts.permit) or ZERO
        low = high if self.facts is None or self.facts.is_permit_known else ZERO
        for permit in (*self.orders.values(), *self.doubts):
            low, high = low.at_most(permit), high.at_least(permit)
        self.stored_low, self.stored_high = low, high

    def _settle(self) -> None:
        """What is reserved; once its permit is taken back, an agent that was switched off holds what the VM has."""
        if self.is_off and self.facts and not self.facts.unreadable and self.stored_high.within(self.in_use):
            self._cap(self.in_use)
        self._derive()

    def _cap(self, most: Resources) -> None:
        """The agent may not have heard that autoscaling is off; what was taken back it cannot use."""
        self.promises.cap(most)
        self.others = {agent: OtherAgent(each.sequence, each.held.at_most(most)) for agent, each in self.others.items()}
        self.offers, self.refusal, self.is_unproven = {}, "", False
        self.permit = self.permit and self.permit.at_most(most)

    def _derive(self) -> None:
        reserved = self.may_be_used
        for offer in self.offers.values():
            reserved = reserved.at_least(offer.permit)
        self.reserved = reserved


def _follows(sequence: int | None, other: int | None) -> bool:
    """Whether ``sequence`` was given out after ``other`` by the same process. Of two processes, the one with the lower
    numbers may be the later one: clocks are set back.
    """
    return sequence is not None and other is not None and 0 < sequence - other <= MOST_UNHEARD


def _extremes(permits: tuple[Resources, ...]) -> tuple[Resources, ...]:
    low = high = permits[0]
    for permit in permits[1:]:
        low, high = low.at_most(permit), high.at_least(permit)
    return (low,) if low == high else (low, high)
