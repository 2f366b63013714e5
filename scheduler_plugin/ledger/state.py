"""All accounts together: nodes, claims and VMs, and the only code that changes a sum.

Rules that hold here:

- A pod has at most one claim, by its UID. Only this module opens, moves and closes it, so nothing is freed twice.
- Every step ends with ``finish``, which publishes the new rooms and says where freed room is waited for.
"""

from __future__ import annotations

from typing import Final

from protocol.messages import ObjectName
from protocol.names import SCHEDULER_NAME
from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.accounts.claims import NONE_DEFERRED, Claim, ClaimState, DeferredResizes, VmAccount
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

REMEMBERED_GONE: Final = 20_000
"""How many UIDs of gone pods are remembered; an event later than this many deletions would count as news."""


class LedgerState:
    """The mutable state behind the ``Ledger``; nothing else holds it. ``vms`` are those that have a name now.

    ``is_ready`` is false until complete lists have been taken in.
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
        self.scheduler = SCHEDULER_NAME
        self.follows_requests, self.returns_requests, self.limits_cpu = False, True, False
        self.orders: list[Effect] = []
        self._changed_vms: dict[VmAccount, None] = {}
        self._revision = 0
        self._gone: dict[str, None] = {}
        self._touched: dict[str, None] = {}

    def next_revision(self) -> int:
        """A number above all given out before; it tells the outcomes of writes apart."""
        self._revision += 1
        return self._revision

    def require_ready(self) -> None:
        """Raises ``NotReadyError`` until complete lists have been taken in."""
        if not self.is_ready:
            raise NotReadyError(refusals.NOT_READY)

    def is_gone(self, uid: str) -> bool:
        """Return True if the pod was deleted or has finished."""
        return uid in self._gone

    def open_claim(self, pod: PodFacts, node: str, state: ClaimState) -> Claim:
        """A claim of a pod that has none."""
        claim = Claim(pod, node, state, self.accounts.run_by_pod(pod))
        self.claims[pod.uid] = claim
        if state is not ClaimState.INCOMING:
            self.uids[pod.name] = pod.uid
        if claim.vm is not None:
            claim.vm.claims.append(claim)
        self.accounts.enter(claim)
        self.migrations.disturb(pod.vm)
        self._enter(claim)
        return claim

    def close_claim(self, uid: str) -> None:
        """Releases everything that the pod holds; nothing if it holds nothing."""
        claim = self.claims.pop(uid, None)
        if claim is None:
            return
        if self.uids.get(claim.pod.name) == uid:
            del self.uids[claim.pod.name]
        self.migrations.disturb(claim.pod.vm)
        self._leave(claim)
        if claim.vm is not None:
            self._part(claim.vm, claim)
        self.accounts.leave(claim)

    def recount(self, vm: ObjectName | None) -> None:
        """News of the VM or its migrations may change which pods count as running it."""
        for claim in self.accounts.miscounted(vm):
            self._assign(claim, self.accounts.run_by_pod(claim.pod))

    def _assign(self, claim: Claim, account: VmAccount | None) -> None:
        """The claim is of the VM of ``account`` from now on; None: of no VM."""
        before, claim.vm, claim.left = claim.vm, account, None
        claim.holds_still, claim.denied_since, claim.metrics, claim.unsecured = False, None, None, ZERO
        claim.offered, claim.asked_since, claim.gift, claim.asleep_size = ZERO, None, None, None
        if account is not None:
            account.claims.append(claim)
        self.change(claim, unmet=ZERO, is_migrating=False)
        self.migrations.disturb(claim.pod.vm)
        if before is not None:
            self._part(before, claim)

    def _part(self, account: VmAccount, claim: Claim) -> None:
        account.claims.remove(claim)
        if not account.hosts:
            account.agent_gone()
            self.take_back(account)

    def take_back(self, account: VmAccount, now: Instant | None = None) -> None:
        """The VM has no agent: its permit is taken back. Without an object and pods it is forgotten."""
        self._have_written(account.take_back(self.next_revision(), now))
        self._changed_vms[account] = None
        self.accounts.forget_unneeded(account)

    def _have_written(self, write: PersistPermit | None) -> None:
        if write is not None:
            self.orders.append(write)

    def pod_gone(self, uid: str) -> None:
        """The pod is deleted or has finished, for good."""
        self.close_claim(uid)
        self.waiting.forget(uid)
        self.sampled.forget(uid)
        self.migrations.target_gone(uid)
        self._gone[uid] = None  # a late event must not bring the pod back
        if len(self._gone) > REMEMBERED_GONE:
            del self._gone[next(iter(self._gone))]

    def move_claim(self, claim: Claim, node: str) -> None:
        """The pod turns out to be on another node than reserved."""
        self._leave(claim)
        claim.node = node
        self._enter(claim)
        self.migrations.disturb(claim.pod.vm)

    def change(self, claim: Claim, *, unmet: Resources | None = None, is_migrating: bool | None = None) -> None:
        """Update the claim and its node's sums, with the given changes."""
        unmet = claim.unmet if unmet is None else unmet
        is_migrating = claim.is_migrating if is_migrating is None else is_migrating
        if not claim.has_booted:
            claim.note_boot(self.nodes[claim.node].whole)
        reserved, is_unmeasured, waits = claim.size, claim.is_unmeasured, DeferredResizes.of(claim.pod)
        need = claim.need_to_wake(unmet)
        if (
            reserved == claim.reserved
            and (waits is claim.waits or waits == claim.waits)
            and unmet == claim.unmet
            and is_migrating is claim.is_migrating
            and is_unmeasured is claim.counts_as_unmeasured
            and need == claim.wake_need
        ):
            return
        node = self._touch(claim.node)
        if claim.is_migrating or is_migrating:
            gone = claim.reserved + claim.unmet if claim.is_migrating else ZERO
            come = reserved + unmet if is_migrating else ZERO
            node.migrating = node.migrating - gone + come
        if unmet != claim.unmet:
            node.unmet = node.unmet - claim.unmet + unmet
            claim.denied_since = claim.denied_since if unmet.any else None
        if reserved != claim.reserved or is_unmeasured is not claim.counts_as_unmeasured:
            node.unmeasured += is_unmeasured - claim.counts_as_unmeasured  # booleans count as 0 and 1
            node.replace(claim.reserved, reserved)
        claim.reserved, claim.unmet, claim.is_migrating = reserved, unmet, is_migrating
        claim.counts_as_unmeasured = is_unmeasured
        node.need_to_wake(claim, need)
        if waits != claim.waits:
            node.waits, claim.waits = node.waits - claim.waits + waits, waits

    def note_left(self, account: VmAccount | None) -> None:
        """News of a VM's pods: those that it has left keep what they have, and no longer follow it."""
        for claim in [] if account is None else account.note_left(self.migrations.has_moved_from):
            self.change(claim)

    def settle_vm(self, account: VmAccount) -> None:
        """The account has changed: so do the claims of all its pods (two while it migrates)."""
        self._changed_vms[account] = None
        unmet = None if account.has_agent else ZERO  # without an agent nothing more is wanted
        for claim in account.claims:
            self.change(claim, unmet=unmet)

    def know_node(self, name: str, facts: NodeFacts | None) -> None:
        """New facts about a node, or None: it is gone, and its account stays only while claims are left."""
        if facts is None and name not in self.nodes:
            return
        node = self._touch(name)
        if facts != node.facts:
            self.migrations.disturb_bound_for(name)
        node.know(facts)

    def know_vm(self, facts: VmFacts, now: Instant, *, at_rebuild: bool) -> None:
        """New facts about a VM. One with another UID than that of its name so far is another VM; so are its pods."""
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
            before = account.stored_high  # edits of other writers show only against it
            account.observe(facts)
            account.lapse(now)
            self._have_written(account.edited(before, now, self.next_revision()))
        had_pods = bool(account.claims)
        self.recount(facts.name)
        # At a rebuild the pods are listed after the VMs: no VM has any yet.
        if not at_rebuild and (account.is_to_be_taken_back or not (had_pods or account.claims)):
            self.take_back(account, now)
        self.migrations.disturb(facts.name)
        self.note_left(account)
        self.settle_vm(account)

    def _replace(self, account: VmAccount) -> None:
        """Another VM has the name now; the pods of this one hold their reservations until they go."""
        account.is_deleted = account.is_replaced = True
        for claim in account.claims:
            self.change(claim, is_migrating=False)
            claim.holds_still = False
        self.accounts.forget_unneeded(account)

    def lose_vm(self, name: ObjectName) -> None:
        """The VM is deleted; its pods hold their reservations until they go."""
        account = self.vms.get(name)
        if account is None:
            return
        account.is_deleted = True
        self.migrations.disturb(name)
        self.accounts.forget_unneeded(account)

    def forget_versions(self) -> None:
        """Facts of any version count as news from now on, and what is gone may come back."""
        self.is_ready = False
        self._gone.clear()
        self.migrations.forget_versions()
        for account in self.accounts:
            account.forget_version()
        for claim in [claim for claim in self.claims.values() if claim.state is ClaimState.CONFIRMED]:
            self.doubt(claim)

    def doubt(self, claim: Claim) -> None:
        """It is unknown again whether the claim's pod is bound; the reservation stays until the pod has been read."""
        claim.state = ClaimState.UNKNOWN
        self.orders.append(ReadPod(claim.pod.uid, claim.pod.name))

    def lapse(self, now: Instant) -> None:
        """Time has passed: what silent agents held or wanted ends, and what was not taken back is taken back again."""
        for account in self.vms.values():
            if account.lapse(now):
                self.settle_vm(account)
            if account.is_left_raised(now):
                self._have_written(account.lower(self.next_revision()))
            if account.others:
                account.forget_gone(self.claims)
                self.settle_vm(account)
            for claim in account.claims:
                if claim.resizes is not None and claim.resizes.changes_with_time:
                    claim.resizes.settle(now)
                    self.change(claim)
        for claim in self.claims.values():
            if claim.unmet.any and claim.vm is not None and claim.vm.is_silent(now):
                self.change(claim, unmet=ZERO)
        for account in [account for account in self.vms.values() if account.is_to_be_taken_back]:
            self.take_back(account, now)
        self.waiting.lapse(now)
        self.migrations.lapse(now)

    def finish(self, *, outside: bool) -> Effects:
        """Ends a step. ``outside``: facts from outside caused it, so it may have pushed a node over its total."""
        if not (self._touched or self._changed_vms or self.orders or self.waiting):  # most requests change nothing
            return ()
        for name in self._touched:
            node = self.nodes[name]
            # A grant never forces: what it adds over the total must show as a violation.
            node.forced = node.over if outside else node.forced.at_most(node.over)
            self.node_indexes.changed(name)
            if node.is_strained:
                self.strained.add(name)
            else:
                self.strained.discard(name)
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
        """The nodes to touch, so that pods that wait on them and would fit now are looked at again."""
        calls = self.waiting.call(self.rooms, self._touched, self._changed_vms)
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
        unmet, claim.unmet = claim.unmet, ZERO  # ``change`` adds the difference to the sums of the node
        is_migrating, claim.is_migrating = claim.is_migrating, False
        self.change(claim, unmet=unmet, is_migrating=is_migrating)

    def _leave(self, claim: Claim) -> None:
        node = self._touch(claim.node)
        del node.claims[claim.pod.uid]
        node.pods_changed()
        node.unmeasured -= claim.counts_as_unmeasured
        claim.counts_as_unmeasured = False
        node.replace(claim.reserved, ZERO)
        node.unmet = node.unmet - claim.unmet
        node.need_to_wake(claim, NO_WAKE_NEED)
        if claim.is_migrating:
            node.migrating = node.migrating - claim.reserved - claim.unmet
        if claim.waits is not NONE_DEFERRED:
            node.waits, claim.waits = node.waits - claim.waits, NONE_DEFERRED
        claim.reserved = ZERO


def _is_predecessor(facts: VmFacts, known: VmFacts) -> bool:
    """Return True if ``facts`` are late news of a VM that had the name before the one that is known."""
    return facts.uid not in ("", known.uid) and facts.version < known.version
