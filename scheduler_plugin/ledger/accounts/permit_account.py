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

from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.accounts.agent_messages import Message, OtherAgent, follows
from scheduler_plugin.ledger.accounts.outstanding_permits import SETTLE
from scheduler_plugin.ledger.accounts.permit_state import SILENT, Offer
from scheduler_plugin.ledger.accounts.permit_writes import PermitWrites
from scheduler_plugin.ledger.outcomes import PersistPermit


class PermitAccount(PermitWrites):
    """The account of one VM: it answers agents."""

    __slots__ = ()

    def rival_of(self, message: Message, now: Instant, alive: Container[str]) -> str | None:
        """The agent that is heard instead of the sender, if it is another one in a pod that is ``alive``."""
        if self.agent == message.agent or self.agent is None or self._has_moved(message):
            return None
        return self.agent if self.agent in alive and now < self.turn_until else None

    def _has_moved(self, message: Message) -> bool:
        """Return True if the VM runs in another pod than that of the last message."""
        return self.heard_from is not None and message.pod != self.heard_from

    def turn_away(self, message: Message, now: Instant) -> None:
        """Records what an agent that is refused says that it holds.

        What is reserved changes with the next message of the agent that is answered.
        """
        says = (message.last_permit or ZERO).at_most(self.reserved)
        other = self.others.get(message.agent, OtherAgent(None, ZERO))
        self.others[message.agent] = other.after(message.sequence, says, now)

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
        return self.has_agent and (bool(self.unnamed_since) or not permit.within(self.stored_low))

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
