"""Claims of pods on nodes, and accounts of VMs with the claims of their pods."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from protocol.messages import Metrics, ObjectName
from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.denials import NO_DENIALS, DenialCost
from scheduler_plugin.ledger.accounts.permit_account import PermitAccount
from scheduler_plugin.ledger.accounts.permit_state import LONG_AGO
from scheduler_plugin.ledger.accounts.pod_requests import PodRequests
from scheduler_plugin.ledger.accounts.waking import NO_WAKE_NEED, WakeNeed
from scheduler_plugin.ledger.facts import DEFAULT_WEIGHT, PodFacts, VmFacts

SHRINK_TIMEOUT: Final = Seconds(30.0)
"""Time within which a VM that was asked should shrink: its agent sends a request at least every 15 s, and its guest
shrinks or sleeps within seconds of the response.
"""

POD_SHRINK_TIMEOUT: Final = Seconds(45.0)
"""The same for a pod, which gives memory back after a trial of up to 30 s."""


WAKE_TIMEOUT: Final = Seconds(30.0)
"""A wake usually takes a few seconds. One that takes longer hangs, or reads a very large memory from disk."""


@dataclass(frozen=True, slots=True)
class DeferredResizes:
    """Deferred pod resizes on a node: ``all`` of them, and the part of pods with the opt-in label."""

    all: Resources = ZERO
    opted_in: Resources = ZERO

    @classmethod
    def of(cls, pod: PodFacts) -> DeferredResizes:
        """The deferred resize of one pod."""
        if not pod.deferred.any:
            return NONE_DEFERRED
        # All of it is reserved, but the scheduler moves VMs only for pods with the opt-in label.
        return cls(pod.deferred, pod.deferred if pod.make_room else ZERO)

    def __add__(self, other: DeferredResizes) -> DeferredResizes:
        return DeferredResizes(self.all + other.all, self.opted_in + other.opted_in)

    def __sub__(self, other: DeferredResizes) -> DeferredResizes:
        return DeferredResizes(self.all - other.all, self.opted_in - other.opted_in)


NONE_DEFERRED: Final = DeferredResizes()


class ClaimState(Enum):
    """State of the pod's bind. Every state keeps the whole reservation.

    An incoming claim has no pod yet; its ``pod`` only names the migration and the VM.
    """

    TENTATIVE = "tentative"  # reserved; the bind call is in flight
    UNKNOWN = "unknown"  # the bind call has an unknown outcome; the pod must be read again
    CONFIRMED = "confirmed"  # the API server accepted the bind; the watch has not shown the pod on its node yet
    BOUND = "bound"  # the watch has shown the pod on its node
    INCOMING = "incoming"  # reserved for a migration's target pod that has no node yet


@dataclass(frozen=True, slots=True)
class FreedRoom:
    """Room that a VM freed on request, at ``at``. ``to`` are the VMs that lacked it then, if any."""

    amount: Resources
    at: Instant
    to: tuple[ObjectName, ...] = ()


@dataclass(slots=True, eq=False)
class Claim:
    """Reservation of a pod on a node."""

    pod: PodFacts
    node: str
    state: ClaimState
    vm: VmAccount | None
    reserved: Resources = ZERO  # amount in the node's sum
    unmet: Resources = ZERO  # part of the agent's request that was denied for lack of room
    unsecured: Resources = ZERO  # part that was denied because the pod's requests do not cover it
    attempts: int = 0  # bind calls in flight
    is_migrating: bool = False  # a migration is to take the VM away
    counts_as_unbounded: bool = False  # the node counts the claim as ``is_unbounded``, so nothing there is free
    is_frozen: bool = False  # the migration's target pod has a node, so the VM must not be resized
    metrics: Metrics | None = None
    offered: Resources = ZERO  # room that the VM could free, by its agent's last request
    asked_since: Instant | None = None  # when the node first asked for that room
    permit_when_asked: Resources = ZERO
    last_freed: FreedRoom | None = None
    asleep_size: Resources | None = None  # reservation if the VM slept; None if its agent does not allow sleep
    sleep_asked_at: Instant = LONG_AGO  # when the node last asked it to sleep
    denied_since: Instant | None = None
    denial_cost: DenialCost = NO_DENIALS
    resizes: PodRequests | None = None  # None before the first resize of the pod's requests
    deferred: DeferredResizes = NONE_DEFERRED  # its part of the node's deferred resizes
    # The reservation when the guest had moved to another pod for good. It ignores the VM and stays until the pod goes.
    left_with: Resources | None = None
    has_booted: bool = False
    boots_with: Resources = ZERO  # largest size in the pod's arguments that the guest may still boot with
    wake_need: WakeNeed = NO_WAKE_NEED  # the sleeping VM's need in the node's sum
    growth: Resources = ZERO  # amount by which its VM may still grow on the node
    woken_at: Instant | None = None  # when it got all that it needs to wake; None if it did not, or gave up
    is_long_denied: bool = False  # has waited to wake for so long that no free room is kept for it

    def note_boot(self, total: Resources | None) -> None:
        """Update ``has_booted`` and ``boots_with``, on a node with ``total`` for pods (None: unknown).

        The guest has booted if the VM's status names this pod, or if it arrived by a migration.
        """
        facts = None if self.vm is None else self.vm.facts
        # The guest of a target pod booted in the source pod and keeps its size.
        self.has_booted = self.pod.migration is not None or (facts is not None and facts.runs_in(self.pod.name))
        boots_with = ZERO if self.has_booted else self.pod.boots_with
        self.boots_with = boots_with if total is None else boots_with.at_most(total.minus_or_zero(self.pod.overhead))

    @property
    def size(self) -> Resources:
        """The size to reserve now; see ``claim_size``."""
        size = (
            claim_size(self.pod, self.vm, self.boots_with)
            if self.left_with is None
            else self.left_with.at_least(self.pod.requests)
        )
        if self.resizes is None or self.pod.runner is None or not self.resizes.may_land:
            return size
        # A resize in flight counts as done: the kubelet may have granted it.
        return size.at_least(self.resizes.largest_in_flight + self.pod.overhead)

    @property
    def runs_vm(self) -> bool:
        """True for a VM's pod, which can migrate; False for ordinary pods, including databases in pods."""
        return self.vm is not None and not (self.vm.facts is not None and self.vm.facts.is_pod)

    @property
    def sleeps(self) -> bool:
        """True if its VM sleeps or is waking."""
        return self.vm is not None and self.vm.sleeps

    def is_waking(self, now: Instant) -> bool:
        """Return True if its VM was permitted to wake and its guest may not be running yet."""
        if self.woken_at is None or now - self.woken_at >= WAKE_TIMEOUT or self.vm is None or self.vm.facts is None:
            return False
        return self.vm.sleeps or self.vm.facts.is_waking

    def is_away(self, now: Instant) -> bool:
        """Return True if its VM is leaving, or its agent has been silent for ``SHRINK_TIMEOUT``."""
        is_silent = self.vm is None or now - self.vm.last_message_at >= SHRINK_TIMEOUT
        return is_silent or self.is_migrating or self.left_with is not None

    def need_to_wake(self, unmet: Resources) -> WakeNeed:
        """Resources that its sleeping VM lacks, ``unmet`` of which was denied; nothing if the VM is awake."""
        facts = None if self.vm is None else self.vm.facts
        if self.vm is None or facts is None or facts.wakes_with is None or self.left_with is not None:
            return NO_WAKE_NEED
        # A target pod has reserved the whole size already; see ``claim_size``.
        if _wakes_on_arrival(self.pod, facts).any:
            return NO_WAKE_NEED
        denied = ZERO if self.is_long_denied else unmet
        return WakeNeed(facts.wakes_with.minus_or_zero(self.vm.reserved), denied)

    def growth_beyond(self, reserved: Resources) -> Resources:
        """The amount by which its VM may grow beyond ``reserved``.

        Zero if it leaves: it grows elsewhere.
        """
        return ZERO if self.is_migrating or self.left_with is not None else growth_of(self.pod, self.vm, reserved)

    @property
    def weight(self) -> int:
        """The VM's weight when the node is short of room; pods without a VM get the default, which is never used."""
        return DEFAULT_WEIGHT if self.vm is None or self.vm.facts is None else self.vm.facts.weight

    @property
    def secured(self) -> Resources | None:
        """The guest's largest size that the pod's requests cover, whichever write lands; None if requests do not
        follow.
        """
        runner = self.pod.runner
        if (
            self.vm is None
            or self.left_with is not None
            or runner is None
            or (self.resizes is not None and self.resizes.exempt_because)
        ):
            return None
        # Requests are unknown until the watch has shown the pod on its node.
        if self.state is not ClaimState.BOUND:
            return ZERO
        return runner.secured if self.resizes is None else self.resizes.secured(runner)

    @property
    def is_unbounded(self) -> bool:
        """True if the pod's need has no known bound: the pod, its VM, the VM's bounds, or what it holds are unknown."""
        if self.vm is None:
            return not self.pod.is_bounded
        facts = self.vm.facts
        if facts is None:
            return not self.pod.is_bounded or bool(self.pod.vm_uid)
        is_bounded = self.pod.is_bounded and facts.is_bounded
        return not is_bounded or self.vm.awaits_first_message or self.vm.awaits_kubelet


@dataclass(slots=True, eq=False)
class VmAccount(PermitAccount):
    """Account of one VM: its permit, and the claims of its pods (two during a migration).

    ``uid`` is empty as long as all known pods lack it. ``is_replaced``: another VM has the same name now.
    """

    name: ObjectName | None = None
    uid: str = ""
    is_replaced: bool = False
    claims: list[Claim] = field(default_factory=list)

    @property
    def must_revoke(self) -> bool:
        """True if the VM has no agent, the stored permit may exceed its use, and no write is in flight."""
        has_nobody = self.is_off or not self.hosts
        return has_nobody and not (self.orders or self.is_deleted or self.stored_high.within(self.in_use))

    @property
    def hosts(self) -> list[Claim]:
        """Claims of the pods in which the guest runs, will run, or may run."""
        return [claim for claim in self.claims if claim.left_with is None]

    @property
    def known_pod(self) -> ObjectName | None:
        """The pod that the VM's status names, if it exists."""
        named = None if self.facts is None else self.facts.pod
        return named if any(claim.pod.name == named for claim in self.claims) else None

    def mark_left_claims(self, moved_from: Container[ObjectName | None]) -> list[Claim]:
        """Mark claims of pods that the VM has left, and unmark a pod that its status names again. Return the claims to
        update. ``moved_from``: pods that it has left by a migration.
        """
        named, claims = None if self.facts is None else self.facts.pod, self.claims
        # Fast path: runs once per pod event.
        if len(claims) == 1 and claims[0].left_with is None and claims[0].pod.name == named:
            return []
        pods, runs_elsewhere = [claim for claim in claims if claim.state is not ClaimState.INCOMING], self.known_pod
        for claim in pods:
            if claim.pod.name == named:
                claim.left_with = None
            elif claim.left_with is None:
                # A guest that slept here and was not permitted to wake has not run here since. A pod that is being
                # deleted may be the VM's only one.
                is_over = runs_elsewhere is not None and (claim.wake_need.missing.any or claim.pod.is_terminating)
                if is_over or claim.pod.name in moved_from:
                    claim.left_with = claim.reserved
        # No pod can run the guest, so there is no agent either.
        if pods and not self.hosts:
            self.forget_agent()
        return pods


def _after_restart(pod: PodFacts, vm: VmFacts) -> Resources:
    """Size in the spec, if the pod boots a new machine because the VM's status does not name it; otherwise zero."""
    # A migration's target keeps the machine of its source, even if the spec has changed.
    is_new = pod.migration is None and pod.name != vm.pod
    return vm.after_restart if is_new and vm.after_restart is not None else ZERO


def _wakes_on_arrival(pod: PodFacts, vm: VmFacts) -> Resources:
    """Size at which a VM that sleeps in another pod would run in this one; otherwise zero."""
    return vm.wakes_with if vm.wakes_with is not None and vm.pod not in (None, pod.name) else ZERO


def growth_of(pod: PodFacts, vm: VmAccount | None, size: Resources) -> Resources:
    """The amount by which the VM in ``pod``, of ``size`` with the overhead around the guest, may grow.

    Zero if it has no agent or is deleted.
    """
    if vm is None or vm.facts is None or not vm.has_agent or vm.is_deleted:
        return ZERO
    return (vm.facts.maximum + pod.overhead).minus_or_zero(size)


def claim_size(pod: PodFacts, vm: PermitAccount | None, boots_with: Resources | None = None) -> Resources:
    """The size of ``pod``: its VM plus the overhead around the guest, at least its requests.

    ``boots_with`` is the size that the guest may still boot with; None: as in the pod's arguments.
    """
    if vm is None or vm.facts is None:
        return pod.requests
    boots_with = pod.boots_with if boots_with is None else boots_with
    guest = vm.reserved if vm.facts.after_restart is None else vm.reserved.at_least(_after_restart(pod, vm.facts))
    guest = guest if boots_with is ZERO else guest.at_least(boots_with)
    # A sleeping VM runs as soon as its migration ends.
    guest = guest if vm.facts.wakes_with is None else guest.at_least(_wakes_on_arrival(pod, vm.facts))
    guest = guest if pod.overhead is ZERO else guest + pod.overhead
    return guest if pod.requests.within(guest) else guest.at_least(pod.requests)
