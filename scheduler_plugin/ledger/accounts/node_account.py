"""One node: the sums of its claims, its free room, and its pressure (S4.7, S4.8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from protocol.units import ZERO, Bytes, Instant, MilliCpu, Resources
from scheduler_plugin.constraints.cluster_view import PlacedPod, PodsOnNode
from scheduler_plugin.ledger.accounts.claims import NONE_DEFERRED, Claim, ClaimState, DeferredResizes
from scheduler_plugin.ledger.accounts.waking import NO_WAKE_NEED, WakeNeed, room_for_waking
from scheduler_plugin.ledger.facts import NodeFacts, NodePolicy
from scheduler_plugin.ledger.wake_reserve import NO_RESERVE
from scheduler_plugin.placement.verdict import Room

SHRINK_THRESHOLD: Final = Fraction(9, 10)
"""Share of the watermark above which a node asks its VMs to shrink."""

SUDDEN_GROWTH: Final = Fraction(1, 4)
"""Share of the watermark by which the need of a node's VMs may jump within seconds."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """Amounts that should leave a node.

    ``logical`` is reserved above the watermark. ``capacity`` was denied to VMs and would not fit now. ``slack`` is room
    below the watermark, which is used up before any migration. ``migrating`` is already leaving.
    """

    logical: Resources
    capacity: Resources
    migrating: Resources
    slack: Resources

    @classmethod
    def of(
        cls, room: Room, unmet: Resources, migrating: Resources, *, waits: Resources = ZERO, asked: Resources = ZERO
    ) -> Pressure:
        """Pressure of a node with ``room`` whose VMs were denied ``unmet``.

        ``waits`` is the reserved part that deferred pod resizes wait for. VMs may be moved for ``asked`` of it,
        which counts as granted.
        """
        # A deferred resize is reserved but is no pressure. With the opt-in label it counts like a VM's request.
        wanted = room.reserved.minus_or_zero(waits) + asked
        # It is logical pressure up to the node's total, and capacity pressure beyond.
        covered = wanted.at_most(room.total) if asked.any else wanted
        return cls(
            logical=covered.minus_or_zero(room.watermark),
            # Room freed since the denial goes to the agent's next request.
            capacity=unmet.minus_or_zero(room.free) + wanted.minus_or_zero(covered),
            migrating=migrating,
            slack=room.watermark.minus_or_zero(covered),
        )

    @property
    def due(self) -> Resources:
        """Amount that must leave the node, including what is already being migrated."""
        return (self.logical + self.capacity).minus_or_zero(self.slack)

    @property
    def excess(self) -> Resources:
        """Amount that must still leave the node, without what is migrating."""
        return self.due.minus_or_zero(self.migrating)

    @property
    def has_excess(self) -> bool:
        """True if more VMs should be chosen to migrate: CPU or memory has an excess."""
        return self.excess.any


@dataclass(slots=True, eq=False)
class NodeAccount:
    """The claims on one node. The account of a deleted node stays, closed, while it has claims."""

    name: str
    facts: NodeFacts | None = None
    policy: NodePolicy | None = None
    claims: dict[str, Claim] = field(default_factory=dict)
    # Sums over ``claims``
    reserved: Resources = ZERO
    unmet: Resources = ZERO
    migrating: Resources = ZERO
    deferred: DeferredResizes = NONE_DEFERRED
    # Overcommitment caused from outside: a foreign pod, a smaller node, a VM larger than its grant. Never by grants.
    forced: Resources = ZERO
    unbounded: int = 0  # claims without an upper bound; with one of them nothing is free
    wake_needs: dict[str, WakeNeed] = field(default_factory=dict)  # of sleeping VMs, by pod
    waking: Resources = ZERO  # their part of ``unmet``
    growth: Resources = ZERO  # largest possible growth of one VM here, for each resource
    room: Room = field(init=False)
    shrink_threshold: Resources = field(init=False)  # above it the node asks VMs to shrink
    fast_poll_threshold: Resources = field(init=False)  # above it the node may ask within seconds
    next_donors: tuple[Instant, frozenset[str]] | None = None  # pods that it would ask, and when that was computed
    scarce_room: tuple[tuple[Resources, Resources], Instant, Resources] | None = None  # cache of ``sharing``
    _placed: PodsOnNode | None = None

    def __post_init__(self) -> None:
        self.refresh()

    @property
    def total_or_none(self) -> Resources | None:
        """The total room for pods; None if the node is unknown."""
        return None if self.facts is None else self.room.total

    @property
    def placed(self) -> PodsOnNode:
        """Pods on the node or about to be bound to it, as constraints of other pods see them."""
        # Cached: the planner reads all nodes every second, and pods rarely change.
        if self._placed is None:
            pods = (claim.pod for claim in self.claims.values() if claim.state is not ClaimState.INCOMING)
            self._placed = PodsOnNode.of(PlacedPod(self.name, pod.name.namespace, pod.traits) for pod in pods)
        return self._placed

    def pods_changed(self) -> None:
        """Drop the cached pods: one was added, removed or changed."""
        self._placed = None

    @property
    def overcommit(self) -> Resources:
        """Amount by which claims exceed the room for pods."""
        return self.reserved.minus_or_zero(self.room.total)

    @property
    def pressure(self) -> Pressure:
        """The node's pressure."""
        # Waking VMs may use room beyond what is free for growth.
        unmet = self.unmet.minus_or_zero(self.room.for_waking.at_most(self.waking))
        return Pressure.of(self.room, unmet, self.migrating, waits=self.deferred.all, asked=self.movable_deferred)

    @property
    def excess_if_granted(self) -> Resources:
        """Amount that would be above the watermark if every request were granted."""
        granted = self.reserved.minus_or_zero(self.deferred.all)
        return (granted + self.unmet + self.movable_deferred).minus_or_zero(self.room.watermark)

    @property
    def movable_deferred(self) -> Resources:
        """Opted-in deferred resizes that do not fit now, but that the kubelet could grant if VMs moved away."""
        if not self.deferred.opted_in.any:
            return ZERO
        wanted, free = (
            self.deferred.opted_in,
            self.room.total.minus_or_zero(self.reserved.minus_or_zero(self.deferred.all)),
        )
        # The kubelet grants what fits without our help. If no VM has requests, the kubelet would not see them leave.
        if self.facts is None or wanted.within(free) or not self._vms_request:
            return ZERO
        resizes = [claim.deferred.opted_in for claim in self.claims.values() if claim.deferred.opted_in.any]
        # Upper bound: all VMs gone, no deferred resize granted.
        others = Resources.sum(claim.pod.requests for claim in self.claims.values() if not claim.runs_vm)
        return _as_many_as_fit(resizes, self.facts.allocatable.minus_or_zero(others.minus_or_zero(self.deferred.all)))

    @property
    def _vms_request(self) -> bool:
        """True if moving VMs away frees requests."""
        # The kubelet counts pod requests, not what guests have.
        return any(claim.runs_vm and claim.pod.requests.any for claim in self.claims.values())

    @property
    def is_strained(self) -> bool:
        """True if VMs may have to leave: over the watermark, a VM denied, or cordoned with pods left."""
        room = self.room
        if self.facts is None:
            return False
        # Cordoned: drain it.
        if not room.is_open and self.claims:
            return True
        return not (self.reserved.within(room.watermark) and self.unmet.within(self.free_for_denied))

    def lacking_for_growth(self, share: float) -> Resources:
        """Amount that would not fit if one VM grew by ``share`` of the largest possible growth here."""
        growth = self.growth if share == 1 else self.growth.scaled(share)
        return (self.reserved + growth).minus_or_zero(self.room.total)

    @property
    def is_crowded(self) -> bool:
        """True if VMs may have to leave before one is denied: one of them could not grow to its bound."""
        return self.room.is_open and self.lacking_for_growth(1).any

    @property
    def free_for_denied(self) -> Resources:
        """The free room that denied VMs could get now."""
        return self.room.free + self.room.for_waking.at_most(self.waking)

    def update(self, facts: NodeFacts | None) -> None:
        """Store new facts; None: the node was deleted."""
        self.facts = facts
        # Keep the policy of a deleted node: agents of its remaining VMs still get answers.
        if facts is not None:
            self.policy = facts.policy
        self.refresh()

    def refresh(self) -> None:
        """Compute the room from the facts and sums."""
        total = watermark = ZERO
        if self.facts is not None:
            total = self.facts.reservable
            watermark = self.facts.policy.watermark_of(self.facts.allocatable)
        self.shrink_threshold = watermark.scaled(SHRINK_THRESHOLD)
        self.fast_poll_threshold = watermark.scaled(SHRINK_THRESHOLD - SUDDEN_GROWTH)
        left = self._free(total)
        for_waking = self._for_waking(total, left)
        self.room = Room(
            node=self.name,
            total=total,
            reserved=self.reserved,
            free=left - for_waking,
            watermark=watermark,
            is_open=self.facts is not None and self.facts.is_open,
            price=0.0 if self.facts is None else self.facts.price,
            for_waking=for_waking,
            growth=self.growth,
        )

    def replace(self, taken: Resources, new: Resources) -> None:
        """Change a claim's part of ``reserved`` from ``taken`` to ``new``."""
        self.reserved = self.reserved - taken + new
        room, left = self.room, self._free(self.room.total)
        waking = self._for_waking(room.total, left)
        free = left if waking is ZERO else left - waking
        self.room = Room(
            room.node, room.total, self.reserved, free, room.watermark, room.is_open, room.price, waking, self.growth
        )

    def update_growth(self) -> None:
        """Compute ``growth`` from the claims, of which some have changed."""
        cpu = mem = 0
        for claim in self.claims.values():
            # Plain numbers, because this runs for every change.
            cpu, mem = max(cpu, claim.growth.cpu.value), max(mem, claim.growth.mem.value)
        if cpu != self.growth.cpu.value or mem != self.growth.mem.value:
            self.growth = Resources(MilliCpu(cpu), Bytes(mem))
            self.replace(ZERO, ZERO)

    def set_wake_need(self, claim: Claim, need: WakeNeed) -> None:
        """Set what the claim's sleeping VM lacks to wake."""
        if need == claim.wake_need:
            return
        if need == NO_WAKE_NEED:
            self.wake_needs.pop(claim.pod.uid, None)
        else:
            self.wake_needs[claim.pod.uid] = need
        self.waking = self.waking - claim.wake_need.denied + need.denied
        claim.wake_need = need
        self.replace(ZERO, ZERO)

    def _free(self, total: Resources) -> Resources:
        # A claim without an upper bound may need all the rest.
        return ZERO if self.unbounded else total.minus_or_zero(self.reserved)

    def _for_waking(self, total: Resources, left: Resources) -> Resources:
        # Fast path for every claim change: nothing sleeps here.
        if not self.wake_needs:
            return ZERO
        reserve = NO_RESERVE if self.policy is None else self.policy.wake_reserve
        return room_for_waking(self.wake_needs.values(), reserve, total).at_most(left)


def _as_many_as_fit(resizes: list[Resources], room: Resources) -> Resources:
    total = ZERO
    # The kubelet grants a resize whole or not at all. Smallest first, so that most of them fit.
    for resize in sorted(resizes, key=lambda amounts: (amounts.cpu, amounts.mem)):
        if (total + resize).within(room):
            total = total + resize
    return total
