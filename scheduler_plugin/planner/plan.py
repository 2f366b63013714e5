"""Decisions about migrations, the settings for them, and the need of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Final

from protocol.messages import ObjectName
from protocol.units import Instant, Resources, Seconds
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


@dataclass(frozen=True, slots=True)
class MigrationPolicy:
    """Rules for migrations: when VMs are moved, and how many at once.

    ``settle``: pressure that lasts this long moves VMs; ``settle_denied``: the same while a VM is denied what it
    asks for. Active migrations, people's too, are at most ``out_per_node`` and ``in_per_node`` for each node, and
    ``per_cluster`` in all (a fraction is one of all nodes, rounded up), as far as the scheduler adds to them.
    ``timeout`` is how long one may take, ``placement_timeout`` how long its target pod may wait for its node. With
    ``opt_in`` only VMs that ask for it are moved. With ``enabled`` False the scheduler moves no VM by itself.
    """

    enabled: bool = True
    settle: Seconds = Seconds(10.0)
    settle_denied: Seconds = Seconds(3.0)
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


@dataclass(frozen=True, slots=True)
class RoomNeed:
    """A node that VMs should leave since ``since``: as much of them as the ``excess``, or all if that is None.

    ``denied_since`` is when the present denial of a VM there began, None if none is denied. ``seen`` are the amounts in
    the book that this was derived from: see ``seen_of``.
    """

    book: NodeAccount
    seen: Seen
    excess: Resources | None
    since: Instant
    denied_since: Instant | None

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

    def is_due(self, policy: MigrationPolicy, now: Instant) -> bool:
        """Return True if it has lasted long enough to move VMs."""
        # Long enough for the agent to have asked again: a wish that is met meanwhile moves nobody.
        is_denied = self.denied_since is not None and now - self.denied_since >= policy.settle_denied
        settle = min(policy.settle, SETTLES_SOON) if self.excess is None else policy.settle
        return is_denied or now - self.since >= settle

    def after_giving(self, now: Instant) -> RoomNeed | None:
        """The part that is missing once the node's VMs have given back what they promise; None if that is enough."""
        if self.excess is None:
            return self
        missing = self.excess.minus_or_zero(promised(self.book, now))
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
