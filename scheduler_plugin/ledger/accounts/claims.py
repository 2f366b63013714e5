"""A pod's claim on a node's resources, and a VM's account with the claims of its pods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from protocol.messages import Metrics, ObjectName
from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.permit_account import PermitAccount
from scheduler_plugin.ledger.accounts.permit_state import LONG_AGO
from scheduler_plugin.ledger.accounts.pod_requests import PodRequests
from scheduler_plugin.ledger.accounts.waking import NO_WAKE_NEED, WakeNeed
from scheduler_plugin.ledger.facts import DEFAULT_WEIGHT, PodFacts, VmFacts

KEPT_WITHIN: Final = Seconds(30.0)
"""An agent sends a request at least every 15 s; its guest shrinks, or is asleep, within seconds of the answer."""

KEPT_WITHIN_BY_POD: Final = Seconds(45.0)
"""A pod's memory goes after a trial, which takes up to 30 s."""


LONGEST_WAKE: Final = Seconds(30.0)
"""A wake takes a second or a few. One that lasts longer does not proceed, or reads a very large memory."""


@dataclass(frozen=True, slots=True)
class DeferredResizes:
    """Amounts that pods wait for: ``all`` of them, and those of pods that ``asked`` for room. Per resource."""

    all: Resources = ZERO
    asked: Resources = ZERO

    @classmethod
    def of(cls, pod: PodFacts) -> DeferredResizes:
        """Amounts that this pod waits for."""
        if not pod.deferred.any:
            return NONE_DEFERRED
        # All of it is reserved, but VMs are moved only for a pod that asks for it by its label.
        return cls(pod.deferred, pod.deferred if pod.asks_room else ZERO)

    def __add__(self, other: DeferredResizes) -> DeferredResizes:
        return DeferredResizes(self.all + other.all, self.asked + other.asked)

    def __sub__(self, other: DeferredResizes) -> DeferredResizes:
        return DeferredResizes(self.all - other.all, self.asked - other.asked)


NONE_DEFERRED: Final = DeferredResizes()


class ClaimState(Enum):
    """Certainty that the pod is bound to the claim's node. Each state keeps the whole reservation.

    An incoming claim has no pod yet: its ``pod`` only says for which migration and VM it is kept.
    """

    TENTATIVE = "tentative"  # reserved by a bind whose API call has not been answered
    UNKNOWN = "unknown"  # the API call's outcome is unknown until the pod is read again
    CONFIRMED = "confirmed"  # the API accepted the bind; the pod has not been seen with its node
    BOUND = "bound"  # the pod was seen with its node
    INCOMING = "incoming"  # kept for the target pod of a migration, which is not placed yet


@dataclass(frozen=True, slots=True)
class Gift:
    """Room that a VM gave back after it was asked, at ``at``; ``to`` are VMs that lacked it then, empty if none did."""

    amount: Resources
    at: Instant
    to: tuple[ObjectName, ...] = ()


@dataclass(slots=True, eq=False)
class Claim:
    """Reservation of a pod on ``node``.

    ``reserved`` is the amount that the node's sum contains; ``unmet`` what its VM's agent wants and did not get,
    ``unsecured`` what of the rest its pod's requests did not hold.
    ``attempts`` counts bind calls in flight. A claim that ``is_unmeasured`` may need anything: nothing is free beside
    it. ``is_migrating``: a migration is to take the VM away. ``holds_still``: its target pod has a node, so that the VM
    must not be resized any more. ``resizes`` are those of its pod's requests; None before the first.
    ``offered`` is what its VM could do without by its agent's last word, ``asked_since`` when it was first asked for
    that, ``asked_at`` its permit then, ``gift`` what it gave last. ``asleep_size``
    is what would be reserved if its VM slept, None while its agent does not say that it may; it was first asked to at
    ``sleep_asked_at``. ``waits`` is its pod's part of what the node's pods
    wait for. ``left`` is what was reserved when the guest was known to run in another pod for good: that stays until
    the pod goes, and no longer follows the VM. None before.
    ``boots_with`` is what its guest may boot with by its pod's arguments, zero once it ``has_booted``.
    ``wake_need`` is what of its sleeping VM's need the node's book contains. ``woken_at`` is when that was granted all
    that it asked for to wake; None if it was not, or gave it up. ``is_long_denied``: it has waited to wake for so long
    that no free room is kept for it any more.
    """

    pod: PodFacts
    node: str
    state: ClaimState
    vm: VmAccount | None
    reserved: Resources = ZERO
    unmet: Resources = ZERO
    unsecured: Resources = ZERO
    attempts: int = 0
    is_migrating: bool = False
    counts_as_unmeasured: bool = False
    holds_still: bool = False
    metrics: Metrics | None = None
    offered: Resources = ZERO
    asked_since: Instant | None = None
    asked_at: Resources = ZERO
    gift: Gift | None = None
    asleep_size: Resources | None = None
    sleep_asked_at: Instant = LONG_AGO
    denied_since: Instant | None = None
    resizes: PodRequests | None = None
    waits: DeferredResizes = NONE_DEFERRED
    left: Resources | None = None
    has_booted: bool = False
    boots_with: Resources = ZERO
    wake_need: WakeNeed = NO_WAKE_NEED
    woken_at: Instant | None = None
    is_long_denied: bool = False

    def note_boot(self, whole: Resources | None) -> None:
        """Finds out what the guest may yet boot with, on a node that has ``whole`` (None: not known).

        It has booted once its VM says that it runs in this pod. One that was moved did so elsewhere.
        """
        facts = None if self.vm is None else self.vm.facts
        # The guest of a migration's target booted in another pod and brings its size along.
        self.has_booted = self.pod.migration is not None or (facts is not None and facts.runs_in(self.pod.name))
        boots_with = ZERO if self.has_booted else self.pod.boots_with
        self.boots_with = boots_with if whole is None else boots_with.at_most(whole.minus_or_zero(self.pod.around))

    @property
    def size(self) -> Resources:
        """Size to reserve at present; see ``claim_size``."""
        size = (
            claim_size(self.pod, self.vm, self.boots_with)
            if self.left is None
            else self.left.at_least(self.pod.requests)
        )
        if self.resizes is None or self.pod.runner is None or not self.resizes.may_land:
            return size
        # A resize in flight counts as done, because the kubelet may have granted it already.
        return size.at_least(self.resizes.most + self.pod.around)

    @property
    def runs_vm(self) -> bool:
        """True for the pod of a VM, which may move; False for ordinary pods, even for one with a database."""
        return self.vm is not None and not (self.vm.facts is not None and self.vm.facts.is_pod)

    @property
    def sleeps(self) -> bool:
        """True if its VM sleeps or is waking."""
        return self.vm is not None and self.vm.sleeps

    def is_waking(self, now: Instant) -> bool:
        """Return True if its VM has the permit to wake, and its guest may not run yet."""
        if self.woken_at is None or now - self.woken_at >= LONGEST_WAKE or self.vm is None or self.vm.facts is None:
            return False
        return self.vm.sleeps or self.vm.facts.is_waking

    def is_away(self, now: Instant) -> bool:
        """Return True if its VM leaves, or its agent has not been heard for ``KEPT_WITHIN``."""
        is_silent = self.vm is None or now - self.vm.heard_at >= KEPT_WITHIN
        return is_silent or self.is_migrating or self.left is not None

    def need_to_wake(self, unmet: Resources) -> WakeNeed:
        """Resources that its sleeping VM lacks, with ``unmet`` denied to it; none if the VM is awake."""
        facts = None if self.vm is None else self.vm.facts
        if self.vm is None or facts is None or facts.wakes_with is None or self.left is not None:
            return NO_WAKE_NEED
        # Elsewhere it has reserved all of it: see ``claim_size``.
        if _wakes_on_arrival(self.pod, facts).any:
            return NO_WAKE_NEED
        denied = ZERO if self.is_long_denied else unmet
        return WakeNeed(facts.wakes_with.minus_or_zero(self.vm.reserved), denied)

    @property
    def weight(self) -> int:
        """The VM's part of its node's room beside others; that of other pods never counts."""
        return DEFAULT_WEIGHT if self.vm is None or self.vm.facts is None else self.vm.facts.weight

    @property
    def secured(self) -> Resources | None:
        """Greatest size of the guest by its pod's requests, whatever write lands; None if they do not follow it."""
        runner = self.pod.runner
        if (
            self.vm is None
            or self.left is not None
            or runner is None
            or (self.resizes is not None and self.resizes.exempt_because)
        ):
            return None
        # Nothing is certain before the pod has been seen on its node.
        if self.state is not ClaimState.BOUND:
            return ZERO
        return runner.secured if self.resizes is None else self.resizes.least(runner)

    @property
    def is_unmeasured(self) -> bool:
        """True if there is no bound to what the pod may need: it, its VM or its VM's bounds are not known."""
        if self.vm is None:
            return bool(self.pod.unreadable)
        facts = self.vm.facts
        if facts is None:
            return bool(self.pod.unreadable) or bool(self.pod.vm_uid)
        return bool(self.pod.unreadable) or not facts.is_bounded or self.vm.is_unheard


@dataclass(slots=True, eq=False)
class VmAccount(PermitAccount):
    """One VM: what it may use, and what its pods claim (two of them while it migrates).

    ``uid`` is empty while only pods have been seen that do not say it. ``is_replaced``: another VM has its name now.
    """

    name: ObjectName | None = None
    uid: str = ""
    is_replaced: bool = False
    claims: list[Claim] = field(default_factory=list)

    @property
    def is_to_be_taken_back(self) -> bool:
        """True if the API may hold more for a VM without an agent than it has, and no write is on its way."""
        has_nobody = self.is_off or not self.hosts
        return has_nobody and not (self.orders or self.is_deleted or self.stored_high.within(self.in_use))

    @property
    def hosts(self) -> list[Claim]:
        """The claims of the pods in which the VM's guest runs, is to run, or may run by all that is known."""
        return [claim for claim in self.claims if claim.left is None]

    def runs_beside(self, claim: Claim) -> bool:
        """Return True if the VM's status names another pod than this claim's, and that one is there."""
        named = None if self.facts is None else self.facts.pod
        return claim.pod.name != named and any(other.pod.name == named for other in self.claims)

    def note_left(self, has_moved_from: Callable[[PodFacts, bool], bool]) -> list[Claim]:
        """Marks the claims of pods that the VM has left, until its status names them again; the claims to look at."""
        named, claims = None if self.facts is None else self.facts.pod, self.claims
        # The usual case, once for each event of a pod.
        if len(claims) == 1 and claims[0].left is None and claims[0].pod.name == named:
            return []
        pods = [claim for claim in claims if claim.state is not ClaimState.INCOMING]
        for claim in pods:
            if claim.pod.name == named:
                claim.left = None
            elif claim.left is None:
                runs_beside = self.runs_beside(claim)
                # A guest that slept here without a permit to wake has not run here since.
                has_slept = runs_beside and claim.wake_need.missing.any
                if has_slept or has_moved_from(claim.pod, runs_beside):
                    claim.left = claim.reserved
        # Without a pod in which the guest may run there is no agent either.
        if pods and not self.hosts:
            self.agent_gone()
        return pods


def _after_restart(pod: PodFacts, vm: VmFacts) -> Resources:
    """Size by the spec, for a pod that the VM does not name yet: it boots a new machine."""
    # The target of a migration has the machine of its source, whatever the spec says now.
    is_new = pod.migration is None and pod.name != vm.pod
    return vm.after_restart if is_new and vm.after_restart is not None else ZERO


def _wakes_on_arrival(pod: PodFacts, vm: VmFacts) -> Resources:
    """Size with which the guest of a VM that sleeps in another pod would run in this one; zero for all others."""
    return vm.wakes_with if vm.wakes_with is not None and vm.pod not in (None, pod.name) else ZERO


def claim_size(pod: PodFacts, vm: PermitAccount | None, boots_with: Resources | None = None) -> Resources:
    """Size that ``pod`` needs: its VM and the overhead around the guest, and no less than its requests.

    ``boots_with`` is what its guest may yet boot with; None: all that the pod says.
    """
    if vm is None or vm.facts is None:
        return pod.requests
    boots_with = pod.boots_with if boots_with is None else boots_with
    guest = vm.reserved if vm.facts.after_restart is None else vm.reserved.at_least(_after_restart(pod, vm.facts))
    guest = guest if boots_with is ZERO else guest.at_least(boots_with)
    # A sleeping VM that moves runs as soon as it has arrived, as one that boots does.
    guest = guest if vm.facts.wakes_with is None else guest.at_least(_wakes_on_arrival(pod, vm.facts))
    guest = guest if pod.around is ZERO else guest + pod.around
    return guest if pod.requests.within(guest) else guest.at_least(pod.requests)
