"""All books together: nodes, claims and VM accounts, and the only code that changes a sum.

Rules that hold here:

- A pod has at most one claim, found by its UID; it is opened, moved and closed here, so a release happens exactly once
  however often it is asked for.
- The UIDs of pods that are gone are remembered, so that a late event cannot bring one back.
- Every step ends with ``finish``, which publishes the new rooms and says where freed room is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocol.messages import ObjectName
from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.accounts.claims import Claim, ClaimState, VmAccount
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.facts import NodeFacts, PodFacts, VmFacts
from scheduler_plugin.ledger.moves import Migrations
from scheduler_plugin.ledger.outcomes import RoomFreed
from scheduler_plugin.placement import Room
from scheduler_plugin.placement.node_index import NodeIndexes
from scheduler_plugin.placement.waiting_pods import WaitingPods

REMEMBERED_GONE: Final = 20_000
"""How many UIDs of gone pods are kept; a late event older than so many deletions would count as news."""


class LedgerState:
    """The mutable state behind the ``Ledger``; nobody else holds it."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeAccount] = {}
        self.claims: dict[str, Claim] = {}
        self.uids: dict[ObjectName, str] = {}
        self.vms: dict[ObjectName, VmAccount] = {}
        self.rooms: dict[str, Room] = {}
        self.node_indexes = NodeIndexes(self.rooms)
        self.waiting = WaitingPods()
        self.migrations = Migrations()
        self.strained: set[str] = set()
        self._revision = 0
        self._gone: dict[str, None] = {}
        self._touched: dict[str, Room] = {}

    def next_revision(self) -> int:
        """A number above all given out before: outcomes of writes are told apart by it."""
        self._revision += 1
        return self._revision

    def is_gone(self, uid: str) -> bool:
        """Whether the pod was deleted or has finished."""
        return uid in self._gone

    def open_claim(self, pod: PodFacts, node: str, state: ClaimState) -> Claim:
        """A claim of a pod that has none."""
        claim = Claim(pod, node, state, None if pod.vm is None else self.vms.setdefault(pod.vm, VmAccount()))
        self.claims[pod.uid] = claim
        if state is not ClaimState.INCOMING:
            self.uids[pod.name] = pod.uid
        if claim.vm is not None:
            claim.vm.claims.append(claim)
        self.migrations.disturb(pod.vm)
        self._enter(claim)
        return claim

    def close_claim(self, uid: str) -> None:
        """Releases everything that the pod holds; nothing where it holds nothing."""
        claim = self.claims.pop(uid, None)
        if claim is None:
            return
        if self.uids.get(claim.pod.name) == uid:
            del self.uids[claim.pod.name]
        self.migrations.disturb(claim.pod.vm)
        self._leave(claim)
        if claim.vm is not None and claim.pod.vm is not None:
            claim.vm.claims.remove(claim)
            if not claim.vm.claims:
                claim.vm.agent_gone()
                self.drop_unneeded_vm(claim.pod.vm)

    def pod_gone(self, uid: str) -> None:
        """The pod is deleted or has finished, for good."""
        self.close_claim(uid)
        self.waiting.forget(uid)
        self._gone[uid] = None
        if len(self._gone) > REMEMBERED_GONE:
            del self._gone[next(iter(self._gone))]

    def move_claim(self, claim: Claim, node: str) -> None:
        """The pod turns out to be on another node than reserved."""
        self._leave(claim)
        claim.node = node
        self._enter(claim)
        self.migrations.disturb(claim.pod.vm)

    def change(
        self,
        claim: Claim,
        *,
        unmet: Resources | None = None,
        is_migrating: bool | None = None,
    ) -> None:
        """Brings the claim and its node's sums to what is known now, with the given changes."""
        unmet = claim.unmet if unmet is None else unmet
        is_migrating = claim.is_migrating if is_migrating is None else is_migrating
        reserved = claim.size
        if reserved == claim.reserved and unmet == claim.unmet and is_migrating is claim.is_migrating:
            return
        book = self._touch(claim.node)
        if claim.is_migrating or is_migrating:
            gone = claim.reserved + claim.unmet if claim.is_migrating else ZERO
            come = reserved + unmet if is_migrating else ZERO
            book.migrating = book.migrating - gone + come
        if unmet != claim.unmet:
            book.unmet = book.unmet - claim.unmet + unmet
        if reserved != claim.reserved:
            book.replace(claim.reserved, reserved)
        claim.reserved, claim.unmet, claim.is_migrating = reserved, unmet, is_migrating

    def settle_vm(self, account: VmAccount) -> None:
        """The account has changed: so do the claims of all its pods (two while it migrates)."""
        for claim in account.claims:
            self.change(claim)

    def know_node(self, name: str, facts: NodeFacts | None) -> None:
        """New facts about a node, or None: it is gone, and its book stays only while claims are left."""
        if facts is None and name not in self.nodes:
            return
        book = self._touch(name)
        if facts != book.facts:
            self.migrations.disturb_bound_for(name)
        book.know(facts)

    def know_vm(self, facts: VmFacts, now: Instant, *, at_rebuild: bool) -> None:
        """New facts about a VM; a new VM of the same name gets a fresh account, its old pods keep what they have."""
        account = self.vms.setdefault(facts.name, VmAccount())
        if account.facts is not None and account.facts.uid == facts.uid:
            account.observe(facts)
        else:
            for claim in account.claims:
                claim.kept = claim.reserved if account.facts is not None else ZERO
            account.open(facts, now, at_rebuild=at_rebuild)
        self.migrations.disturb(facts.name)
        self.settle_vm(account)

    def lose_vm(self, name: ObjectName) -> None:
        """The VM is deleted; its pods hold their reservations until they go."""
        account = self.vms.get(name)
        if account is not None:
            account.is_deleted = True
            self.migrations.disturb(name)
            self.drop_unneeded_vm(name)

    def drop_unneeded_vm(self, name: ObjectName) -> None:
        """Forgets an account that neither a VM nor a pod needs any more."""
        account = self.vms.get(name)
        if account is not None and not account.claims and (account.facts is None or account.is_deleted):
            del self.vms[name]

    def finish(self, *, outside: bool) -> tuple[RoomFreed, ...]:
        """Ends a step. ``outside``: facts from outside caused it, so it may have pushed a node over its total."""
        freed = []
        for name, before in self._touched.items():
            book = self.nodes[name]
            book.forced = book.over if outside else book.forced.at_most(book.over)
            self.node_indexes.changed(name)
            if book.is_strained:
                self.strained.add(name)
            else:
                self.strained.discard(name)
            if book.facts is None:
                self.rooms.pop(name, None)
                if not book.claims:
                    del self.nodes[name]
            else:
                self.rooms[name] = book.room
                if self.waiting.would_use(before, book.room):
                    freed.append(RoomFreed(name))
        self._touched.clear()
        return tuple(freed)

    def unlisted(self, uids: Iterable[str]) -> list[Claim]:
        """The claims whose pods are not in a complete list, though they may be expected there."""
        listed = set(uids)
        claims = self.claims.items()
        return [claim for uid, claim in claims if uid not in listed and claim.state is not ClaimState.INCOMING]

    def _touch(self, name: str) -> NodeAccount:
        book = self.nodes.get(name)
        if book is None:
            book = self.nodes[name] = NodeAccount(name)
        self._touched.setdefault(name, book.room)
        return book

    def _enter(self, claim: Claim) -> None:
        self._touch(claim.node).claims[claim.pod.uid] = claim
        unmet, claim.unmet = claim.unmet, ZERO
        is_migrating, claim.is_migrating = claim.is_migrating, False
        self.change(claim, unmet=unmet, is_migrating=is_migrating)

    def _leave(self, claim: Claim) -> None:
        book = self._touch(claim.node)
        del book.claims[claim.pod.uid]
        book.replace(claim.reserved, ZERO)
        book.unmet = book.unmet - claim.unmet
        if claim.is_migrating:
            book.migrating = book.migrating - claim.reserved - claim.unmet
        claim.reserved = ZERO
