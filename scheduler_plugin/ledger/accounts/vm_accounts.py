"""The accounts of all VMs, and the pods that run them.

Rules that hold here:

- The UID of its owner decides whose a pod is; the target of a migration has none yet and belongs to the migration's VM.
- A pod that a VM owns and that does not run it, such as a backup's, claims its own requests, like any pod. It is
  known by three things together: the VM's status names another pod, no migration of the VM names this one, and it has
  no container that runs a guest.
- The last of them is what makes it safe. Facts of VMs, pods and migrations arrive by separate watches: a runner's pod
  may be seen before the status that names it (a restarted VM, a success), after it was named (the source of a deleted
  migration), or without both (a restarted scheduler). No order of facts tells these from a stranger; the containers of
  a pod never change. So a pod with a runner counts as the whole VM until it goes.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.messages import ObjectName
from scheduler_plugin.ledger.accounts.claims import Claim, VmAccount
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.ledger.moves import Migrations


class VmAccounts:
    """Finds accounts by name and UID.

    ``named`` are those of the VMs that have a name now; those of deleted ones live on in their pods' claims.
    """

    def __init__(self, migrations: Migrations) -> None:
        self.named: dict[ObjectName, VmAccount] = {}
        self._by_uid: dict[str, VmAccount] = {}
        self._migrations = migrations
        self._doubtful: dict[ObjectName, dict[str, Claim]] = {}

    def __iter__(self) -> Iterator[VmAccount]:
        return iter({*self.named.values(), *self._by_uid.values()})

    def of(self, pod: PodFacts) -> VmAccount | None:
        """The account of the VM that the pod names, if it has one; whether the pod runs it is another question."""
        named = None if pod.vm is None else self.named.get(pod.vm)
        if not pod.vm_uid:
            return named
        # An account without a UID was opened for pods that do not say it; it may be the same VM.
        return named if named is not None and not named.uid else self._by_uid.get(pod.vm_uid)

    def is_run_by(self, pod: PodFacts) -> bool:
        """Return True if the pod runs a VM, or may do so by all that is known."""
        if pod.vm is None:
            return False
        if pod.migration is not None:
            return self._is_target(pod, pod.migration)
        return pod.has_runner or not pod.vm_uid or self._is_named(pod, pod.vm)

    def _is_target(self, pod: PodFacts, migration: ObjectName) -> bool:
        """Return False if the migration that controls the pod is another one of that name, or of another VM."""
        owner = self._migrations.named.get(migration)
        # The pod may be seen before its migration.
        if owner is None:
            return True
        return owner.vm == pod.vm and (owner.facts is None or pod.migration_uid in ("", owner.facts.uid))

    def _is_named(self, pod: PodFacts, vm: ObjectName) -> bool:
        """Return True if the VM's status or a migration of it names the pod, or may come to."""
        account = self.of(pod)
        if account is None or account.facts is None or account.facts.pod in (None, pod.name):
            return True
        return any(pod.name in (migration.source_pod, migration.target_pod) for migration in self._migrations.of(vm))

    def run_by_pod(self, pod: PodFacts) -> VmAccount | None:
        """The account of the VM that the pod runs, opened if this is the first news of the VM."""
        return None if pod.vm is None or not self.is_run_by(pod) else self.open(pod.vm, pod.vm_uid)

    def miscounted(self, vm: ObjectName | None) -> list[Claim]:
        """The claims of pods that name ``vm`` and are wrongly counted as its own, or wrongly not."""
        doubtful = {} if vm is None else self._doubtful.get(vm, {})
        return [claim for claim in doubtful.values() if self._is_miscounted(claim)]

    def _is_miscounted(self, claim: Claim) -> bool:
        """Return True if the claim counts as the VM's and should not, or the other way round."""
        is_run = self.is_run_by(claim.pod)
        # A target that has counted as its VM's stays so: another migration of that name proves nothing about it.
        return is_run if claim.vm is None else not (is_run or claim.pod.migration is not None)

    def find(self, name: ObjectName, uid: str) -> VmAccount | None:
        """The account of the VM with this UID, whoever has its name now; None if nothing has been heard of it."""
        account = self._by_uid.get(uid) or self.named.get(name)
        return None if account is None or (uid and account.uid not in ("", uid)) else account

    def open(self, name: ObjectName, uid: str) -> VmAccount:
        """The account of a VM that may be heard of first; it has the name unless a VM with another UID has it now."""
        account = self.find(name, uid)
        if account is None:
            account = VmAccount(name=name, is_replaced=name in self.named)
        if uid:
            account.uid = uid
            self._by_uid[uid] = account
        self.named.setdefault(name, account)
        return account

    def enter(self, claim: Claim) -> None:
        """A claim was opened; whether its pod runs its VM may have to be judged again."""
        pod = claim.pod
        # The containers of a pod never change: one with a runner counts as the VM's for good.
        if pod.vm is not None and (pod.migration is not None or not pod.has_runner):
            self._doubtful.setdefault(pod.vm, {})[pod.uid] = claim

    def leave(self, claim: Claim) -> None:
        """A claim was closed; its VM's account is forgotten if nothing needs it any more."""
        pod = claim.pod
        doubtful = {} if pod.vm is None else self._doubtful.get(pod.vm, {})
        if pod.vm is None or doubtful.pop(pod.uid, None) is None:
            return
        if not doubtful:
            del self._doubtful[pod.vm]
        account = self.of(pod)
        if account is not None:
            self.forget_unneeded(account)

    def forget_unneeded(self, account: VmAccount) -> None:
        """Forgets the account of a VM that is gone, or was never seen, once no pod needs it."""
        is_gone = account.facts is None or account.is_deleted
        if account.claims or not is_gone or self._is_named_by_others(account):
            return
        self._by_uid.pop(account.uid, None)
        if account.name is not None and self.named.get(account.name) is account:
            del self.named[account.name]

    def _is_named_by_others(self, account: VmAccount) -> bool:
        """Return True if the VM owns a pod that does not run it; only the account can tell that."""
        others = {} if account.name is None else self._doubtful.get(account.name, {})
        return any(claim.vm is None and claim.pod.vm_uid == account.uid for claim in others.values())
