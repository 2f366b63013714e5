"""The one door into the scheduler's state: facts, requests and outcomes go in, decisions and effects come out.

Rules that hold here:

- One writer calls these methods, one at a time; each leaves the books consistent, so an effect that is never carried
  out only delays. Nothing here reads a clock: ``now`` is an argument and never goes back.
- Everything about the API may arrive late, twice or never. What matters is the newest fact, and nothing is freed twice.
- A process that begins to decide, after a start or a fail-over, does so with a new ``Ledger`` and fresh lists: one that
  only watched does not know what the one before it has answered.
- ``is_ready`` is false until a complete list has been taken in (``resync``); nothing is decided before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from protocol.messages import AgentRequest, ObjectName
from protocol.ranking.config import RankingConfig
from protocol.units import Instant, Resources
from scheduler_plugin.ledger import binding, following
from scheduler_plugin.ledger.books import Books
from scheduler_plugin.ledger.claims import Claim, ClaimState
from scheduler_plugin.ledger.explain import Explanation, explain
from scheduler_plugin.ledger.facts import MigrationFacts, NodeFacts, PodFacts, VmFacts
from scheduler_plugin.ledger.moves import Creation, Migration, Move
from scheduler_plugin.ledger.nodes import NodeBook
from scheduler_plugin.ledger.outcomes import (
    Booking,
    Decision,
    Effect,
    NotReadyError,
    ReadPod,
    Reservation,
    UnknownPodError,
)
from scheduler_plugin.ledger.permits import VmAccount
from scheduler_plugin.ledger.requests import decide
from scheduler_plugin.placement import Filtered, Room

Effects = tuple[Effect, ...]


class Ledger:
    """Who has reserved what on which node, and what every VM may use."""

    def __init__(self) -> None:
        self._books = Books()
        self.is_ready = False

    # Facts from the API -----------------------------------------------------------------------------------------

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
        books = self._books
        known_nodes, known_vms, known_pods = list(nodes), list(vms), list(pods)
        for node in known_nodes:
            books.know_node(node.name, node)
        for name in books.nodes.keys() - {node.name for node in known_nodes}:
            books.know_node(name, None)
        for vm in known_vms:
            books.know_vm(vm, now, at_rebuild=not self.is_ready)
        for vm_name in books.vms.keys() - {vm.name for vm in known_vms}:
            books.lose_vm(vm_name)
        for pod in known_pods:
            binding.see_pod(books, pod)
        doubtful: list[Effect] = []
        for claim in books.unlisted(pod.uid for pod in known_pods):
            if claim.state is ClaimState.BOUND:
                books.pod_gone(claim.pod.uid)
            else:
                doubtful.append(ReadPod(claim.pod.uid, claim.pod.name))
        doubtful += following.relist(books, list(migrations), now)
        self.is_ready = True
        return (*doubtful, *self._finish(outside=True))

    def see_node(self, node: NodeFacts) -> Effects:
        """A node appeared or changed, or its policy did."""
        self._books.know_node(node.name, node)
        return self._finish(outside=True)

    def lose_node(self, name: str) -> Effects:
        """The node was deleted. Claims of pods still named on it stay on its book until the pods go."""
        self._books.know_node(name, None)
        return self._finish(outside=True)

    def see_pod(self, pod: PodFacts) -> Effects:
        """A pod appeared or changed. One that is on another node than reserved takes its reservation along."""
        binding.see_pod(self._books, pod)
        return self._finish(outside=True)

    def lose_pod(self, uid: str) -> Effects:
        """The pod was deleted: whatever it held is free."""
        self._books.pod_gone(uid)
        return self._finish(outside=True)

    def see_vm(self, vm: VmFacts, now: Instant) -> Effects:
        """A VirtualMachine appeared or changed."""
        self._books.know_vm(vm, now, at_rebuild=False)
        return self._finish(outside=True)

    def lose_vm(self, name: ObjectName) -> Effects:
        """The VirtualMachine was deleted. Its pods hold their reservations until they go."""
        self._books.lose_vm(name)
        return self._finish(outside=True)

    def see_migration(self, migration: MigrationFacts, now: Instant) -> Effects:
        """A VirtualMachineMigration appeared or changed, or was read."""
        following.see_migration(self._books, migration, now)
        return self._finish(outside=True)

    def lose_migration(self, name: ObjectName) -> Effects:
        """The VirtualMachineMigration was deleted: its booking and its order end."""
        following.lose_migration(self._books, name)
        return self._finish(outside=True)

    # Migrations that we order -----------------------------------------------------------------------------------

    def book_move(self, move: Move, migration: ObjectName, now: Instant) -> Booking:
        """Books room on the target and gives the order to the source, or refuses (S4.9). Raises ``NotReadyError``.

        ``migration`` is the name that the object will have. Carry out the effects, then report what became of it.
        """
        self._require_ready()
        booking = following.book_move(self._books, move, migration, now)
        self._finish(outside=False)
        return booking

    def migration_created(self, name: ObjectName) -> Effects:
        """The API made a migration that we ordered; it will be seen."""
        return following.migration_answered(self._books, name, Creation.DONE)

    def migration_refused(self, name: ObjectName) -> Effects:
        """The API certainly did not make it, or nobody has asked it to: booking and order end."""
        following.migration_refused(self._books, name)
        return self._finish(outside=False)

    def migration_unsure(self, name: ObjectName) -> Effects:
        """Nobody knows whether the API made it: booking and order stay until it is read."""
        return following.migration_answered(self._books, name, Creation.UNSURE)

    # The scheduler's verbs --------------------------------------------------------------------------------------

    def filter(self, pod: PodFacts, names: list[str]) -> Filtered:
        """Where the pod fits. One that fits nowhere waits. Raises ``NotReadyError``."""
        self._require_ready()
        return binding.filter_pod(self._books, pod, names)

    def rank_by(self, ranking: RankingConfig) -> None:
        """How scores are made from now on; prices come with the nodes' facts (S2.8b)."""
        self._books.surveys.rank_by(ranking)

    def scores(self, pod: PodFacts, names: list[str]) -> list[int]:
        """Each node's score for the pod, 0-10, in the order of ``names``. Raises ``NotReadyError``."""
        self._require_ready()
        return self._books.surveys.of(binding.claim_of(self._books, pod)).scores(names)

    def reserve(self, pod: PodFacts, node: str) -> Reservation:
        """Bind: reserves room or refuses. Raises ``NotReadyError``, and ``UnknownPodError`` for a pod that is gone."""
        self._require_ready()
        reservation = binding.reserve(self._books, pod, node)
        self._finish(outside=False)
        return reservation

    def bind_done(self, uid: str, node: str) -> Effects:
        """The API accepted a bind."""
        binding.bind_done(self._books, uid, node)
        return ()

    def bind_refused(self, uid: str, node: str) -> Effects:
        """The API certainly refused a bind. A conflict is not certain: report ``bind_unknown``."""
        binding.bind_refused(self._books, uid, node)
        return self._finish(outside=False)

    def bind_unknown(self, uid: str, node: str) -> Effects:
        """A bind timed out, broke off, or met a conflict."""
        return binding.bind_unknown(self._books, uid, node)

    def pod_read(self, uid: str, found: PodFacts | None) -> Effects:
        """What a fresh read of the pod found, None where there is no such pod (or one with another UID)."""
        if not binding.pod_read(self._books, uid, found) and found is not None:
            binding.see_pod(self._books, found)
        return self._finish(outside=True)

    # The agents' requests ---------------------------------------------------------------------------------------

    def uid_of(self, pod: ObjectName) -> str | None:
        """The UID of the pod of that name that has a claim."""
        return self._books.uids.get(pod)

    def decide(self, uid: str, request: AgentRequest, now: Instant) -> Decision:
        """One agent's request. Raises ``UnknownPodError`` and ``NotReadyError``; then nothing has changed."""
        self._require_ready()
        return decide(self._books, self._claim(uid), request, now)

    def permit_stored(self, revision: int, vm: VmFacts) -> Effects:
        """A ``PersistPermit`` was confirmed; ``vm`` is the object as the API returned it."""
        account = self._books.vms.get(vm.name)
        if account is not None:
            account.stored(revision, vm)
            self._books.migrations.disturb(vm.name)
            self._books.settle_vm(account)
        return self._finish(outside=True)

    def permit_unsure(self, revision: int, vm: ObjectName) -> Effects:
        """A ``PersistPermit`` failed, or nobody knows: the agent must not be answered with it."""
        account = self._books.vms.get(vm)
        if account is not None:
            account.unsure(revision)
        return ()

    # Views ------------------------------------------------------------------------------------------------------

    @property
    def rooms(self) -> Mapping[str, Room]:
        """The room on every known node."""
        return self._books.rooms

    @property
    def nodes(self) -> Mapping[str, NodeBook]:
        """Every node's book; read only."""
        return self._books.nodes

    @property
    def claims(self) -> Mapping[str, Claim]:
        """Every claim by the pod's UID; read only."""
        return self._books.claims

    @property
    def vms(self) -> Mapping[ObjectName, VmAccount]:
        """Every VM's account; read only."""
        return self._books.vms

    @property
    def migrations(self) -> Mapping[ObjectName, Migration]:
        """Every migration, active or ended, that is ordered or in the API; read only."""
        return self._books.migrations.named

    def migrations_of(self, vm: ObjectName) -> Sequence[Migration]:
        """The VM's migrations, oldest first; read only."""
        return self._books.migrations.of(vm)

    @property
    def strained(self) -> Set[str]:
        """The nodes that VMs may have to leave: all others need no look (S4.8)."""
        return self._books.strained

    @property
    def waiting(self) -> int:
        """How many pods wait for room."""
        return len(self._books.waiting)

    def claim_of(self, pod: PodFacts) -> Resources:
        """What the pod would reserve. Raises ``NotReadyError`` while its VM is not known."""
        return binding.claim_of(self._books, pod)

    def explain(self, uid: str, now: Instant) -> Explanation:
        """Everything known of one pod. Raises ``UnknownPodError``."""
        claim = self._claim(uid)
        migrations = () if claim.pod.vm is None else self._books.migrations.of(claim.pod.vm)
        return explain(claim, self._books.nodes[claim.node], migrations, now)

    def _claim(self, uid: str) -> Claim:
        claim = self._books.claims.get(uid)
        if claim is None:
            raise UnknownPodError(f"no pod with UID {uid} is on the books")
        return claim

    def _finish(self, *, outside: bool) -> Effects:
        following.settle(self._books)
        return self._books.finish(outside=outside)

    def _require_ready(self) -> None:
        if not self.is_ready:
            raise NotReadyError("the ledger has not read the cluster yet")
