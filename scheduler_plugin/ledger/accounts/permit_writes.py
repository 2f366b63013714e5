"""Writes of a VM's permit: when they are due, and how they end."""

from __future__ import annotations

from typing import Final

from protocol.permits import MOST_HOLDERS
from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.outstanding_permits import SETTLE
from scheduler_plugin.ledger.accounts.permit_state import Offer
from scheduler_plugin.ledger.accounts.seen_permits import SeenPermits
from scheduler_plugin.ledger.facts import VmFacts
from scheduler_plugin.ledger.outcomes import PersistPermit

MEND_EVERY: Final = Seconds(5.0)
"""The shortest time between two writes that undo another writer's edits, so that no fight fills the queue."""


class PermitWrites(SeenPermits):
    """An account that orders writes and hears their outcomes."""

    __slots__ = ()

    def write(self, revision: int, offer: Offer | None = None) -> PersistPermit | None:
        """The write that the API needs now, if any; the same one again while its outcome is open."""
        if offer is None and self.is_stored:
            return None
        if self.permit is None or self.facts is None or not self.facts.has_agent:
            return None
        # The object always names the maximum that any agent may hold, open offers included.
        due = Resources.most((self.held, *(open_offer.permit for open_offer in self.offers.values())))
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
        return None if self.facts is None else self._order(self.facts, self.held, revision, is_urgent=False)

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
