"""The requests of agents, and how the writes of their permits ended (S4.5)."""

from __future__ import annotations

from msgspec.structs import replace

from protocol.messages import AgentRequest, ObjectName
from protocol.units import Instant
from scheduler_plugin.ledger.facts import VmFacts
from scheduler_plugin.ledger.outcomes import Decision
from scheduler_plugin.ledger.parts.part import Effects, LedgerPart
from scheduler_plugin.ledger.permit_rule import decide


class AgentPermits(LedgerPart):
    """Decides requests, and hears what the API holds."""

    def uid_of(self, pod: ObjectName) -> str | None:
        """The UID of the pod of that name that has a claim."""
        return self._state.uids.get(pod)

    def decide(self, uid: str, request: AgentRequest, now: Instant) -> Decision:
        """One agent's request. Raises ``UnknownPodError`` and ``NotReadyError``; then nothing has changed."""
        self._require_ready()
        return decide(self._state, self._claim(uid), request, now)

    def permit_stored(self, revision: int, vm: VmFacts) -> Effects:
        """A ``PersistPermit`` was confirmed; ``vm`` is the object as the API returned it."""
        account = self._state.vms.get(vm.name)
        if account is None:
            return ()
        known, reserved = account.facts, account.reserved
        account.stored(revision, vm)
        is_moving = bool(self._state.migrations.of(vm.name))  # then room for it is looked for again
        if reserved == account.reserved and not is_moving and known and _is_same_but_for_permit(known, vm):
            return ()
        self._state.recount(vm.name)
        self._state.migrations.disturb(vm.name)
        self._state.settle_vm(account)
        return self._finish(outside=True)

    def permit_unsure(self, revision: int, vm: ObjectName) -> Effects:
        """A ``PersistPermit`` failed, or its outcome is unknown: the agent must not be answered with it."""
        account = self._state.vms.get(vm)
        if account is not None:
            account.unsure(revision)
        return ()


def _is_same_but_for_permit(known: VmFacts, vm: VmFacts) -> bool:
    return vm == replace(known, version=vm.version, permit=vm.permit)
