"""Read-only views of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final

from protocol.messages import ObjectName
from protocol.units import Instant, Seconds
from scheduler_plugin.ledger.accounts.claims import Claim, VmAccount
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.explain import ClaimExplanation, explain
from scheduler_plugin.ledger.facts import WITHOUT_GUEST
from scheduler_plugin.ledger.moves import Migration
from scheduler_plugin.ledger.parts.part import LedgerPart
from scheduler_plugin.placement import Room

LATELY: Final = Seconds(60.0)
"""An agent that has asked within this time counts as heard: it asks at least once in 15 s."""


class LedgerViews(LedgerPart):
    """The accounts, and explanations made of them."""

    @property
    def rooms(self) -> Mapping[str, Room]:
        """The room on every known node."""
        return self._state.rooms

    @property
    def nodes(self) -> Mapping[str, NodeAccount]:
        """Every node's book; read only."""
        return self._state.nodes

    @property
    def claims(self) -> Mapping[str, Claim]:
        """Every claim by the pod's UID; read only."""
        return self._state.claims

    @property
    def vms(self) -> Mapping[ObjectName, VmAccount]:
        """Every VM's account; read only."""
        return self._state.vms

    @property
    def migrations(self) -> Mapping[ObjectName, Migration]:
        """Every migration, active or ended, that is ordered or in the API; read only."""
        return self._state.migrations.named

    def migrations_of(self, vm: ObjectName) -> Sequence[Migration]:
        """The VM's migrations, oldest first; read only."""
        return self._state.migrations.of(vm)

    @property
    def strained(self) -> Set[str]:
        """The nodes that VMs may have to leave: all others need no look (S4.8)."""
        return self._state.strained

    @property
    def waiting(self) -> int:
        """The number of pods that wait for room."""
        return len(self._state.waiting)

    def scaled_vms(self, now: Instant) -> tuple[int, int]:
        """The numbers of VMs with a guest and an agent: those whose agent was heard lately, and the others."""
        is_heard = [self._is_heard(vm, now) for vm in self._state.vms.values() if self._is_scaled(vm)]
        return is_heard.count(True), is_heard.count(False)

    def is_silent(self, vm: VmAccount, now: Instant) -> bool:
        """Return True if an agent is to size the VM and was not heard lately. Only the leading scheduler can tell."""
        return self._is_scaled(vm) and not self._is_heard(vm, now)

    @staticmethod
    def _is_heard(vm: VmAccount, now: Instant) -> bool:
        return now - vm.heard_at <= LATELY

    def _is_scaled(self, vm: VmAccount) -> bool:
        """Return True if one of our agents is to size the VM."""
        if vm.facts is None or not vm.facts.has_agent or vm.facts.phase in WITHOUT_GUEST:
            return False
        # VMs of another scheduler have agents that speak to that one.
        return any(claim.pod.scheduler == self._state.scheduler for claim in vm.claims)

    def explain(self, uid: str, now: Instant) -> ClaimExplanation:
        """Everything known of one pod. Raises ``UnknownPodError``."""
        claim = self._claim(uid)
        migrations = () if claim.pod.vm is None else self._state.migrations.of(claim.pod.vm)
        node, follows = self._state.nodes[claim.node], self._state.follows_requests
        return explain(claim, node, migrations, now, follows_requests=follows)
