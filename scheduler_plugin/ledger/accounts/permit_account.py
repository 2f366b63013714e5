"""One VM's account: responses to agents, writes of the permit, and their outcomes.

| Fact | Field | Changed by | Reserved | Granted again | Persisted |
|---|---|---|---|---|---|
| in use | ``facts`` | agent, guest, users | yes | yes | no |
| held: sent to agents | ``outstanding``, ``others`` | responses | until less is proven | as the agent names it | yes |
| offered: waits for its write | ``offers`` | decisions | until the write has ended | if there is room | by that write |
| stored: on the object | ``stored_low``, ``stored_high`` | all writers | yes | if there is room | it is |
| requested | the request | the agent | no | if there is room | no |

Room is the VM's reservation plus the node's free room, minus the node's excess. A stored permit alone grants nothing: a
late write of a predecessor, or an edit, was never sent to an agent.

Rules:

- ``reserved`` falls only when each of its parts has provably fallen.
- A message that is not newer than the last one changes no amount; its response has the current permit.
- Only one agent is active at a time; requests of others are refused.
- The stored permit is the maximum that any agent may hold, not the last decision: a restarted scheduler must know it.
- Without an agent (autoscaling off for ``SETTLE``, or no pod left) the scheduler first lowers the stored permit;
  then the VM's object alone counts. Until then the agent may not know that it was switched off, or its last resize may
  be in flight; an original agent's resize applies to any version of the object.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import msgspec
from msgspec.structs import replace

from protocol.guest.sleep import WAKING
from protocol.permits import MAX_HOLDERS
from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.permit_state import SETTLE, SILENT, Offer, OtherAgent, PermitState, follows
from scheduler_plugin.ledger.facts import VmFacts
from scheduler_plugin.ledger.outcomes import PersistPermit

RESTORE_INTERVAL: Final = Seconds(5.0)
"""Minimum interval between writes that revert edits of other writers, so that a fight does not fill the queue."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """A request as the account sees it. ``pod`` is the UID of the VM's pod, ``agent`` identifies the sender."""

    pod: str
    agent: str
    sequence: int | None
    wanted: Resources
    last_permit: Resources | None = None


class PermitAccount(PermitState):
    """The account of one VM: decides on requests, orders writes, and processes their outcomes."""

    __slots__ = ()

    def active_rival(self, message: Message, now: Instant, alive: Container[str]) -> str | None:
        """The active agent, if it is not the sender and its pod is in ``alive``; otherwise None."""
        if self.agent == message.agent or self.agent is None or self._has_moved(message):
            return None
        return self.agent if self.agent in alive and now < self.active_until else None

    def _has_moved(self, message: Message) -> bool:
        return self.last_pod is not None and message.pod != self.last_pod

    def record_refused(self, message: Message, now: Instant) -> None:
        """Record what a refused agent says that it holds.

        The reservation is updated with the next message of the active agent.
        """
        reported = (message.last_permit or ZERO).at_most(self.reserved)
        other = self.others.get(message.agent, OtherAgent(None, ZERO))
        self.others[message.agent] = other.after(message.sequence, reported, now)

    def record_wake_request(self, wanted: Resources, now: Instant) -> None:
        """Record the request of a sleeping VM's agent; zero gives up its permit."""
        if not wanted.any:
            # A waking VM has been waiting since its first request, even if its agent gave up the permit in between.
            is_waking = self.facts is not None and self.facts.phase == WAKING
            self.wake_asked_at = self.wake_asked_at if is_waking else None
        elif self.wake_asked_at is None:
            self.wake_asked_at = now

    def is_silent(self, now: Instant) -> bool:
        """Return True if no agent has sent a request for ``SILENT``, so that the last one no longer counts."""
        return now - self.last_message_at >= SILENT

    def forget_version(self) -> None:
        """Accept facts of any version as newer."""
        self.facts = self.facts and replace(self.facts, version=0)
        self.uncertain_version = 0

    def drop_deleted_agents(self, alive: Container[str]) -> None:
        """Forget what agents of deleted pods hold."""
        self.others = {agent: other for agent, other in self.others.items() if agent in alive}
        self._update_reserved()

    def is_old(self, message: Message, now: Instant) -> bool:
        """Return True if the message is a duplicate, or arrived after a later one."""
        if message.sequence is None or self.last_sequence is None or now - self.last_message_at >= SETTLE:
            return False
        # Sequences are comparable only within one agent process of one pod.
        return message.sequence <= self.last_sequence and self._is_same_agent(message)

    def answer_old(self, permit: Resources, sequence: int | None, now: Instant, revision: int) -> PersistPermit | None:
        """Record the response to an old message, or to a duplicate whose first copy may not have been answered."""
        waits = self._must_store_first(permit)
        # The agent may receive this response last. Sequences prove nothing until all messages in flight have expired.
        if sequence != self.last_sequence:
            self.trusted_from = Instant(now + SETTLE)
        if not waits and (sequence != self.last_sequence or not permit.within(self.outstanding.maximum)):
            self.outstanding.add(permit, now)
        order = self.write(revision, Offer(permit, now) if waits else None)
        self._update_reserved()
        return order

    def reserve_unproven(self, permit: Resources, now: Instant) -> None:
        """Reserve what the agent of an unproven VM may use without asking."""
        self.outstanding.add(permit, now)
        self._update_reserved()

    def answer(
        self, message: Message, permit: Resources, now: Instant, revision: int, alive: Container[str] = ()
    ) -> PersistPermit | None:
        """Record the decision on a message that is not old. Return the write that is needed, if any.

        A new write gets ``revision``, which must be above all earlier ones.
        """
        if not self._is_same_agent(message):
            self._take_over(message, now, alive)
            # The object names the previous agent as holder until a write of this revision or a later one is confirmed.
            self.holder_revision = revision
        is_newest = follows(message.sequence, self.last_sequence)
        before = self.outstanding.maximum
        # If it gets less than it asked for, the agent keeps the permit that it names as its last.
        carried = message.wanted.at_most(before)
        if message.last_permit is not None:
            carried = carried.at_most(message.last_permit)
        may_hold = permit.at_least(carried)
        waits = self._must_store_first(permit)
        # A smaller permit counts only if the message is known to be the newest. Otherwise a late decrease would take
        # away what was granted after it was sent.
        if is_newest and now >= self.trusted_from:
            self.outstanding.replace(carried if waits else may_hold, now)
            self.offers.clear()
        else:
            self.outstanding.add(carried if waits else may_hold, now)
        # The sequence went back or jumped: a new agent process. A response to the old process may still be the newest.
        if self.last_sequence is not None and not is_newest:
            self.trusted_from = Instant(now + SETTLE)
        self.permit, self.last_sequence, self.last_message_at, self.is_quiet = permit, message.sequence, now, False
        self.active_until = Instant(now + SILENT)
        self.is_unproven = False
        order = self.write(revision, Offer(may_hold, now) if waits else None)
        if order is not None or self.outstanding.maximum != before:
            self._update_reserved()
        return order

    def _must_store_first(self, permit: Resources) -> bool:
        """Return True if the API server must store the permit, or its holder, before the response."""
        # A restarted scheduler knows only the object. So it must name this agent and at least this permit before the
        # response.
        if self.facts is None or not self.facts.has_agent or self.facts.is_pod:
            return False
        return bool(self.holder_revision) or not permit.within(self.stored_low)

    def _is_same_agent(self, message: Message) -> bool:
        return message.agent == self.agent and message.pod == self.last_pod

    def _take_over(self, message: Message, now: Instant, alive: Container[str]) -> None:
        """Make another agent the active one. The previous one may hold its permit while its pod exists, unless the VM
        left that pod.
        """
        if self._has_moved(message):
            self.trusted_from = Instant(now + SETTLE)
            self._merge_holders(list(self.others), now)
        elif self.agent not in (None, message.agent):
            self.trusted_from = Instant(now + SETTLE)
            # It still holds its last permit while its pod exists.
            if self.agent in alive:
                self.others[self.agent] = OtherAgent(self.last_sequence, self.outstanding.maximum)
        self._merge_holders([other for other in self.others if other == message.agent], now)
        self.last_sequence, self.agent, self.last_pod = None, message.agent, message.pod

    def _merge_holders(self, agents: list[str], now: Instant) -> None:
        for agent in agents:
            self.outstanding.add(self.outstanding.maximum.at_least(self.others.pop(agent).maximum), now)

    # Writes of the permit: when they are due, and how they end --------------------------------------------------------

    def write(self, revision: int, offer: Offer | None = None) -> PersistPermit | None:
        """The write that is needed now, if any; the same one again while its outcome is unknown."""
        if offer is None and self.is_stored:
            return None
        if self.permit is None or self.facts is None or not self.facts.has_agent:
            return None
        # The object always has the maximum that any agent may hold, including open offers.
        due = Resources.most((self.permit_to_store, *(open_offer.permit for open_offer in self.offers.values())))
        due = due if offer is None else due.at_least(offer.permit)
        order = self._order(self.facts, due, revision, is_urgent=offer is not None)
        if offer is not None:
            earlier = self.offers.get(order.revision, offer)
            self.offers[order.revision] = Offer(earlier.permit.at_least(offer.permit), offer.at)
        return order

    def restore_if_edited(self, before: Resources, now: Instant, revision: int) -> PersistPermit | None:
        """Return the write that restores the agents' permit if another writer changed it from ``before``."""
        # A higher permit is lowered only later: another scheduler may have granted it.
        if not self.stored_high.within(before):
            self.raised_at = now
        # While our own write is open or in doubt, the lower permit may be ours.
        is_lowered = not (self.orders or self.uncertain_permits or self.held.within(self.stored_low))
        if not is_lowered or now - self.restored_at < RESTORE_INTERVAL:
            return None
        self.restored_at = now
        return self.write(revision)

    def has_unclaimed_raise(self, now: Instant) -> bool:
        """Return True if the stored permit has exceeded the held one for so long that no agent can claim it."""
        # The agent may have resized the object by a permit of the previous process, so wait until it has sent a
        # request.
        last = self.last_message_at if self._asks_more else now
        if self.raised_at is None or last - self.raised_at < SETTLE or self.orders:
            return False
        self.raised_at = None
        return self.has_agent and not self.stored_high.within(self.in_use_or_held)

    @property
    def _asks_more(self) -> bool:
        """True if the object requests more than counts (``effective_facts``)."""
        facts = self.facts
        return facts is not None and facts.declared is not None and not facts.declared.use.within(facts.use)

    def lower(self, revision: int) -> PersistPermit | None:
        """The write that lowers the stored permit to what agents hold."""
        return None if self.facts is None else self._order(self.facts, self.permit_to_store, revision, is_urgent=False)

    def revoke(self, revision: int, now: Instant | None = None) -> PersistPermit | None:
        """The write that lowers the permit of a VM without an agent, if the stored one may exceed its use.

        ``now`` is None for the first try; later tries are ``SETTLE`` apart.
        """
        if self.facts is None or self.is_deleted or self.stored_high.within(self.in_use):
            return None
        if now is not None:
            # A webhook may refuse the write or raise the permit again every time.
            if now - self.revoked_at < SETTLE:
                return None
            self.revoked_at = now
        return self._order(self.facts, self.in_use, revision, is_urgent=False, revokes=True)

    def _order(
        self, facts: VmFacts, permit: Resources, revision: int, *, is_urgent: bool, revokes: bool = False
    ) -> PersistPermit:
        holders: tuple[str, ...] = ()
        if self.last_pod is not None and self.agent is not None:
            holders = (self.last_pod, self.agent, *self.others)[:MAX_HOLDERS]
        last = self.pending
        # A repeated write keeps its revision, so that one outcome settles both.
        if last is not None and (last.permit, last.holders, last.revokes) == (permit, holders, revokes):
            revision = last.revision
        self.pending = PersistPermit(facts.name, permit, revision, is_urgent, facts.uid, holders, revokes)
        self.orders[revision] = permit
        self._update_stored()
        return self.pending

    def confirmed(self, revision: int, facts: VmFacts) -> None:
        """The API confirmed a write and returned ``facts``: no earlier write can land any more.

        A deleted VM stays deleted.
        """
        if self.facts is None or facts.uid != self.facts.uid:
            return
        offer = self.offers.get(revision)
        if offer is not None:
            self.outstanding.add(offer.permit, offer.at)
        # This write, or a later one, has stored the active agent as holder.
        if revision >= self.holder_revision:
            self.holder_revision = 0
        self._drop_writes_until(revision)
        # Writes carry a resourceVersion, so none for an earlier version can land any more.
        self.uncertain_permits, self.refusal = (), ""
        self.learn(facts)

    def refused(self, revision: int, why: str, facts: VmFacts | None = None) -> None:
        """The API did not store the permit, so no agent gets it. ``facts``: it stored something else."""
        self._drop_writes_until(revision)
        self.refusal = why
        self._update_stored()  # a waking VM has the stored permit
        self.permit = self.permit and self.permit.at_most(self.in_use_or_held)
        if facts is not None and self.facts is not None and facts.uid == self.facts.uid:
            self.uncertain_permits = ()
            self.learn(facts)
        self._update_stored()
        self._settle()

    def outcome_unknown(self, revision: int, version: int) -> None:
        """The outcome of a write to ``version`` (0: unknown) is unknown. The next message orders it again; a newer
        version settles it.
        """
        doubt = self.orders.get(revision)
        self._drop_writes_until(revision)
        if doubt is not None:
            # Without a version, all doubts stay open until a write is confirmed.
            is_known = version and (self.uncertain_version or not self.uncertain_permits)
            self.uncertain_version = max(version, self.uncertain_version) if is_known else 0
            self.uncertain_permits = _extremes((*self.uncertain_permits, doubt))
        self._update_stored()
        self._update_reserved()

    def _drop_writes_until(self, revision: int) -> None:
        """End the writes up to ``revision``: writes go one at a time, so earlier ones have ended or were never sent."""
        if self.pending is not None and self.pending.revision <= revision:
            self.pending = None
        self.orders = {number: permit for number, permit in self.orders.items() if number > revision}
        self.offers = {number: offer for number, offer in self.offers.items() if number > revision}


def _extremes(permits: tuple[Resources, ...]) -> tuple[Resources, ...]:
    low = high = permits[0]
    for permit in permits[1:]:
        low, high = low.at_most(permit), high.at_least(permit)
    return (low,) if low == high else (low, high)
