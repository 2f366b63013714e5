"""Facts of the Kubernetes API go in here: complete lists, and one object at a time."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.messages import ObjectName
from protocol.units import Instant
from scheduler_plugin.ledger import believed, binding, migration_reservations
from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.facts import MigrationFacts, NodeFacts, PodFacts, VmFacts
from scheduler_plugin.ledger.outcomes import Effect, ReadPod
from scheduler_plugin.ledger.parts.part import Effects, LedgerPart


class ClusterFacts(LedgerPart):
    """Takes in facts. Each replaces all older ones about the same object."""

    def resync(
        self,
        nodes: Iterable[NodeFacts],
        pods: Iterable[PodFacts],
        vms: Iterable[VmFacts],
        now: Instant,
        migrations: Iterable[MigrationFacts] = (),
    ) -> Effects:
        """Takes in complete lists: at the start, and whenever a watch had to list again. Ready afterwards.

        A pod that is missing is gone, unless its bind is younger than the list may be: that one is read again.
        """
        state, all_nodes, listed, is_first = self._state, list(nodes), list(pods), not self.is_ready
        # Nodes before VMs before pods: a claim is bounded by its node, and takes its size from its VM.
        self._list_nodes(all_nodes)
        self._list_vms(believed.at_rebuild(vms, all_nodes, listed) if is_first else list(vms), now)
        doubtful = self._list_pods(listed)
        doubtful += migration_reservations.relist(state, list(migrations), now)
        if is_first:
            migration_reservations.fit_left(state)
            state.rebuilt(now)
        state.lapse(now)
        self.is_ready = True
        effects = (*doubtful, *self._finish(outside=True))
        # Pods that the previous process refused wait for room here too: kube-scheduler does not ask about them again
        # by itself.
        return (*effects, *binding.find_waiting(state, listed)) if is_first else effects

    def _list_nodes(self, nodes: list[NodeFacts]) -> None:
        for node in nodes:
            self._know_node(node)
        for name in self._state.nodes.keys() - {node.name for node in nodes}:
            self._state.know_node(name, None)

    def _know_node(self, node: NodeFacts) -> None:
        account = self._state.nodes.get(node.name)
        # A node that has claims but was never known has not bounded its VMs so far.
        is_new = account is not None and account.whole is None
        self._state.know_node(node.name, node)
        if is_new:
            believed.node_known(self._state, node.name)

    def _list_vms(self, vms: list[VmFacts], now: Instant) -> None:
        for vm in vms:
            # At a rebuild the whole list was judged together already.
            facts = believed.believed(self._state, vm) if self.is_ready else vm
            self._state.know_vm(facts, now, at_rebuild=not self.is_ready)
        for name in self._state.vms.keys() - {vm.name for vm in vms}:
            self._state.lose_vm(name)

    def _list_pods(self, pods: list[PodFacts]) -> list[Effect]:
        """Take in the pods; returns reads of those that are missing but may be younger than the list."""
        doubtful: list[Effect] = []
        for pod in pods:
            binding.see_pod(self._state, pod, at_rebuild=not self.is_ready)
        uids = {pod.uid for pod in pods}
        for claim in [claim for uid, claim in self._state.claims.items() if uid not in uids]:
            # It was seen bound before the list was made, and is not on it.
            if claim.state is ClaimState.BOUND:
                self._state.pod_gone(claim.pod.uid)
            elif claim.state is not ClaimState.INCOMING:
                doubtful.append(ReadPod(claim.pod.uid, claim.pod.name))
        self._state.waiting.listed(uids)
        return doubtful

    def see_node(self, node: NodeFacts) -> Effects:
        """A node appeared or changed, or its policy did."""
        self._know_node(node)
        return self._finish(outside=True)

    def lose_node(self, name: str) -> Effects:
        """The node was deleted. Claims of pods still named on it stay on its book until the pods go."""
        self._state.know_node(name, None)
        return self._finish(outside=True)

    def see_pod(self, pod: PodFacts) -> Effects:
        """A pod appeared or changed. One that is on another node than reserved takes its reservation along."""
        binding.see_pod(self._state, pod)
        return self._finish(outside=True)

    def lose_pod(self, uid: str) -> Effects:
        """The pod was deleted: whatever it held is free."""
        self._state.pod_gone(uid)
        return self._finish(outside=True)

    def see_vm(self, vm: VmFacts, now: Instant) -> Effects:
        """A VirtualMachine appeared or changed."""
        self._state.know_vm(believed.believed(self._state, vm), now, at_rebuild=False)
        return self._finish(outside=True)

    def lose_vm(self, name: ObjectName) -> Effects:
        """The VirtualMachine was deleted. Its pods hold their reservations until they go."""
        self._state.lose_vm(name)
        return self._finish(outside=True)

    def forget_versions(self) -> None:
        """The API has gone back to an earlier state (its store was restored): what it says next is the newest there is.

        Nothing is decided until complete lists have been taken in (``resync``).
        """
        self._state.forget_versions()
        self.is_ready = False

    def pass_time(self, now: Instant) -> Effects:
        """Ends promises to agents not heard from since a rebuild, and wishes of those that have fallen silent.

        Call it every few seconds.
        """
        self._state.lapse(now)
        return self._finish(outside=True)

    def see_migration(self, migration: MigrationFacts, now: Instant) -> Effects:
        """A VirtualMachineMigration appeared or changed, or was read."""
        migration_reservations.see_migration(self._state, migration, now)
        return self._finish(outside=True)

    def lose_migration(self, name: ObjectName) -> Effects:
        """The VirtualMachineMigration was deleted: its reservation and its order end."""
        migration_reservations.lose_migration(self._state, name)
        return self._finish(outside=True)
