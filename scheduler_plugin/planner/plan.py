"""Results and settings of the planner, and the room that a node needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Final

from protocol.messages import ObjectName
from protocol.smoothing.window import WindowMax
from protocol.units import ZERO, Bytes, Instant, MilliCpu, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import DeferredResizes
from scheduler_plugin.ledger.accounts.denials import vcpus_worth
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.accounts.sharing import promised
from scheduler_plugin.ledger.moves import Move, MoveCause
from scheduler_plugin.placement.verdict import Room
from scheduler_plugin.planner.cost import HALF, SPARE_SHARE, RoomGoal
from scheduler_plugin.planner.refused_targets import RefusedTargets
from scheduler_plugin.planner.victims import MoveDelays
from scheduler_plugin.texts import explanations
from scheduler_plugin.texts.amounts import amounts_text

GRACE: Final = Seconds(30.0)
"""Cancel a migration that is still active this long after its timeout, at which it should have ended."""

SHORT_SETTLE: Final = Seconds(10.0)
"""A cordon or an unneeded move counts after this time, or ``settle`` if that is shorter: neither is a load peak."""

MIN_DENIAL: Final = Seconds(3.0)
"""Minimum length of a denial or deferred resize before VMs move: agents repeat their requests within that time."""


@dataclass(frozen=True, slots=True)
class MigrationPolicy:
    """Settings of migrations: when VMs move, and how many at once. Migrations created by users count too."""

    enabled: bool = True  # False: the scheduler moves no VM on its own
    settle: Seconds = Seconds(120.0)  # pressure of this length moves VMs
    makes_room_to_grow: bool = True  # VMs move from a node where one could not grow, to a node that is half empty
    settle_denied: Seconds = Seconds(90.0)  # so does a denial of one vCPU; larger ones proportionally sooner
    delays: MoveDelays = field(default_factory=MoveDelays)
    out_per_node: int = 1
    in_per_node: int = 2
    per_cluster: int | Fraction = Fraction(1, 5)  # a fraction is of all nodes, rounded up
    timeout: Seconds = Seconds(300.0)  # of a migration
    placement_timeout: Seconds = Seconds(10.0)  # maximum wait of its target pod for a node
    opt_in: bool = False  # only VMs that ask for it move
    drain_cordoned: bool = True

    def at_once(self, nodes: int) -> int:
        """Maximum number of active migrations in a cluster of ``nodes`` nodes."""
        limit = self.per_cluster
        # Rounded up, so that a small cluster can move one VM.
        return ceil(limit * nodes) if isinstance(limit, Fraction) else limit

    def denial_settles(self, lacking: Resources, past: Seconds = Seconds(0.0)) -> Seconds:
        """Minimum length of a denial that lacks ``lacking`` before VMs move.

        ``past``: the cost of the VM's past denials (vCPU-seconds).
        """
        # Ski rental: a move pays once denials have cost as much, because their further length is unknown. For 1 to 30
        # vCPUs the total is at most twice the optimum.
        return max(
            Seconds((self.settle_denied - past) / vcpus_worth(lacking)),
            min(MIN_DENIAL, self.settle_denied),
        )


@dataclass(frozen=True, slots=True)
class StuckNode:
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
    stuck: tuple[StuckNode, ...] = ()
    cancels: tuple[Cancel, ...] = ()
    forget: tuple[ObjectName, ...] = ()


@dataclass(slots=True, eq=False)
class MigrationStatus:
    """State of migrations, for explanations.

    ``idle`` is why no VM moves at all, ``stuck`` why no VM can leave a node, by node; ``refused`` are recent refusals
    of targets by kube-scheduler. ``growth_obstacle`` returns why no VM leaves a node so that another can grow there.
    """

    idle: str | None = explanations.NO_ROUND_YET
    stuck: Mapping[str, str] = field(default_factory=dict)
    refused: RefusedTargets = field(default_factory=RefusedTargets)
    growth_obstacle: Callable[[str, MigrationPolicy, Instant], str] = lambda *_: explanations.NO_ROUND_YET


_REASONS: Final = {
    MoveCause.GROWTH: explanations.CROWDED,
    MoveCause.WATERMARK: explanations.ABOVE_WATERMARK,
    MoveCause.DENIED_VM: explanations.DENIES_VMS,
    MoveCause.DEFERRED_POD: explanations.DEFERS_POD,
}

_TARGET_RESERVES: Final = {
    # From one full node to another, a move for the watermark does not help.
    MoveCause.WATERMARK: SPARE_SHARE,
    # Growth is only a possibility.
    MoveCause.GROWTH: HALF,
}

NeedInputs = tuple[Room, Resources, Resources, DeferredResizes, Resources]


def need_inputs(account: NodeAccount) -> NeedInputs:
    """The amounts from which a node's need is computed."""
    return account.room, account.unmet, account.migrating, account.deferred, account.movable_deferred


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
    """A node that VMs should leave since ``since``: as many as relieve ``excess``, or all if it is None."""

    account: NodeAccount
    inputs: NeedInputs  # amounts of the account from which this was computed
    excess: Resources | None
    since: Instant
    denied_since: Instant | None  # when the present denial there began, if there is one
    lasting: LastingExcess | None = None  # None if all must leave, or without a minimum duration
    is_for_growth: bool = False  # nothing is denied yet, but a VM could not grow to its bound
    obstacle: str = ""  # why no VM left for growth at the last attempt
    only_waking: bool = False  # only waking VMs were denied for long enough, and only they are to leave

    def is_current_for(self, account: NodeAccount, *, drains: bool) -> bool:
        """Return True if ``account`` has not changed since this was computed."""
        is_same = account is self.account and need_inputs(account) == self.inputs
        return is_same and (self.excess is None) is drains

    def goal(self, slack: Resources) -> RoomGoal | None:
        """The room to gain; None if all VMs must leave. ``slack`` is the slack of the emptiest target."""
        if self.excess is None:
            return None
        account = self.account
        # Without what is already leaving.
        return RoomGoal.of(
            self.excess, account.room.watermark, slack, account.excess_if_granted.minus_or_zero(account.migrating)
        )

    def due(self, policy: MigrationPolicy, now: Instant) -> RoomNeed | None:
        """The part that has lasted long enough to move VMs and that no VM is about to free, if any.

        Denials come first: pressure above the watermark harms no VM yet.
        """
        if self.excess is None:
            return self if now - self.since >= min(policy.settle, SHORT_SETTLE) else None
        least = self.excess if self.lasting is None else self.lasting.observe(self.excess, now)
        denied = self._long_denied(policy, now)
        if denied.any:
            return self._after_shrinking(denied, now)
        # A client waits for each waking VM, and moving it costs next to nothing.
        if (waking := self._long_denied(policy, now, only_waking=True)).any:
            return replace(self, only_waking=True)._after_shrinking(waking, now)
        if now - self.since < policy.settle:
            return None
        # A move for the watermark only, independent of denials.
        return replace(self, denied_since=None)._after_shrinking(least, now)

    def _long_denied(self, policy: MigrationPolicy, now: Instant, *, only_waking: bool = False) -> Resources:
        """Room that VMs or pods have lacked for long enough, without the part that is already leaving.

        ``only_waking``: count waking VMs only, which need to wait less long.
        """
        if self.denied_since is None:
            return ZERO
        account, pressure, min_length = self.account, self.account.pressure, min(MIN_DENIAL, policy.settle_denied)
        unmet = Resources.sum(
            claim.unmet
            for claim in account.claims.values()
            if claim.denied_since is not None
            and (claim.sleeps or not only_waking)
            and now - claim.denied_since
            >= (min_length if only_waking else policy.denial_settles(claim.unmet, claim.denial_cost.counted(now)))
        )
        pods = ZERO
        if now - self.denied_since >= min_length and not only_waking:
            # Pressure beyond the denials of VMs comes from pods.
            pods = pressure.capacity.minus_or_zero(account.unmet.minus_or_zero(account.free_for_denied))
        return (unmet.minus_or_zero(account.free_for_denied) + pods).minus_or_zero(pressure.slack + pressure.migrating)

    def _after_shrinking(self, excess: Resources, now: Instant) -> RoomNeed | None:
        """The part of ``excess`` that remains after the node's VMs have freed what they offer."""
        missing = excess.minus_or_zero(promised(self.account, now))
        return replace(self, excess=missing) if missing.any else None

    @property
    def target_reserve(self) -> Fraction:
        """Share of its watermark that a target must keep free."""
        return _TARGET_RESERVES.get(self.cause, Fraction(0))

    @property
    def urgency(self) -> tuple[bool, bool, bool, float, str]:
        """Sort key: nodes with denials, then full, cordoned and crowded ones; longest wait first."""
        return self.denied_since is None, self.is_for_growth, self.excess is None, self.since, self.account.name

    @property
    def cause(self) -> MoveCause:
        """Cause of the moves."""
        if self.excess is None:
            return MoveCause.DRAIN
        if self.is_for_growth:
            return MoveCause.GROWTH
        if self.denied_since is None:
            return MoveCause.WATERMARK
        return MoveCause.DENIED_VM if self.account.unmet.any else MoveCause.DEFERRED_POD

    @property
    def reason(self) -> str:
        """Text of the cause."""
        if self.excess is None:
            return explanations.CORDONED.format(node=self.account.name)
        return _REASONS[self.cause].format(node=self.account.name, excess=amounts_text(self.excess))
