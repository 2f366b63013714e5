"""Planner results, settings, and the need of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Final

from protocol.messages import ObjectName
from protocol.smoothing.window import WindowMax
from protocol.units import ZERO, Bytes, Instant, MilliCpu, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import DeferredResizes
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.accounts.sharing import promised
from scheduler_plugin.ledger.moves import Move, MoveCause
from scheduler_plugin.placement.verdict import Room
from scheduler_plugin.planner.cost import SPARE, Freedom
from scheduler_plugin.planner.refused_targets import RefusedTargets
from scheduler_plugin.planner.victims import Rest
from scheduler_plugin.texts import explanations
from scheduler_plugin.texts.amounts import some

GRACE: Final = Seconds(30.0)
"""A migration ends at its timeout; it is cancelled if it still exists this much later."""

SETTLES_SOON: Final = Seconds(10.0)
"""How long a cordon or a needless move must last before it counts, if shorter than ``settle``: neither is a peak."""

SOONEST: Final = Seconds(3.0)
"""Minimum length of a denial or deferred resize before VMs move: agents ask again within that time."""

MEM_OF_VCPU: Final = Bytes.parse("4Gi")
"""Memory worth one vCPU."""


@dataclass(frozen=True, slots=True)
class MigrationPolicy:
    """Settings of migrations: when VMs move, and how many at once.

    ``settle``: pressure of this length moves VMs. ``settle_denied``: the same for the denial of up to one vCPU; larger
    denials move VMs proportionally sooner. The scheduler orders no migration beyond ``out_per_node`` and
    ``in_per_node`` per node and ``per_cluster`` in all (a fraction is of all nodes, rounded up); migrations by people
    count too. ``timeout`` is the maximum length of a migration, ``placement_timeout`` the maximum wait of its target
    pod for a node. ``opt_in``: only VMs that ask for it move. ``enabled`` False: the scheduler moves no VM by itself.
    """

    enabled: bool = True
    settle: Seconds = Seconds(120.0)
    settle_denied: Seconds = Seconds(90.0)
    rest: Rest = field(default_factory=Rest)
    out_per_node: int = 1
    in_per_node: int = 2
    per_cluster: int | Fraction = Fraction(1, 5)
    timeout: Seconds = Seconds(300.0)
    placement_timeout: Seconds = Seconds(10.0)
    opt_in: bool = False
    drain_cordoned: bool = True

    def at_once(self, nodes: int) -> int:
        """Maximum number of active migrations in a cluster of ``nodes`` nodes."""
        limit = self.per_cluster
        # Rounded up, so that a small cluster can move one VM.
        return ceil(limit * nodes) if isinstance(limit, Fraction) else limit

    def denial_settles(self, lacking: Resources) -> Seconds:
        """Minimum length of a denial of ``lacking`` before VMs move."""
        # Ski rental: a move pays once the denial has cost as much, because its further length is unknown. For 1 to 30
        # vCPUs the total is at most twice the optimum.
        vcpus = max(lacking.cpu.as_cores, lacking.mem.ratio(MEM_OF_VCPU), 1.0)
        return max(Seconds(self.settle_denied / vcpus), min(SOONEST, self.settle_denied))


@dataclass(frozen=True, slots=True)
class Stuck:
    """No VM can leave ``node``, for the reason ``why``."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a migration of ours: delete its object, or do not create it."""

    migration: ObjectName
    why: str


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The moves to order now. ``forget`` are ended migrations of ours to delete."""

    moves: tuple[Move, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    cancels: tuple[Cancel, ...] = ()
    forget: tuple[ObjectName, ...] = ()


@dataclass(slots=True, eq=False)
class MigrationStatus:
    """``idle`` is why no VM moves at all (None: VMs may move).

    ``stuck`` is why no VM can leave a node, by node; ``refused`` are recent refusals by target nodes.
    """

    idle: str | None = explanations.NO_ROUND_YET
    stuck: Mapping[str, str] = field(default_factory=dict)
    refused: RefusedTargets = field(default_factory=RefusedTargets)


_REASONS: Final = {
    MoveCause.WATERMARK: explanations.ABOVE_WATERMARK,
    MoveCause.DENIED_VM: explanations.DENIES_VMS,
    MoveCause.DEFERRED_POD: explanations.DEFERS_POD,
}

Seen = tuple[Room, Resources, Resources, DeferredResizes, Resources]


def seen_of(book: NodeAccount) -> Seen:
    """The amounts from which a node's need is computed."""
    return book.room, book.unmet, book.migrating, book.waits, book.asked


class LastingExcess:
    """The excess that a node has had throughout the last ``span`` seconds (> 0)."""

    def __init__(self, span: Seconds) -> None:
        self.span = span
        self._cpu, self._mem = WindowMax(span), WindowMax(span)

    def observe(self, excess: Resources, now: Instant) -> Resources:
        """Add the excess at ``now``; return the minimum of each resource within the span."""
        # The windows compute maxima.
        self._cpu.add(-excess.cpu.value, now)
        self._mem.add(-excess.mem.value, now)
        return Resources(MilliCpu(-int(self._cpu.max() or 0)), Bytes(-int(self._mem.max() or 0)))


@dataclass(frozen=True, slots=True)
class RoomNeed:
    """A node that VMs should leave since ``since``: as many as relieve ``excess``, or all if None.

    ``denied_since`` is when the present denial there began, None if there is none. ``amounts`` are the account's
    amounts that this was computed from (``seen_of``). ``lasting`` is None if all must leave, or without a minimum
    duration. ``is_of_waking``: only waking VMs were denied for long enough, and only they are to leave.
    """

    book: NodeAccount
    amounts: Seen
    excess: Resources | None
    since: Instant
    denied_since: Instant | None
    lasting: LastingExcess | None = None
    is_of_waking: bool = False

    def is_of(self, book: NodeAccount, *, drains: bool) -> bool:
        """Return True if ``book`` has not changed since this was computed."""
        is_same = book is self.book and seen_of(book) == self.amounts
        return is_same and (self.excess is None) is drains

    def freedom(self, slack: Resources) -> Freedom | None:
        """The room to gain and the welcome amount; None: all must leave.

        ``slack`` is the emptiest target's.
        """
        if self.excess is None:
            return None
        book = self.book
        # Without what is already leaving.
        return Freedom.of(self.excess, book.room.watermark, slack, book.wished.minus_or_zero(book.migrating))

    def due(self, policy: MigrationPolicy, now: Instant) -> RoomNeed | None:
        """The part that has lasted long enough to move VMs and that no VM is about to free; None if none.

        Denials first: pressure above the watermark denies nobody anything.
        """
        if self.excess is None:
            return self if now - self.since >= min(policy.settle, SETTLES_SOON) else None
        least = self.excess if self.lasting is None else self.lasting.observe(self.excess, now)
        denied = self._long_denied(policy, now)
        if denied.any:
            return self._after_giving(denied, now)
        # A client waits for each of these, and moving a sleeping VM costs next to nothing.
        if (waking := self._long_denied(policy, now, is_of_waking=True)).any:
            return replace(self, is_of_waking=True)._after_giving(waking, now)
        if now - self.since < policy.settle:
            return None
        # A move for the watermark only, independent of denials.
        return replace(self, denied_since=None)._after_giving(least, now)

    def _long_denied(self, policy: MigrationPolicy, now: Instant, *, is_of_waking: bool = False) -> Resources:
        """Room that VMs were denied, and pods have waited for, for long enough, without what is leaving.

        ``is_of_waking``: only of waking VMs, which wait less long.
        """
        if self.denied_since is None:
            return ZERO
        book, pressure, soonest = self.book, self.book.pressure, min(SOONEST, policy.settle_denied)
        unmet = Resources.sum(
            claim.unmet
            for claim in book.claims.values()
            if claim.denied_since is not None
            and (claim.sleeps or not is_of_waking)
            and now - claim.denied_since >= (soonest if is_of_waking else policy.denial_settles(claim.unmet))
        )
        pods = ZERO
        if now - self.denied_since >= soonest and not is_of_waking:
            # Pressure beyond the denials of VMs comes from pods.
            pods = pressure.capacity.minus_or_zero(book.unmet.minus_or_zero(book.open_to_denied))
        return (unmet.minus_or_zero(book.open_to_denied) + pods).minus_or_zero(pressure.slack + pressure.migrating)

    def _after_giving(self, excess: Resources, now: Instant) -> RoomNeed | None:
        """The part of ``excess`` that remains after the node's VMs have freed what they offer."""
        missing = excess.minus_or_zero(promised(self.book, now))
        return replace(self, excess=missing) if missing.any else None

    @property
    def kept_on_targets(self) -> Fraction:
        """Share of its watermark that a target must keep free."""
        # Moving for the watermark from one full node to another does not help.
        return SPARE if self.cause is MoveCause.WATERMARK else Fraction(0)

    @property
    def urgency(self) -> tuple[bool, bool, float, str]:
        """Sort key: nodes with denials, then full ones, then cordoned ones; longest wait first."""
        return self.denied_since is None, self.excess is None, self.since, self.book.name

    @property
    def cause(self) -> MoveCause:
        """Cause of the moves."""
        if self.excess is None:
            return MoveCause.DRAIN
        if self.denied_since is None:
            return MoveCause.WATERMARK
        return MoveCause.DENIED_VM if self.book.unmet.any else MoveCause.DEFERRED_POD

    @property
    def reason(self) -> str:
        """The cause in words, for people."""
        if self.excess is None:
            return explanations.CORDONED.format(node=self.book.name)
        return _REASONS[self.cause].format(node=self.book.name, excess=some(self.excess))
