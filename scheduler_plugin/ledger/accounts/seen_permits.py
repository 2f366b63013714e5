"""The VM's object taken into its account, and the end of what lapses with time."""

from __future__ import annotations

from msgspec.structs import replace

from protocol.units import Instant
from scheduler_plugin.ledger.accounts.agent_messages import OtherAgent
from scheduler_plugin.ledger.accounts.outstanding_permits import SETTLE, OutstandingPermits
from scheduler_plugin.ledger.accounts.permit_state import LONG_AGO, SILENT, PermitState
from scheduler_plugin.ledger.facts import WITHOUT_GUEST, VmFacts


class SeenPermits(PermitState):
    """An account that follows the VM's object."""

    __slots__ = ()

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
            # Messages that the process before has answered may still be under way.
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
        # The agent that was answered last keeps its turn across a restart of the scheduler.
        self.turn_until = Instant(now + SILENT)
        for agent in others:
            self.others[agent] = OtherAgent(None, self.promises.held)

    def observe(self, facts: VmFacts) -> None:
        """Newer facts of the same VM; older ones than those known change nothing."""
        # The VM may still have whatever it had before its object became unreadable.
        if self.facts is not None and facts.unreadable:
            facts = self._at_most(facts, self.facts)
        if self.facts is None or facts.version < self.facts.version:
            return
        # The open writes were for an older version of the object.
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
        """End what agents hold no longer. Returns True if that changes what is reserved.

        An agent of a VM that was opted out ``SETTLE`` ago holds nothing once its permit is taken back.
        """
        if self.has_agent and not self.is_unproven:
            return False
        before = self.reserved
        # Not heard of since a rebuild, and nothing was ever persisted: the agent holds nothing.
        if self.is_unproven and self.permit is None and now >= self.trusted_from:
            self.promises = OutstandingPermits()
        self._note_opt_out(now)
        self._settle()
        return self.reserved != before

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
        self._forget_agent()
        self._derive()

    def _forget_agent(self) -> None:
        self.permit, self.promises, self.heard, self.heard_from = None, OutstandingPermits(), None, None
        self.agent, self.others, self.offers, self.refusal = None, {}, {}, ""
        self.heard_at = self.trusted_from = self.turn_until = LONG_AGO
        self.is_unproven = False
