"""Targets of VMs in one planning round, and active migrations.

Rules:

- A target is open and under no pressure, may get one more incoming migration, stays below its watermark
  (``placement.best_target``), and is eligible by constraints and past refusals (``eligible_nodes``).
- The VM's preferences order the remaining targets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from msgspec.structs import replace

from protocol.messages import ObjectName
from protocol.ranking.config import RankingConfig
from protocol.ranking.node_score import Draw
from protocol.units import Bytes, MilliCpu, Resources
from scheduler_plugin.constraints.checker import Shape
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.moves import Migration
from scheduler_plugin.placement.scoring import PodDemand, best_target
from scheduler_plugin.placement.verdict import Room
from scheduler_plugin.planner.eligible_nodes import EligibleNodes
from scheduler_plugin.planner.plan import MigrationPolicy
from scheduler_plugin.planner.victims import Victim
from scheduler_plugin.texts import explanations


@dataclass(frozen=True, slots=True)
class TargetRule:
    """Rule to choose the best of several targets; ``draw`` breaks ties."""

    ranking: RankingConfig
    draw: Draw


@dataclass(slots=True)
class ActiveMigrations:
    """Numbers of active migrations: in all (at most ``limit``), and leaving and entering each node.

    ``of_others`` are those counted that users or other programs have created, or that are being cancelled.
    """

    limit: int
    total: int = 0
    leaving: Counter[str] = field(default_factory=Counter)
    entering: Counter[str] = field(default_factory=Counter)
    of_others: list[ObjectName] = field(default_factory=list)

    @classmethod
    def of(cls, ledger: Ledger, policy: MigrationPolicy) -> ActiveMigrations:
        """Count all running migrations, and users' migrations that may start. Those of users, and cancelled ones, count
        up to half of each limit.
        """
        active, of_others = cls(policy.at_once(len(ledger.rooms))), list[Migration]()
        for migration in ledger.migrations.values():
            if not (migration.is_active and _counts(ledger, migration)):
                continue
            # A user who may edit a cancelled one of ours can keep it with a finalizer.
            if migration.is_ours and not migration.is_terminating:
                active.add(migration.source, migration.destination)
            else:
                of_others.append(migration)
        # A tenant's migrations may last for ever, and would keep all other VMs in place.
        active.of_others = [migration.name for migration in of_others[: active.limit // 2]]
        active.total += len(active.of_others)
        active.leaving += _up_to(policy.out_per_node // 2, (migration.source for migration in of_others))
        active.entering += _up_to(policy.in_per_node // 2, (migration.destination for migration in of_others))
        return active

    def add(self, source: str | None, target: str | None) -> None:
        """Count a migration; an unknown node is None."""
        self.total += 1
        self.leaving.update(() if source is None else (source,))
        self.entering.update(() if target is None else (target,))

    def may_leave(self, node: str, policy: MigrationPolicy) -> int:
        """Number of further VMs that may leave ``node`` now."""
        return max(0, min(policy.out_per_node - self.leaving[node], self.limit - self.total))

    def limit_reason(self) -> str | None:
        """The reason why all nodes wait, if it includes migrations that may never end."""
        if self.total < self.limit or not self.of_others:
            return None
        return explanations.all_moves_taken(self.limit, self.of_others)


def _up_to(most: int, nodes: Iterable[str | None]) -> Counter[str]:
    """Number of occurrences of each known node, at most ``most``."""
    counts = Counter(node for node in nodes if node is not None)
    return Counter({node: min(count, most) for node, count in counts.items()})


def _counts(ledger: Ledger, migration: Migration) -> bool:
    account = ledger.vms.get(migration.vm)
    # A migration of a VM without pods moves nothing. Otherwise anyone could block all moves with such objects.
    if account is None or not account.claims:
        return False
    # A stalled migration of others, or a cancelled one, does not count.
    return not migration.is_stalled or (migration.is_ours and not migration.is_terminating)


class Targets:
    """Nodes that VMs may move to, updated while moves are chosen.

    ``reserve_share`` is the share of its own watermark that a target must keep free.
    """

    def __init__(
        self,
        ledger: Ledger,
        active: ActiveMigrations,
        policy: MigrationPolicy,
        eligible: EligibleNodes,
        rule: TargetRule,
    ) -> None:
        self._rule, self._eligible = rule, eligible
        self._active, self._max_incoming = active, policy.in_per_node
        self._ledger, self._nodes = ledger, len(ledger.rooms)
        self.reserve_share = Fraction(0)
        self._keeps_growth = False
        self._too_large: list[Resources] = []
        self._unplaceable: dict[Shape, list[Resources]] = {}

    def restrict(self, reserve_share: Fraction, *, keeps_growth: bool = False) -> None:
        """Set the share of its watermark that a target must keep free; ``keeps_growth``: and room for its VM, or the
        one that moves, that may grow the most.
        """
        if reserve_share != self.reserve_share:
            # Sizes that were too large may fit with this share.
            self._too_large, self._unplaceable = [], {}
        self.reserve_share, self._keeps_growth = reserve_share, keeps_growth

    @cached_property
    def _rooms(self) -> dict[str, Room]:
        # Computed on first use: in most rounds no VM moves, and a fleet has many nodes.
        strained, entering = self._ledger.strained, self._active.entering
        return {
            name: room
            for name, room in self._ledger.rooms.items()
            if room.is_open and name not in strained and entering.get(name, 0) < self._max_incoming
        }

    @cached_property
    def slack(self) -> Resources:
        """Maximum room below a watermark at the start of the round, per resource."""
        # Plain numbers, because this runs for every node.
        cpu = max((room.watermark.cpu.value - room.reserved.cpu.value for room in self._rooms.values()), default=0)
        mem = max((room.watermark.mem.value - room.reserved.mem.value for room in self._rooms.values()), default=0)
        return Resources(MilliCpu(max(0, cpu)), Bytes(max(0, mem)))

    def any_has_room(self, size: Resources) -> bool:
        """Return True if some target has room for ``size``, apart from constraints."""
        # Targets only fill up during a round, so a size that did not fit will not fit later.
        if _is_as_large(size, self._too_large):
            return False
        if next(self._nodes_with_room(size), None) is not None:
            return True
        self._too_large = _minimal_sizes(self._too_large, size)
        return False

    def has_target(self, victim: Victim) -> bool:
        """Return True if some target accepts the VM."""
        size = victim.size
        # First, because most often no node has room.
        if not self.any_has_room(size):
            return False
        shape = self._eligible.shape(victim.claim, victim.vm)
        if shape is not None and _is_as_large(size, self._unplaceable.get(shape, ())):
            return False
        # Last, because it may have to evaluate every node.
        if next(self._accepting(victim, size), None) is not None:
            return True
        # The constraints of this shape exclude the nodes with room, or the growth of this VM does.
        if shape is not None and not self._keeps_growth:
            self._unplaceable[shape] = _minimal_sizes(self._unplaceable.get(shape, ()), size)
        return False

    def take(self, source: str, victim: Victim) -> str | None:
        """Choose the best target and count the move; None if there is none any more.

        The VM's preferences select among the nodes that accept it; placement chooses among the most preferred.
        """
        size = victim.size
        rooms = self._preferred(victim, {room.node: room for room in self._accepting(victim, size)})
        pod = PodDemand(size, victim.growth)
        name = best_target(rooms, pod, self._rule.ranking, self._rule.draw, nodes=self._nodes)
        if name is None:
            return None
        room = self._rooms[name]
        # Reserved for the rest of the round.
        self._rooms[name] = replace(
            room, reserved=room.reserved + size, free=room.free - size, growth=room.growth.at_least(pod.growth)
        )
        self._eligible.place(victim.claim, victim.vm, name)
        self._active.add(source, name)
        if self._active.entering[name] >= self._max_incoming:
            del self._rooms[name]
        return name

    def obstacles(self, victims: Iterable[Victim]) -> Counter[str]:
        """Reasons against nodes that have room for the first VM, with the number of nodes for each."""
        for victim in victims:
            size = victim.size
            # A size that constraints refused may have no room now without being in ``_too_large``.
            if self.any_has_room(size):
                obstacle = self._eligible.obstacles(victim.claim, victim.vm)
                reasons = (obstacle(room.node) for room in self._nodes_with_room(size))
                return Counter(f"{victim.vm.name}: {why}" for why in reasons if why is not None)
        return Counter()

    def _accepting(self, victim: Victim, size: Resources) -> Iterator[Room]:
        """The nodes that accept the VM."""
        obstacle = self._eligible.obstacles(victim.claim, victim.vm)
        rooms = self._nodes_with_room(size)
        if self._keeps_growth:
            rooms = (room for room in rooms if _can_grow(room, size, victim.growth))
        return (room for room in rooms if obstacle(room.node) is None)

    def _nodes_with_room(self, size: Resources) -> Iterator[Room]:
        """The nodes with room for ``size`` below their watermarks, apart from constraints."""
        # Plain numbers, because this runs for every node.
        cpu, mem, denominator = size.cpu.value, size.mem.value, self.reserve_share.denominator
        left = denominator - self.reserve_share.numerator
        for room in self._rooms.values():
            used, mark = room.reserved, room.watermark
            if (
                (used.cpu.value + cpu) * denominator <= mark.cpu.value * left
                and (used.mem.value + mem) * denominator <= mark.mem.value * left
                and size.within(room.free)
            ):
                yield room

    def _preferred(self, victim: Victim, rooms: dict[str, Room]) -> dict[str, Room]:
        """The ``rooms`` that the VM prefers most."""
        constraints = self._eligible.constraints_of(victim.claim, victim.vm)
        if not constraints.prefers:
            return rooms
        preferences = {name: constraints.preference(name) for name in rooms}
        most = min(preferences.values(), default=None)
        return {name: room for name, room in rooms.items() if preferences[name] == most}


def _can_grow(room: Room, size: Resources, growth: Resources) -> bool:
    """Return True if any one VM could grow there after the arrival of one of ``size`` that may grow by ``growth``."""
    return (room.reserved + size + room.growth.at_least(growth)).within(room.total)


def _is_as_large(size: Resources, sizes: Iterable[Resources]) -> bool:
    return any(smaller.within(size) for smaller in sizes)


def _minimal_sizes(sizes: Iterable[Resources], size: Resources) -> list[Resources]:
    """``sizes`` and ``size``, without sizes that are at least as large as another."""
    return [*(other for other in sizes if not size.within(other)), size]
