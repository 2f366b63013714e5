"""Decisions about migrations, the settings for them, and the need of a node."""

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
"""A migration ends itself at its time-out; one that is still there this much later is cancelled."""

SETTLES_SOON: Final = Seconds(10.0)
"""How long a node is cordoned, or a move needless, at most before that counts: unlike a peak, it does not pass."""

SOONEST: Final = Seconds(3.0)
"""How long a denial, or a pod's deferred resize, lasts at least before VMs move: agents ask again within that time."""

MEM_OF_VCPU: Final = Bytes.parse("4Gi")
"""Memory that is as hard to do without as one vCPU."""


@dataclass(frozen=True, slots=True)
class MigrationPolicy:
    """Rules for migrations: when VMs are moved, and how many at once.

    ``settle``: pressure that lasts this long moves VMs. ``settle_denied``: so does the denial of a VM that lacks up to
    one vCPU; of one that lacks more, a denial that is shorter in proportion. Active migrations, people's too, are at
    most ``out_per_node`` and ``in_per_node`` for each node, and ``per_cluster`` in all (a fraction is one of all nodes,
    rounded up), as far as the scheduler adds to them.
    ``timeout`` is how long one may take, ``placement_timeout`` how long its target pod may wait for its node. With
    ``opt_in`` only VMs that ask for it are moved. With ``enabled`` False the scheduler moves no VM by itself.
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
        """The number of migrations that may be active in a cluster of ``nodes`` nodes."""
        limit = self.per_cluster
        # Rounded up: a small cluster may still move one VM.
        return ceil(limit * nodes) if isinstance(limit, Fraction) else limit

    def denial_settles(self, lacking: Resources) -> Seconds:
        """The time after which the denial of a VM that lacks ``lacking`` moves VMs."""
        # A move costs about the same for any VM. It pays once the denial has cost as much (ski rental): what it will
        # cost yet is not known. If it lacks 1 to 30 vCPUs, the sum is at most twice that of a scheduler that knew.
        vcpus = max(lacking.cpu.as_cores, lacking.mem.ratio(MEM_OF_VCPU), 1.0)
        return max(Seconds(self.settle_denied / vcpus), min(SOONEST, self.settle_denied))


@dataclass(frozen=True, slots=True)
class Stuck:
    """VMs should leave ``node`` and none can: ``why`` in words, with numbers."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """A migration of ours that must not go on: delete its object, or do not make it."""

    migration: ObjectName
    why: str


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The moves to order now. ``forget`` are ended migrations of ours whose objects are no longer needed."""

    moves: tuple[Move, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    cancels: tuple[Cancel, ...] = ()
    forget: tuple[ObjectName, ...] = ()


@dataclass(slots=True, eq=False)
class MigrationStatus:
    """``idle`` says why no VM is moved at all (None: the mover is at work).

    ``stuck`` says by node why VMs that should leave it cannot, ``refused`` where VMs were not placed lately.
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
    """All that a node's need is derived from."""
    return book.room, book.unmet, book.migrating, book.waits, book.asked


class LastingExcess:
    """The part of a node's excess that it has had all through the last ``span`` seconds (> 0)."""

    def __init__(self, span: Seconds) -> None:
        self.span = span
        self._cpu, self._mem = WindowMax(span), WindowMax(span)

    def observe(self, excess: Resources, now: Instant) -> Resources:
        """Take the excess at ``now``; returns the least of each resource within the span."""
        # The windows find the greatest value, so they get negative ones.
        self._cpu.add(-excess.cpu.value, now)
        self._mem.add(-excess.mem.value, now)
        return Resources(MilliCpu(-int(self._cpu.max() or 0)), Bytes(-int(self._mem.max() or 0)))


@dataclass(frozen=True, slots=True)
class RoomNeed:
    """A node that VMs should leave since ``since``: as much of them as the ``excess``, or all if that is None.

    ``denied_since`` is when the present denial of a VM there began, None if none is denied. ``seen`` are the amounts in
    the book that this was derived from: see ``seen_of``. ``lasting`` is None if all must go, or if nothing has to last.
    ``is_of_waking``: only VMs that wait to wake have been denied room for long enough, and none but them are to leave.
    """

    book: NodeAccount
    seen: Seen
    excess: Resources | None
    since: Instant
    denied_since: Instant | None
    lasting: LastingExcess | None = None
    is_of_waking: bool = False

    def is_of(self, book: NodeAccount, *, drains: bool) -> bool:
        """Return True if ``book`` still holds the amounts that this was derived from: then it is still right."""
        is_same = book is self.book and seen_of(book) == self.seen
        return is_same and (self.excess is None) is drains

    def freedom(self, slack: Resources) -> Freedom | None:
        """The amount of room that suffices, and the welcome one; None: all must go.

        ``slack`` is the emptiest target's.
        """
        if self.excess is None:
            return None
        book = self.book
        # What is already on its way out is not asked for twice.
        return Freedom.of(self.excess, book.room.watermark, slack, book.wished.minus_or_zero(book.migrating))

    def due(self, policy: MigrationPolicy, now: Instant) -> RoomNeed | None:
        """The part of it that has lasted long enough to move VMs and that no VM promises to give; None if none has.

        Denials go first: what is reserved above the watermark denies nobody anything.
        """
        if self.excess is None:
            return self if now - self.since >= min(policy.settle, SETTLES_SOON) else None
        least = self.excess if self.lasting is None else self.lasting.observe(self.excess, now)
        denied = self._long_denied(policy, now)
        if denied.any:
            return self._after_giving(denied, now)
        # A client waits for each of these, and their moves cost next to nothing.
        if (waking := self._long_denied(policy, now, is_of_waking=True)).any:
            return replace(self, is_of_waking=True)._after_giving(waking, now)
        if now - self.since < policy.settle:
            return None
        # A move for the watermark alone, whoever is denied something just now.
        return replace(self, denied_since=None)._after_giving(least, now)

    def _long_denied(self, policy: MigrationPolicy, now: Instant, *, is_of_waking: bool = False) -> Resources:
        """The room that VMs have been denied for long enough, and pods that wait for a resize, beyond what leaves.

        ``is_of_waking``: of VMs that wait to wake alone, for which less is long enough.
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
            # What pods ask for is pressure beyond all that VMs are denied.
            pods = pressure.capacity.minus_or_zero(book.unmet.minus_or_zero(book.open_to_denied))
        return (unmet.minus_or_zero(book.open_to_denied) + pods).minus_or_zero(pressure.slack + pressure.migrating)

    def _after_giving(self, excess: Resources, now: Instant) -> RoomNeed | None:
        """The part of ``excess`` that is missing once the node's VMs have given back what they promise."""
        missing = excess.minus_or_zero(promised(self.book, now))
        return replace(self, excess=missing) if missing.any else None

    @property
    def kept_on_targets(self) -> Fraction:
        """The share of its watermark that a target must keep free below it."""
        # A move for the watermark from one full node to another helps nobody.
        return SPARE if self.cause is MoveCause.WATERMARK else Fraction(0)

    @property
    def urgency(self) -> tuple[bool, bool, float, str]:
        """A sort key: nodes that deny, then full ones, then cordoned ones; of equals the one that waits longest."""
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
