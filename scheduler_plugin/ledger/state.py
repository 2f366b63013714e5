"""All accounts: nodes, claims and VMs. Only this module changes their sums.

Rules:

- A pod has at most one claim, by its UID. Only this module opens, moves and closes it, so nothing is freed twice.
- Every step ends with ``finish``, which publishes the new rooms and wakes pods that wait for them.
"""

from __future__ import annotations

from typing import Final

from protocol.messages import ObjectName
from protocol.names import SCHEDULER_NAME
from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.accounts.claims import NONE_DEFERRED, Claim, ClaimState, DeferredResizes, VmAccount
from scheduler_plugin.ledger.accounts.denials import NO_DENIALS
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.accounts.vm_accounts import VmAccounts
from scheduler_plugin.ledger.accounts.waiting_pods import AssumedPods, SampledPods, WaitingPods
from scheduler_plugin.ledger.accounts.waking import NO_WAKE_NEED
from scheduler_plugin.ledger.facts import NodeFacts, PodFacts, VmFacts
from scheduler_plugin.ledger.moves import Migrations
from scheduler_plugin.ledger.outcomes import Effect, Effects, NotReadyError, PersistPermit, ReadPod, RoomFreed
from scheduler_plugin.placement.node_index import NodeIndexes
from scheduler_plugin.placement.verdict import Room
from scheduler_plugin.texts import refusals

MAX_GONE: Final = 20_000
"""Maximum number of UIDs of gone pods to remember; an event delayed by more deletions would restore its pod."""


class LedgerState:
    """Mutable state of a ``Ledger``, private to it.

    ``vms`` are keyed by the names that VMs have now. ``is_ready`` is False until the first complete lists.
    ``lacks_headroom``: the cluster has lacked headroom for long.
    """

    def __init__(self) -> None:
        self.is_ready = False
        self.nodes: dict[str, NodeAccount] = {}
        self.claims: dict[str, Claim] = {}
        self.uids: dict[ObjectName, str] = {}
        self.rooms: dict[str, Room] = {}
        self.node_indexes = NodeIndexes(self.rooms)
        self.waiting = WaitingPods()
        self.assumed, self.sampled = AssumedPods(), SampledPods()
        self.migrations = Migrations()
        self.accounts = VmAccounts(self.migrations)
        self.vms = self.accounts.named
        self.strained: set[str] = set()
        self.crowded: set[str] = set()
        self.scheduler = SCHEDULER_NAME
        self.follows_requests, self.returns_requests, self.limits_cpu = False, True, False
        self.lacks_headroom = False
        self.orders: list[Effect] = []
        self._changed_vms: dict[VmAccount, None] = {}
        self._revision = 0
        self._deleted_uids: dict[str, None] = {}
        self._touched: dict[str, None] = {}

    def next_revision(self) -> int:
        """A new highest revision, which identifies a write."""
        self._revision += 1
        return self._revision

    def require_ready(self) -> None:
        """Raise ``NotReadyError`` until the first complete lists."""
        if not self.is_ready:
            raise NotReadyError(refusals.NOT_READY)

    def is_gone(self, uid: str) -> bool:
        """Return True if the pod was deleted or has finished."""
        return uid in self._deleted_uids

    def open_claim(self, pod: PodFacts, node: str, state: ClaimState) -> Claim:
        """Create the claim of a pod that has none."""
        claim = Claim(pod, node, state, self.accounts.run_by_pod(pod))
        self.claims[pod.uid] = claim
        if state is not ClaimState.INCOMING:
            self.uids[pod.name] = pod.uid
        if claim.vm is not None:
            claim.vm.claims.append(claim)
        self.accounts.enter(claim)
        self.migrations.mark_dirty(pod.vm)
        self._enter(claim)
        return claim

    def close_claim(self, uid: str) -> None:
        """Release the pod's claim, if any."""
        claim = self.claims.pop(uid, None)
        if claim is None:
            return
        if self.uids.get(claim.pod.name) == uid:
            del self.uids[claim.pod.name]
        self.migrations.mark_dirty(claim.pod.vm)
        self._leave(claim)
        if claim.vm is not None:
            self._detach(claim.vm, claim)
        self.accounts.leave(claim)

    def recount(self, vm: ObjectName | None) -> None:
        """Update which pods count as running the VM, after a change of the VM or its migrations."""
        for claim in self.accounts.miscounted(vm):
            self._assign(claim, self.accounts.run_by_pod(claim.pod))

    def _assign(self, claim: Claim, account: VmAccount | None) -> None:
        """Move the claim to the VM of ``account``; None: to no VM."""
        before, claim.vm, claim.left_with = claim.vm, account, None
        claim.is_frozen, claim.denied_since, claim.metrics, claim.unsecured = False, None, None, ZERO
        claim.denial_cost = NO_DENIALS
        claim.offered, claim.asked_since, claim.last_freed, claim.asleep_size = ZERO, None, None, None
        if account is not None:
            account.claims.append(claim)
        self.change(claim, unmet=ZERO, is_migrating=False)
        self.migrations.mark_dirty(claim.pod.vm)
        if before is not None:
            self._detach(before, claim)

    def _detach(self, account: VmAccount, claim: Claim) -> None:
        account.claims.remove(claim)
        if not account.hosts:
            account.forget_agent()
            self.revoke(account)

    def revoke(self, account: VmAccount, now: Instant | None = None) -> None:
        """Order the write that lowers the permit of a VM without an agent. Forget a VM without an object and pods."""
        self._order(account.revoke(self.next_revision(), now))
        self._changed_vms[account] = None
        self.accounts.forget_unneeded(account)

    def _order(self, write: PersistPermit | None) -> None:
        if write is not None:
            self.orders.append(write)

    def pod_gone(self, uid: str) -> None:
        """Release everything that a pod had; it was deleted or has finished."""
        self.close_claim(uid)
        self.waiting.forget(uid)
        self.sampled.forget(uid)
        self.migrations.target_gone(uid)
        self._deleted_uids[uid] = None  # a late event must not restore the pod
        if len(self._deleted_uids) > MAX_GONE:
            del self._deleted_uids[next(iter(self._deleted_uids))]

    def move_claim(self, claim: Claim, node: str) -> None:
        """Move the claim to the pod's actual node."""
        self._leave(claim)
        claim.node = node
        self._enter(claim)
        self.migrations.mark_dirty(claim.pod.vm)

    def change(self, claim: Claim, *, unmet: Resources | None = None, is_migrating: bool | None = None) -> None:
        """Update the claim and its node's sums, with the given changes."""
        unmet = claim.unmet if unmet is None else unmet
        is_migrating = claim.is_migrating if is_migrating is None else is_migrating
        if not claim.has_booted:
            claim.note_boot(self.nodes[claim.node].total_or_none)
        reserved, is_unbounded, deferred = claim.size, claim.is_unbounded, DeferredResizes.of(claim.pod)
        need = claim.need_to_wake(unmet)
        was_migrating, claim.is_migrating = claim.is_migrating, is_migrating
        growth = claim.growth_beyond(reserved)
        if (
            reserved == claim.reserved
            and (deferred is claim.deferred or deferred == claim.deferred)
            and unmet == claim.unmet
            and is_migrating is was_migrating
            and is_unbounded is claim.counts_as_unbounded
            and need == claim.wake_need
            and growth == claim.growth
        ):
            return
        node = self._touch(claim.node)
        if was_migrating or is_migrating:
            leaving = claim.reserved + claim.unmet if was_migrating else ZERO
            arriving = reserved + unmet if is_migrating else ZERO
            node.migrating = node.migrating - leaving + arriving
        if unmet != claim.unmet:
            node.unmet = node.unmet - claim.unmet + unmet
            claim.denied_since = claim.denied_since if unmet.any else None
        if reserved != claim.reserved or is_unbounded is not claim.counts_as_unbounded:
            node.unbounded += is_unbounded - claim.counts_as_unbounded  # booleans are 0 or 1
            node.replace(claim.reserved, reserved)
        claim.reserved, claim.unmet = reserved, unmet
        claim.counts_as_unbounded, claim.growth = is_unbounded, growth
        node.set_wake_need(claim, need)
        if deferred != claim.deferred:
            node.deferred, claim.deferred = node.deferred - claim.deferred + deferred, deferred

    def mark_left_claims(self, account: VmAccount | None) -> None:
        """Update claims of pods that the VM has left; they keep their reservation and ignore the VM."""
        for claim in [] if account is None else account.mark_left_claims(self.migrations.moved_from(account.name)):
            self.change(claim)

    def settle_vm(self, account: VmAccount) -> None:
        """Update the claims of all the VM's pods after a change of its account."""
        self._changed_vms[account] = None
        unmet = None if account.has_agent else ZERO  # without an agent there is no request
        for claim in account.claims:
            self.change(claim, unmet=unmet)

    def update_node(self, name: str, facts: NodeFacts | None) -> None:
        """Store new facts of a node; None: deleted, and its account stays only while it has claims."""
        if facts is None and name not in self.nodes:
            return
        node = self._touch(name)
        if facts != node.facts:
            self.migrations.mark_dirty_bound_for(name)
        node.update(facts)

    def update_vm(self, facts: VmFacts, now: Instant, *, at_rebuild: bool) -> None:
        """Store new facts of a VM. A new UID under a known name is another VM, with its own pods."""
        current = self.vms.get(facts.name)
        if current is not None and current.facts is not None and _is_predecessor(facts, current.facts):
            return
        account = self.accounts.open(facts.name, facts.uid)
        if current is not None and current is not account:
            self._replace(current)
        self.vms[facts.name] = account
        account.is_replaced = False
        if account.facts is None:
            account.open(facts, now, at_rebuild=at_rebuild)
        else:
            before = account.stored_high  # to detect edits of other writers
            account.observe(facts)
            account.expire(now)
            self._order(account.restore_if_edited(before, now, self.next_revision()))
        had_pods = bool(account.claims)
        self.recount(facts.name)
        # At a rebuild pods are listed after VMs.
        if not at_rebuild and (account.must_revoke or not (had_pods or account.claims)):
            self.revoke(account, now)
        self.migrations.mark_dirty(facts.name)
        self.mark_left_claims(account)
        self.settle_vm(account)

    def _replace(self, account: VmAccount) -> None:
        """Mark a VM whose name another VM has now; its pods keep their reservations until they go."""
        account.is_deleted = account.is_replaced = True
        for claim in account.claims:
            self.change(claim, is_migrating=False)
            claim.is_frozen = False
        self.accounts.forget_unneeded(account)

    def remove_vm(self, name: ObjectName) -> None:
        """Mark a deleted VM; its pods keep their reservations until they go."""
        account = self.vms.get(name)
        if account is None:
            return
        account.is_deleted = True
        self.migrations.mark_dirty(name)
        for claim in account.claims:
            self.change(claim)
        self.accounts.forget_unneeded(account)

    def forget_versions(self) -> None:
        """Accept facts of any version as newer, including facts of deleted objects."""
        self.is_ready = False
        self._deleted_uids.clear()
        self.migrations.forget_versions()
        for account in self.accounts:
            account.forget_version()
        for claim in [claim for claim in self.claims.values() if claim.state is ClaimState.CONFIRMED]:
            self.mark_uncertain(claim)

    def mark_uncertain(self, claim: Claim) -> None:
        """Mark the claim's bind as uncertain; its reservation stays until the pod has been read."""
        claim.state = ClaimState.UNKNOWN
        self.orders.append(ReadPod(claim.pod.uid, claim.pod.name))

    def expire(self, now: Instant) -> None:
        """Expire permits and requests of silent agents, and retry failed writes that take permits back."""
        for account in self.vms.values():
            if account.expire(now):
                self.settle_vm(account)
            if account.has_unclaimed_raise(now):
                self._order(account.lower(self.next_revision()))
            if account.others:
                account.drop_deleted_agents(self.claims)
                self.settle_vm(account)
            for claim in account.claims:
                if claim.resizes is not None and claim.resizes.changes_with_time:
                    claim.resizes.settle(now)
                    self.change(claim)
        for claim in self.claims.values():
            if claim.unmet.any and claim.vm is not None and claim.vm.is_silent(now):
                self.change(claim, unmet=ZERO)
        for account in [account for account in self.vms.values() if account.must_revoke]:
            self.revoke(account, now)
        self.waiting.expire(now)
        self.migrations.expire(now)

    def finish(self, *, outside: bool) -> Effects:
        """End a step. ``outside``: caused by facts from outside, which may overcommit a node."""
        if not (self._touched or self._changed_vms or self.orders or self.waiting):  # the usual request changes nothing
            return ()
        for name in self._touched:
            node = self.nodes[name]
            # ``forced`` never rises by a grant: overcommitment by a grant must show as a violation.
            node.forced = node.overcommit if outside else node.forced.at_most(node.overcommit)
            node.update_growth()
            self.node_indexes.changed(name)
            for names, is_one in ((self.strained, node.is_strained), (self.crowded, node.is_crowded)):
                if is_one:
                    names.add(name)
                else:
                    names.discard(name)
            if node.facts is None:
                self.rooms.pop(name, None)
                if not node.claims:
                    del self.nodes[name]
            else:
                self.rooms[name] = node.room
        freed = self._wake()
        self._touched.clear()
        self._changed_vms.clear()
        effects: Effects = (*self.orders, *freed)
        self.orders.clear()
        return effects

    def _wake(self) -> list[RoomFreed]:
        """The nodes to touch for waiting pods that fit now."""
        calls = self.waiting.wake(self.rooms, self._touched, self._changed_vms)
        for uid in calls:
            self.sampled.forget(uid)
        return [RoomFreed(node) for node in dict.fromkeys(calls.values())]

    def _touch(self, name: str) -> NodeAccount:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = NodeAccount(name)
        self._touched[name] = None
        return node

    def _enter(self, claim: Claim) -> None:
        node = self._touch(claim.node)
        node.claims[claim.pod.uid] = claim
        node.pods_changed()
        unmet, claim.unmet = claim.unmet, ZERO  # ``change`` adds the difference to the node's sums
        is_migrating, claim.is_migrating = claim.is_migrating, False
        self.change(claim, unmet=unmet, is_migrating=is_migrating)

    def _leave(self, claim: Claim) -> None:
        node = self._touch(claim.node)
        del node.claims[claim.pod.uid]
        node.pods_changed()
        node.unbounded -= claim.counts_as_unbounded
        claim.counts_as_unbounded = False
        node.replace(claim.reserved, ZERO)
        node.unmet = node.unmet - claim.unmet
        node.set_wake_need(claim, NO_WAKE_NEED)
        if claim.is_migrating:
            node.migrating = node.migrating - claim.reserved - claim.unmet
        if claim.deferred is not NONE_DEFERRED:
            node.deferred, claim.deferred = node.deferred - claim.deferred, NONE_DEFERRED
        claim.reserved = ZERO


def _is_predecessor(facts: VmFacts, current: VmFacts) -> bool:
    """Return True if ``facts`` are late facts of a VM that had the name before."""
    return facts.uid not in ("", current.uid) and facts.version < current.version
