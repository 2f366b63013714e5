"""The accounts of all VMs, and which pods run them.

Rules:

- The UID of its owner decides which VM a pod belongs to. A migration's target has no such owner yet and belongs to the
  migration's VM.
- A pod that a VM owns but that does not run it, such as a backup, claims its own requests, like any pod. Three
  conditions must be met: the VM's status names another pod, no migration of the VM names this one, and it has no runner
  container.
- The last condition makes this safe. VMs, pods and migrations come from separate watches: a runner pod may be seen
  before the status that names it (restart, finished migration), after it (source of a deleted migration), or without
  both (restarted scheduler). But the containers of a pod never change. So a pod with a runner counts as the whole VM
  until it goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from protocol.messages import ObjectName
from scheduler_plugin.ledger.accounts.claims import Claim, VmAccount
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.ledger.moves import Migrations


class VmAccounts:
    """Accounts by name and UID.

    ``named`` are VMs that have a name now; accounts of deleted ones stay in their pods' claims.
    """

    def __init__(self, migrations: Migrations) -> None:
        self.named: dict[ObjectName, VmAccount] = {}
        # With the name: any pod may state the UID of another namespace's VM.
        self._by_owner: dict[tuple[ObjectName | None, str], VmAccount] = {}
        self._migrations = migrations
        self._undecided: dict[ObjectName, dict[str, Claim]] = {}

    def __iter__(self) -> Iterator[VmAccount]:
        return iter({*self.named.values(), *self._by_owner.values()})

    def of(self, pod: PodFacts) -> VmAccount | None:
        """The account of the VM that the pod names, if it has one; see ``is_run_by`` for whether it runs the VM."""
        named = None if pod.vm is None else self.named.get(pod.vm)
        if not pod.vm_uid:
            return named
        # An account without a UID was opened for a pod that does not name one; it may be the same VM.
        return named if named is not None and not named.uid else self._by_owner.get((pod.vm, pod.vm_uid))

    def is_run_by(self, pod: PodFacts, moving: Set[ObjectName | None] | None = None) -> bool:
        """Return True if the pod runs a VM, or may. ``moving``: pods that the VM's migrations name, if known."""
        if pod.vm is None:
            return False
        if pod.migration is not None:
            return self._is_target(pod, pod.migration)
        return pod.has_runner or not pod.vm_uid or self._is_named(pod, pod.vm, moving)

    def _is_target(self, pod: PodFacts, migration: ObjectName) -> bool:
        """Return False if the migration that controls the pod has another UID or belongs to another VM."""
        owner = self._migrations.named.get(migration)
        # The pod may be seen before its migration.
        if owner is None:
            return True
        return owner.vm == pod.vm and (owner.facts is None or pod.migration_uid in ("", owner.facts.uid))

    def _is_named(self, pod: PodFacts, vm: ObjectName, moving: Set[ObjectName | None] | None) -> bool:
        """Return True if the VM's status or a migration of it names the pod, or may do so later."""
        account = self.of(pod)
        if account is None or account.facts is None or account.facts.pod in (None, pod.name):
            return True
        return pod.name in (self._migrations.pods_of(vm) if moving is None else moving)

    def run_by_pod(self, pod: PodFacts) -> VmAccount | None:
        """The account of the VM that the pod runs; opens it if the VM is new. None if the pod runs none."""
        return None if pod.vm is None or not self.is_run_by(pod) else self.open(pod.vm, pod.vm_uid)

    def miscounted(self, vm: ObjectName | None) -> list[Claim]:
        """Claims of pods that name ``vm`` and wrongly count as its own, or wrongly do not."""
        undecided = {} if vm is None else self._undecided.get(vm, {})
        if vm is None or not undecided:
            return []
        # Once for all: a tenant may create thousands of pods and migrations of a VM.
        moving = self._migrations.pods_of(vm)
        return [claim for claim in undecided.values() if self._is_miscounted(claim, moving)]

    def _is_miscounted(self, claim: Claim, moving: Set[ObjectName | None]) -> bool:
        """Return True if the claim wrongly counts as the VM's, or wrongly does not."""
        is_run = self.is_run_by(claim.pod, moving)
        # Keep a target that has counted as its VM's: another migration of that name proves nothing about it.
        return is_run if claim.vm is None else not (is_run or claim.pod.migration is not None)

    def find(self, name: ObjectName, uid: str) -> VmAccount | None:
        """The account of the VM with this UID, even if another VM has its name now; None if unknown."""
        account = self._by_owner.get((name, uid)) or self.named.get(name)
        return None if account is None or (uid and account.uid not in ("", uid)) else account

    def open(self, name: ObjectName, uid: str) -> VmAccount:
        """The VM's account, created if new. It gets the name unless a VM with another UID has it."""
        account = self.find(name, uid)
        if account is None:
            account = VmAccount(name=name, is_replaced=name in self.named)
        if uid:
            account.uid = uid
            self._by_owner[name, uid] = account
        self.named.setdefault(name, account)
        return account

    def enter(self, claim: Claim) -> None:
        """Index an open claim, if later events may change whether its pod runs the VM."""
        pod = claim.pod
        # Containers never change: a pod with a runner counts as the VM's for good.
        if pod.vm is not None and (pod.migration is not None or not pod.has_runner):
            self._undecided.setdefault(pod.vm, {})[pod.uid] = claim

    def leave(self, claim: Claim) -> None:
        """Remove a closed claim, and its VM's account if nothing needs it."""
        pod = claim.pod
        undecided = {} if pod.vm is None else self._undecided.get(pod.vm, {})
        if pod.vm is None or undecided.pop(pod.uid, None) is None:
            return
        if not undecided:
            del self._undecided[pod.vm]
        account = self.of(pod)
        if account is not None:
            self.forget_unneeded(account)

    def forget_unneeded(self, account: VmAccount) -> None:
        """Remove the account of a deleted or never seen VM if no pod needs it."""
        is_gone = account.facts is None or account.is_deleted
        if account.claims or not is_gone or self._is_named_by_others(account):
            return
        self._by_owner.pop((account.name, account.uid), None)
        if account.name is not None and self.named.get(account.name) is account:
            del self.named[account.name]

    def _is_named_by_others(self, account: VmAccount) -> bool:
        """Return True if the VM owns a pod that does not run it; only the account can tell that."""
        undecided = {} if account.name is None else self._undecided.get(account.name, {})
        return any(claim.vm is None and claim.pod.vm_uid == account.uid for claim in undecided.values())
