"""One node's book: the sums of its claims, the room that is left, and the pressure (S4.7, S4.8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.constraints.cluster_view import NodePods, PlacedPod
from scheduler_plugin.ledger.accounts.claims import NONE_DEFERRED, Claim, ClaimState, DeferredResizes
from scheduler_plugin.ledger.accounts.waking import NO_WAKE_NEED, WakeNeed, kept_for_waking
from scheduler_plugin.ledger.facts import NodeFacts, NodePolicy
from scheduler_plugin.ledger.wake_reserve import NO_RESERVE
from scheduler_plugin.placement.verdict import Room

ASKS_FROM: Final = Fraction(9, 10)
"""The share of its watermark from which on a node asks its VMs to give back."""

SUDDEN: Final = Fraction(1, 4)
"""The share of its watermark that its VMs may come to need at once."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """Amounts per resource that should leave a node.

    ``logical`` is what is reserved above the watermark; ``capacity`` what VMs asked for and did not get, as far as it
    would not fit now. ``slack``, the room below the watermark, answers both before any migration does; ``migrating`` is
    already on its way out.
    """

    logical: Resources
    capacity: Resources
    migrating: Resources
    slack: Resources

    @classmethod
    def of(
        cls, room: Room, unmet: Resources, migrating: Resources, *, waits: Resources = ZERO, asked: Resources = ZERO
    ) -> Pressure:
        """The pressure of a node with ``room``, whose VMs did not get ``unmet``.

        Pods still wait for ``waits`` of what is reserved. The part ``asked`` is what VMs may leave for: it counts as
        granted.
        """
        # What a pod's deferred resize waits for is no pressure, though it is reserved. If the pod asks for room, it
        # counts like a VM's wish.
        wanted = room.reserved.minus_or_zero(waits) + asked
        # A wish is logical pressure up to the node's total, and capacity pressure beyond.
        covered = wanted.at_most(room.total) if asked.any else wanted
        return cls(
            logical=covered.minus_or_zero(room.watermark),
            # Room may have come free since the agent was denied; it gets that with its next request.
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
        """Amount that must still leave the node, beyond what is being migrated."""
        return self.due.minus_or_zero(self.migrating)

    @property
    def too_much(self) -> bool:
        """True if more VMs should be chosen to migrate: CPU or memory has an excess."""
        return self.excess.any


@dataclass(slots=True, eq=False)
class NodeAccount:
    """The claims on one node. A node that is gone keeps its book while claims are left on it, closed.

    ``reserved``, ``unmet``, ``migrating`` and ``waits`` are sums over ``claims``. ``forced`` is by how much facts from
    outside (a foreign pod, a node that shrank, a VM that has more than was granted) have pushed the node over its
    total: no grant ever may. ``wake_needs`` are those of its sleeping VMs by pod, ``waking`` is what of ``unmet`` they
    lack. ``unmeasured`` counts claims that may need anything: nothing is free beside one.
    Above ``asks_from`` VMs are asked to give back what they do not need, above ``asks_soon_from`` they may be within
    seconds: ``next_givers`` are the pods of those, and when that was found out.
    """

    name: str
    facts: NodeFacts | None = None
    policy: NodePolicy | None = None
    claims: dict[str, Claim] = field(default_factory=dict)
    reserved: Resources = ZERO
    unmet: Resources = ZERO
    migrating: Resources = ZERO
    waits: DeferredResizes = NONE_DEFERRED
    forced: Resources = ZERO
    unmeasured: int = 0
    wake_needs: dict[str, WakeNeed] = field(default_factory=dict)
    waking: Resources = ZERO
    room: Room = field(init=False)
    asks_from: Resources = field(init=False)
    asks_soon_from: Resources = field(init=False)
    next_givers: tuple[Instant, frozenset[str]] | None = None
    _placed: NodePods | None = None

    def __post_init__(self) -> None:
        self.refresh()

    @property
    def whole(self) -> Resources | None:
        """The total that pods may reserve; None while the node is unknown."""
        return None if self.facts is None else self.room.total

    @property
    def placed(self) -> NodePods:
        """The pods that are on the node or are about to be bound to it, as other pods' constraints see them."""
        # Remembered: the planner looks at all nodes every second, and pods seldom come and go.
        if self._placed is None:
            pods = (claim.pod for claim in self.claims.values() if claim.state is not ClaimState.INCOMING)
            self._placed = NodePods.of(PlacedPod(self.name, pod.name.namespace, pod.traits) for pod in pods)
        return self._placed

    def pods_changed(self) -> None:
        """A pod has come, gone or changed."""
        self._placed = None

    @property
    def over(self) -> Resources:
        """By how much the claims exceed what may be reserved here."""
        return self.reserved.minus_or_zero(self.room.total)

    @property
    def pressure(self) -> Pressure:
        """The node's state against its watermark."""
        # Waking VMs get more than what is free for growth.
        unmet = self.unmet.minus_or_zero(self.room.for_waking.at_most(self.waking))
        return Pressure.of(self.room, unmet, self.migrating, waits=self.waits.all, asked=self.asked)

    @property
    def wished(self) -> Resources:
        """By how much the node would be above its watermark if all were granted that is asked for."""
        granted = self.reserved.minus_or_zero(self.waits.all)
        return (granted + self.unmet + self.asked).minus_or_zero(self.room.watermark)

    @property
    def asked(self) -> Resources:
        """Amounts that pods wait for, asked for room, that do not fit and that the kubelet could grant if VMs left."""
        if not self.waits.asked.any:
            return ZERO
        wanted, free = self.waits.asked, self.room.total.minus_or_zero(self.reserved.minus_or_zero(self.waits.all))
        # What fits needs no VM to leave: the kubelet grants it by itself. If no VM has requests, the kubelet would
        # see no room come free.
        if self.facts is None or wanted.within(free) or not self._vms_request:
            return ZERO
        wishes = [claim.waits.asked for claim in self.claims.values() if claim.waits.asked.any]
        # The most that could come free: all VMs gone, and none of the deferred requests granted yet.
        others = Resources.sum(claim.pod.requests for claim in self.claims.values() if not claim.runs_vm)
        return _as_many_as_fit(wishes, self.facts.allocatable.minus_or_zero(others.minus_or_zero(self.waits.all)))

    @property
    def _vms_request(self) -> bool:
        """True if the kubelet sees VMs go."""
        # The kubelet counts the requests of pods, and not what their guests have.
        return any(claim.runs_vm and claim.pod.requests.any for claim in self.claims.values())

    @property
    def is_strained(self) -> bool:
        """True if VMs may have to leave: above the watermark, a VM denied, or cordoned with pods left."""
        room = self.room
        if self.facts is None:
            return False
        # A cordoned node is to be drained.
        if not room.is_open and self.claims:
            return True
        return not (self.reserved.within(room.watermark) and self.unmet.within(self.open_to_denied))

    @property
    def open_to_denied(self) -> Resources:
        """The free room that VMs which were denied something would get now."""
        return self.room.free + self.room.for_waking.at_most(self.waking)

    def know(self, facts: NodeFacts | None) -> None:
        """Takes new facts; None: the node is gone."""
        self.facts = facts
        # The policy outlives the node: agents of VMs left on it are still answered by it.
        if facts is not None:
            self.policy = facts.policy
        self.refresh()

    def refresh(self) -> None:
        """Derives the room from the facts and the sums."""
        total = watermark = ZERO
        if self.facts is not None:
            total = self.facts.reservable
            watermark = self.facts.policy.watermark_of(self.facts.allocatable)
        self.asks_from = watermark.scaled(ASKS_FROM)
        self.asks_soon_from = watermark.scaled(ASKS_FROM - SUDDEN)
        left = self._left(total)
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
        )

    def replace(self, taken: Resources, given: Resources) -> None:
        """A claim's part of the sum changes from ``taken`` to ``given``."""
        self.reserved = self.reserved - taken + given
        room, left = self.room, self._left(self.room.total)
        waking = self._for_waking(room.total, left)
        free = left if waking is ZERO else left - waking
        self.room = Room(room.node, room.total, self.reserved, free, room.watermark, room.is_open, room.price, waking)

    def need_to_wake(self, claim: Claim, need: WakeNeed) -> None:
        """The sleeping VM of the claim lacks ``need`` from now on."""
        if need == claim.wake_need:
            return
        if need == NO_WAKE_NEED:
            self.wake_needs.pop(claim.pod.uid, None)
        else:
            self.wake_needs[claim.pod.uid] = need
        self.waking = self.waking - claim.wake_need.denied + need.denied
        claim.wake_need = need
        self.replace(ZERO, ZERO)

    def _left(self, total: Resources) -> Resources:
        # A claim without a bound may need all that is left.
        return ZERO if self.unmeasured else total.minus_or_zero(self.reserved)

    def _for_waking(self, total: Resources, left: Resources) -> Resources:
        # The usual case, for each change of a claim: nobody sleeps here.
        if not self.wake_needs:
            return ZERO
        reserve = NO_RESERVE if self.policy is None else self.policy.wake_reserve
        return kept_for_waking(self.wake_needs.values(), reserve, total).at_most(left)


def _as_many_as_fit(wishes: list[Resources], room: Resources) -> Resources:
    total = ZERO
    # A kubelet grants each wish whole or not at all; the smallest first lets most of them fit.
    for wish in sorted(wishes, key=lambda amounts: (amounts.cpu, amounts.mem)):
        if (total + wish).within(room):
            total = total + wish
    return total
