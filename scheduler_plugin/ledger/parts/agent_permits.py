"""The requests of agents, and how the writes of their permits ended (S4.5)."""

from __future__ import annotations

from protocol.messages import AgentRequest, ObjectName
from protocol.units import Instant, Resources
from scheduler_plugin.ledger.accounts.claims import VmAccount
from scheduler_plugin.ledger.believed import believed, judge_again
from scheduler_plugin.ledger.facts import VmFacts
from scheduler_plugin.ledger.outcomes import PermitDecision, PersistPermit
from scheduler_plugin.ledger.parts.part import Effects, LedgerPart
from scheduler_plugin.ledger.permit_rule import decide


class AgentPermits(LedgerPart):
    """Decides requests, and hears what the API holds."""

    def uid_of(self, pod: ObjectName) -> str | None:
        """The UID of the pod of that name that has a claim."""
        return self._state.uids.get(pod)

    def decide(self, uid: str, request: AgentRequest, now: Instant, agent: str = "") -> PermitDecision:
        """One request of an ``agent``, by the UID of its pod; empty: the one in the VM's pod.

        Raises ``UnknownPodError`` and ``NotReadyError``; then nothing has changed. Raises ``OtherAgentError``.
        """
        self._require_ready()
        claim = self._claim(uid)
        account = claim.vm
        # A part of the object did not count for lack of room; some may have become free.
        if account is not None and account.facts is not None and account.facts.said is not None:
            judge_again(self._state, account)
        return decide(self._state, claim, request, agent or uid, now)

    def wants(self, order: PersistPermit) -> bool:
        """Return True if the write still makes sense: a permit is taken back only from a VM without an agent."""
        account = self._state.vms.get(order.vm)
        # Autoscaling may have been switched on again while the write waited in its queue.
        return not order.takes_back or account is None or not (account.has_agent and account.claims)

    def permit_stored(self, revision: int, vm: VmFacts) -> Effects:
        """A ``PersistPermit`` was confirmed; ``vm`` is the object as the API returned it."""
        account = self._state.vms.get(vm.name)
        if account is None:
            return ()
        before, reserved = account.facts, account.reserved
        account.confirmed(revision, believed(self._state, vm))
        return self._written(account, before, reserved)

    def permit_refused(self, revision: int, vm: ObjectName, why: str, facts: VmFacts | None = None) -> Effects:
        """A ``PersistPermit`` has certainly not stored its permit: the agent must not be answered with it.

        ``facts`` is the object as the API returned it, if something else was stored.
        """
        account = self._state.vms.get(vm)
        if account is None:
            return ()
        before, reserved = account.facts, account.reserved
        account.refused(revision, why, facts and believed(self._state, facts))
        return self._written(account, before, reserved)

    def permit_unsure(self, revision: int, vm: ObjectName, version: int = 0) -> Effects:
        """The outcome of a ``PersistPermit`` is unknown: the agent must not be answered with it.

        ``version`` is the resourceVersion that the write named, 0 if that is not known.
        """
        account = self._state.vms.get(vm)
        if account is None:
            return ()
        before, reserved = account.facts, account.reserved
        account.unsure(revision, version)
        return self._written(account, before, reserved)

    def _written(self, account: VmAccount, known: VmFacts | None, reserved: Resources) -> Effects:
        """A write of the VM's permit has ended; before, this was ``known`` and ``reserved``."""
        vm, name = account.facts, account.name
        if vm is None or name is None:
            return ()
        is_moving = bool(self._state.migrations.of(name))  # then room for it is looked for again
        # Most writes change nothing but the annotation: then no claim of the VM can have changed.
        if reserved == account.reserved and not is_moving and known and _is_same_but_for_permit(known, vm):
            return ()
        self._state.recount(name)
        self._state.migrations.disturb(name)
        self._state.settle_vm(account)
        return self._finish(outside=True)


def _is_same_but_for_permit(known: VmFacts, vm: VmFacts) -> bool:
    return vm == known.with_permit(vm.version, vm.permit)
