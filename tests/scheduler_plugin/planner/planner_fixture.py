"""A fleet for the planner: VMs by name, node, size and load, and a clock that the test advances.

Nodes have as much to reserve as their name's number says (``node("n1", 10)``), with a watermark at 70 %.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from protocol.messages import AgentRequest, Metrics
from protocol.ranking.config import RankingConfig
from protocol.units import Bytes, Instant, Resources, Seconds
from scheduler_plugin.constraints.checker import ConstraintContext
from scheduler_plugin.ledger.events import MigrationSeen, MoveRequested, PermitRequested, PodSeen, VmSeen
from scheduler_plugin.ledger.facts import MigrationFacts, PodFacts, VmFacts
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.placement.verdict import FITS
from scheduler_plugin.planner.cost import Selection, least_cost
from scheduler_plugin.planner.plan import MigrationPolicy, MovePlan
from scheduler_plugin.planner.planner import Planner, run_steps
from scheduler_plugin.planner.victims import PlanningTime
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, amount, name, vm, vm_pod
from tests.scheduler_plugin.ledger.fleet import node as node_with_system

WALL = 1_800_000_000.0
"""Seconds since 1970 at the beginning."""

RANKING = RankingConfig()


def node(of: str, total: float = 10, *, is_open: bool = True) -> object:
    """A node with room for this many CPUs and GiB, plus one of each for the system."""
    return node_with_system(of, total + 1, is_open=is_open)


class PlannerFixture:
    """The ledger, the planner and the time."""

    def __init__(self, *nodes: object, policy: MigrationPolicy | None = None, select: Selection = least_cost) -> None:
        self.policy = policy or MigrationPolicy(settle=Seconds(10.0), settle_denied=Seconds(3.0), out_per_node=1)
        self.fleet = Fleet(*nodes)  # type: ignore[arg-type] # node() above makes nodes
        self.ledger = self.fleet.ledger
        self.planner = Planner(select)
        self.now = LATER
        self.numbers = 0
        self.constraint_context = ConstraintContext()

    def add(
        self,
        of: str,
        on: str,
        size: float | Resources,
        load: float | None = 0.0,
        *,
        mem_used: float | None = None,
        facts: dict[str, object] | None = None,
        pod: dict[str, object] | None = None,
    ) -> None:
        """A VM that runs on a node and has reported its load; ``facts`` and ``pod`` change its objects."""
        known: VmFacts = vm(of, amount(size) if isinstance(size, (int, float)) else size, pod=name(f"{of}-pod"))
        runs: PodFacts = vm_pod(of, on)
        self.fleet.vms[name(of)] = known
        self.fleet.apply(VmSeen(known), self.now)
        self.fleet.apply(PodSeen(replace(runs, **(pod or {}))))  # type: ignore[arg-type] # names of fields
        if load is not None:
            used = None if mem_used is None else Bytes(int(mem_used * 1024**3))
            self.tell(of, known.use, Metrics(load, mem_used=used))
        if facts is not None:
            now_known = self.fleet.vms[name(of)]
            changed = structs.replace(now_known, version=99, **facts)
            self.fleet.apply(VmSeen(changed), self.now)

    def tell(self, of: str, wanted: Resources, metrics: Metrics | None = None, needs: Resources | None = None) -> None:
        """The VM's agent sends a request, and its permit is stored."""
        self.numbers += 1
        request = AgentRequest(name(f"{of}-pod"), wanted, metrics=metrics, sequence=self.numbers, needs=needs)
        decision = self.ledger.apply(PermitRequested(f"uid-{of}", request), self.now)
        self.fleet.did(decision.effects)
        self.fleet.store(decision)

    def migration(self, facts: MigrationFacts) -> None:
        """A migration is seen."""
        self.fleet.apply(MigrationSeen(facts), self.now)

    def plan(self, after: float = 0.0) -> MovePlan:
        """The plan, this many seconds later."""
        self.now = Instant(self.now + after)
        now = PlanningTime(self.now, WALL + self.now - LATER)
        look = self.planner.plan(
            self.ledger, self.policy, RANKING, now, min, constraint_context=self.constraint_context
        )
        return run_steps(look)

    def settled(self) -> MovePlan:
        """The plan once the present state has lasted."""
        self.plan()
        return self.plan(after=self.policy.settle)

    def moves(self) -> dict[str, str]:
        """VMs that move and their targets, once the present state has lasted."""
        return {move.vm.name: move.target for move in self.settled().moves}

    def carry_out(self, move: Move, number: int = 1) -> None:
        """Reserve room for a move, without creating a migration."""
        reservation = self.ledger.apply(MoveRequested(move, name(f"{move.vm.name}-{number}")), self.now)
        assert reservation.verdict is FITS
        self.fleet.did(reservation.effects)


def pressed(policy: MigrationPolicy | None = None, select: Selection = least_cost) -> PlannerFixture:
    """n1 is 1 above its watermark of 7 with VMs of 2, 3 and 3; n2 is empty."""
    fixture = PlannerFixture(node("n1"), node("n2"), policy=policy, select=select)
    fixture.add("a", "n1", 3, load=2.0)
    fixture.add("b", "n1", 2, load=0.5)
    fixture.add("c", "n1", 3, load=1.0)
    return fixture
