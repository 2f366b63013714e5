"""One VM's account. The stored, the held and the granted permit are three facts:

| Fact | Field | Changed by | Reserved | Granted again | Persisted |
|---|---|---|---|---|---|
| in use | ``facts`` | agent, guest, people | yes | yes | no |
| held: answered to an agent | ``promises``, ``others`` | answers | until less is proven | as its agent names it | yes |
| offered: waits for its write | ``offers`` | decisions | until the write has ended | as there is room | by that |
| stored: is on the object | ``stored_low``, ``stored_high`` | all who write | yes | as there is room | it is |
| wished | the request | the agent | no | as there is room | no |

Room is the VM's reservation plus what its node has free, less the node's excess. So nothing is granted because the
object records it: a predecessor's write that lands late, and an edit, were answered to nobody.

Rules that hold here:

- ``reserved`` falls only when each of its parts has provably fallen.
- A message that is not newer than the last one changes no amount; it is answered as things stand.
- One agent at a time: others are refused while it is heard.
- The stored permit is the maximum that any agent may hold, not the last decision: a restarted scheduler must know it.
- Without an agent (autoscaling has been off for ``SETTLE``, or no pod is left) the permit is first taken back from the
  API; then the VM follows its object. Until then the agent may not have heard of it, or its last resize may be on its
  way; that of an original agent lands on any version of the object.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import msgspec
from msgspec.structs import replace

from protocol.permits import MOST_HOLDERS
from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.permit_state import SETTLE, SILENT, Offer, OtherAgent, PermitState, follows
from scheduler_plugin.ledger.facts import VmFacts
from scheduler_plugin.ledger.outcomes import PersistPermit

MEND_EVERY: Final = Seconds(5.0)
"""The shortest time between two writes that undo another writer's edits, so that no fight fills the queue."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """A request as the account sees it. ``pod`` is the UID of the VM's pod, ``agent`` tells who speaks for it."""

    pod: str
    agent: str
    sequence: int | None
    asked: Resources
    last_permit: Resources | None = None


class PermitAccount(PermitState):
    """The account of one VM: it answers agents, orders writes, and hears their outcomes."""

    __slots__ = ()

    def rival_of(self, message: Message, now: Instant, alive: Container[str]) -> str | None:
        """The agent that is heard instead of the sender, if it is another one in a pod that is ``alive``."""
        if self.agent == message.agent or self.agent is None or self._has_moved(message):
            return None
        return self.agent if self.agent in alive and now < self.turn_until else None

    def _has_moved(self, message: Message) -> bool:
        return self.heard_from is not None and message.pod != self.heard_from

    def turn_away(self, message: Message, now: Instant) -> None:
        """Records what an agent that is refused says that it holds.

        What is reserved changes with the next message of the agent that is answered.
        """
        says = (message.last_permit or ZERO).at_most(self.reserved)
        other = self.others.get(message.agent, OtherAgent(None, ZERO))
        self.others[message.agent] = other.after(message.sequence, says, now)

    def note_wake(self, wanted: Resources, now: Instant) -> None:
        """The agent of a sleeping VM asks for ``wanted``; nothing if it gives up its permit."""
        if not wanted.any:
            self.wake_asked_at = None
        elif self.wake_asked_at is None:
            self.wake_asked_at = now

    def is_silent(self, now: Instant) -> bool:
        """Return True if no agent has asked for ``SILENT``, so that its last wish no longer counts."""
        return now - self.heard_at >= SILENT

    def forget_version(self) -> None:
        """Facts of any version are newer from now on."""
        self.facts = self.facts and replace(self.facts, version=0)
        self.doubted_version = 0

    def forget_gone(self, alive: Container[str]) -> None:
        """Agents whose pods are gone hold nothing."""
        self.others = {agent: other for agent, other in self.others.items() if agent in alive}
        self._derive()

    def is_old(self, message: Message, now: Instant) -> bool:
        """Return True if a message is doubled, or was overtaken by one already answered."""
        if message.sequence is None or self.heard is None or now - self.heard_at >= SETTLE:
            return False
        # Only messages of one agent in one pod are compared: another process counts from its own clock.
        return message.sequence <= self.heard and self._is_of_the_same(message)

    def answer_old(self, permit: Resources, sequence: int | None, now: Instant, revision: int) -> PersistPermit | None:
        """Records the answer to an old message, or to a duplicate: its first copy may never have been answered."""
        waits = self._waits(permit)
        # The agent may have received this answer last, whatever was answered in between. Until all messages in flight
        # have died, sequences prove nothing.
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
            # The object names the agent before as a holder until a write of this revision or a later one is
            # confirmed.
            self.unnamed_since = revision
        is_newest = follows(message.sequence, self.heard)
        before = self.promises.held
        # An agent that is permitted less than it asked for goes on with what it names as its last permit.
        carried = message.asked.at_most(before)
        if message.last_permit is not None:
            carried = carried.at_most(message.last_permit)
        may_hold = permit.at_least(carried)
        waits = self._waits(permit)
        # A smaller permit counts as held only once the message is known to be newer than what was answered before. So
        # a late decrease never takes away what was granted after it was sent.
        if is_newest and now >= self.trusted_from:
            self.promises.replace(carried if waits else may_hold, now)
            self.offers.clear()
        else:
            self.promises.add(carried if waits else may_hold, now)
        # The sequence went back or jumped: another process of the agent. An answer to the one before may still be the
        # newest.
        if self.heard is not None and not is_newest:
            self.trusted_from = Instant(now + SETTLE)
        self.permit, self.heard, self.heard_at, self.is_quiet = permit, message.sequence, now, False
        self.turn_until = Instant(now + SILENT)
        self.is_unproven = False
        order = self.write(revision, Offer(may_hold, now) if waits else None)
        if order is not None or self.promises.held != before:
            self._derive()
        return order

    def _waits(self, permit: Resources) -> bool:
        """Return True if the API has to store the permit, or who holds it, before it is answered."""
        # After a restart, the object is all that a scheduler knows of what an agent may hold. So it must name this
        # agent, and at least this permit, before the answer.
        if self.facts is None or not self.facts.has_agent or self.facts.is_pod:
            return False
        return bool(self.unnamed_since) or not permit.within(self.stored_low)

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
            # What it held when it fell silent stays held as long as its pod exists.
            if self.agent in alive:
                self.others[self.agent] = OtherAgent(self.heard, self.promises.held)
        self._fold([other for other in self.others if other == message.agent], now)
        self.heard, self.agent, self.heard_from = None, message.agent, message.pod

    def _fold(self, agents: list[str], now: Instant) -> None:
        for agent in agents:
            self.promises.add(self.promises.held.at_least(self.others.pop(agent).held), now)

    # Writes of the permit: when they are due, and how they end --------------------------------------------------------

    def write(self, revision: int, offer: Offer | None = None) -> PersistPermit | None:
        """The write that the API needs now, if any; the same one again while its outcome is open."""
        if offer is None and self.is_stored:
            return None
        if self.permit is None or self.facts is None or not self.facts.has_agent:
            return None
        # The object always names the maximum that any agent may hold, open offers included.
        due = Resources.most((self.to_store, *(open_offer.permit for open_offer in self.offers.values())))
        due = due if offer is None else due.at_least(offer.permit)
        order = self._order(self.facts, due, revision, is_urgent=offer is not None)
        if offer is not None:
            earlier = self.offers.get(order.revision, offer)
            self.offers[order.revision] = Offer(earlier.permit.at_least(offer.permit), offer.at)
        return order

    def edited(self, before: Resources, now: Instant, revision: int) -> PersistPermit | None:
        """Another writer may have changed the permit on the object, which was ``before`` at most. Returns the write
        that restores what agents hold.
        """
        # A higher permit is lowered only later: a rival scheduler may have answered it.
        if not self.stored_high.within(before):
            self.raised_at = now
        # While a write of ours is open or in doubt, a lower permit may be our own.
        is_lowered = not (self.orders or self.doubts or self.held.within(self.stored_low))
        if not is_lowered or now - self.mended_at < MEND_EVERY:
            return None
        self.mended_at = now
        return self.write(revision)

    def is_left_raised(self, now: Instant) -> bool:
        """Return True if the object has recorded more than agents hold for so long that they would have claimed it."""
        # An agent may have ordered what the object asks for within a permit of the process before, so it must have
        # been heard since.
        last = self.heard_at if self._asks_more else now
        if self.raised_at is None or last - self.raised_at < SETTLE or self.orders:
            return False
        self.raised_at = None
        return self.has_agent and not self.stored_high.within(self.had)

    @property
    def _asks_more(self) -> bool:
        """True if the object asks for more than counts (``believed``)."""
        facts = self.facts
        return facts is not None and facts.said is not None and not facts.said.use.within(facts.use)

    def lower(self, revision: int) -> PersistPermit | None:
        """The write that brings the object back to what agents hold."""
        return None if self.facts is None else self._order(self.facts, self.to_store, revision, is_urgent=False)

    def take_back(self, revision: int, now: Instant | None = None) -> PersistPermit | None:
        """The write that takes a permit back whose agent is gone, if the API may hold one above what the VM needs.

        ``now`` is None for the first try; later ones are ``SETTLE`` apart, and None comes in between.
        """
        if self.facts is None or self.is_deleted or self.stored_high.within(self.in_use):
            return None
        if now is not None:
            # A webhook may refuse the write or raise the permit again each time.
            if now - self.taken_back_at < SETTLE:
                return None
            self.taken_back_at = now
        return self._order(self.facts, self.in_use, revision, is_urgent=False, takes_back=True)

    def _order(
        self, facts: VmFacts, permit: Resources, revision: int, *, is_urgent: bool, takes_back: bool = False
    ) -> PersistPermit:
        holders: tuple[str, ...] = ()
        if self.heard_from is not None and self.agent is not None:
            holders = (self.heard_from, self.agent, *self.others)[:MOST_HOLDERS]
        last = self.pending
        # The same write again keeps its revision, so that one outcome settles both.
        if last is not None and (last.permit, last.holders, last.takes_back) == (permit, holders, takes_back):
            revision = last.revision
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
        # This write, or a later one, has named the present agent.
        if revision >= self.unnamed_since:
            self.unnamed_since = 0
        self._ended(revision)
        # Writes name the version that they are for, so none from before this one can land any more.
        self.doubts, self.refusal = (), ""
        self.learn(facts)

    def refused(self, revision: int, why: str, facts: VmFacts | None = None) -> None:
        """A write certainly did not store its permit: nobody is answered it. ``facts``: it stored something else."""
        self._ended(revision)
        self.refusal = why
        self._bound()  # a waking VM has what is stored
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
            # One doubt without a version makes all of them open until a write is confirmed.
            is_known = version and (self.doubted_version or not self.doubts)
            self.doubted_version = max(version, self.doubted_version) if is_known else 0
            self.doubts = _extremes((*self.doubts, doubt))
        self._bound()
        self._derive()

    def _ended(self, revision: int) -> None:
        """Writes go one at a time: those before this one have ended, or were never sent."""
        if self.pending is not None and self.pending.revision <= revision:
            self.pending = None
        self.orders = {number: permit for number, permit in self.orders.items() if number > revision}
        self.offers = {number: offer for number, offer in self.offers.items() if number > revision}


def _extremes(permits: tuple[Resources, ...]) -> tuple[Resources, ...]:
    low = high = permits[0]
    for permit in permits[1:]:
        low, high = low.at_most(permit), high.at_least(permit)
    return (low,) if low == high else (low, high)
