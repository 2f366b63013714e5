"""The real ledger with one node, one VM and the pods around it; amounts are plain numbers for both resources.

- A number ``n`` stands for ``n`` thousandths of a CPU and ``n`` bytes: the ledger's rules do not depend on the unit.
- Every effect is carried out at once and every write succeeds: what a case asks about is where things settle.
- After every step the ledger's invariants must hold.
"""

from __future__ import annotations

from fractions import Fraction

from msgspec.structs import replace

from protocol.messages import AgentRequest, ObjectName
from protocol.units import ZERO, Bytes, ComputeUnit, Instant, MilliCpu, Resources
from scheduler_plugin.ledger.events import Listed, MigrationSeen, PermitRequested, PodSeen, VmSeen
from scheduler_plugin.ledger.facts import (
    MigrationFacts,
    MigrationPhase,
    NodeFacts,
    NodePolicy,
    PodFacts,
    ResourcePolicy,
    VmFacts,
)
from scheduler_plugin.ledger.invariants import violations
from scheduler_plugin.ledger.ledger import Ledger
from tests.scheduler_plugin.ledger.fleet import permit_stored

NODE = "n1"
MOST = 10**6


def size(amount: int) -> Resources:
    """``amount`` of each resource."""
    return Resources(MilliCpu(amount), Bytes(amount))


def policy(watermark: Fraction = Fraction(1), system: int = 0) -> NodePolicy:
    """A node's policy with a compute unit of one."""
    return NodePolicy(
        ComputeUnit(MilliCpu(1), Bytes(1)),
        ResourcePolicy(watermark, MilliCpu(system)),
        ResourcePolicy(watermark, Bytes(system)),
    )


def node_facts(total: int, system: int = 0, name: str = NODE) -> NodeFacts:
    """A node with ``total`` of each resource."""
    return NodeFacts(name, size(total), policy(system=system))


def vm_name(name: str) -> ObjectName:
    """The VM, and its pod."""
    return ObjectName("default", name)


class LedgerFixture:
    """A ledger that has just been rebuilt, and the agents of its VMs."""

    def __init__(self, total: int, system: int = 0) -> None:
        self.ledger = Ledger()
        self.total, self.system = total, system
        self.now = 0.0
        self.asked = 0
        self.vms: dict[str, VmFacts] = {}
        self.pods: dict[str, PodFacts] = {}

    def add_vm(self, name: str, use: int, permit: int | None = None) -> None:
        """A running VM on the node, before the rebuild; ``permit`` is what was persisted."""
        facts = VmFacts(vm_name(name), f"vm-{name}", 1, size(MOST), size(use), size(use), pod=vm_name(name))
        self.vms[name] = replace(facts, permit=None if permit is None else size(permit))
        self.pods[name] = PodFacts(name, vm_name(name), ZERO, vm=vm_name(name), node=NODE)

    def add_foreign(self, needs: int) -> None:
        """Another scheduler's pod on the node; called again it changes the pod."""
        self.pods["foreign"] = PodFacts("foreign", vm_name("foreign"), size(needs), node=NODE)
        if self.ledger.is_ready:
            self.ledger.apply(PodSeen(self.pods["foreign"]), Instant(self.now))
            self._check()

    def rebuild(self) -> None:
        """The scheduler starts."""
        node = node_facts(self.total, self.system)
        self.ledger.apply(Listed([node], self.pods.values(), self.vms.values()), Instant(self.now))
        self._check()

    def ask(self, name: str, wanted: int, last_permit: int | None = None, sequence: int | None = None) -> int:
        """One request of the agent of ``name``, all of its consequences included; returns the permit.

        A smaller amount than the VM uses is preceded by the VM's shrinking, as agents do it.
        """
        self.now += 100.0
        vm = self.vms[name]
        if wanted < vm.use.cpu.value:
            self._see(name, replace(vm, use=size(wanted), actual=size(wanted)))
        self.asked += 1
        last = None if last_permit is None else size(last_permit)
        number = self.asked if sequence is None else sequence
        request = AgentRequest(vm_name(name), size(wanted), last, sequence=number)
        decision = self.ledger.apply(PermitRequested(name, request), Instant(self.now))
        self._check()
        if decision.persist is not None:
            self._next_version(name, replace(self.vms[name], permit=decision.persist.permit))
            self.ledger.apply(permit_stored(decision.persist.revision, self.vms[name]), Instant(self.now))
            self._check()
        return _both(decision.permit)

    def migrate(self, name: str) -> None:
        """The VM leaves the node: its target pod has a place, so it holds still from now on."""
        move = vm_name(f"move-{name}")
        begun = MigrationPhase.RUNNING
        order = MigrationFacts(move, f"uid-move-{name}", 1, vm_name(name), begun, source_pod=vm_name(name))
        self.ledger.apply(MigrationSeen(order), Instant(self.now))
        self._check()

    def reserved(self, name: str) -> int:
        """The pod's reservation."""
        return _both(self.ledger.claims[name].reserved)

    def pressure(self, name: str) -> int:
        """The part of its request that the pod did not get."""
        return _both(self.ledger.claims[name].unmet)

    @property
    def node_reserved(self) -> int:
        """The sum of all pods of the node."""
        return _both(self.ledger.nodes[NODE].reserved)

    @property
    def node_pressure(self) -> int:
        """The sum of what pods asked for and did not get."""
        return _both(self.ledger.nodes[NODE].unmet)

    @property
    def node_migrating(self) -> int:
        """Amounts that are already leaving."""
        return _both(self.ledger.nodes[NODE].migrating)

    def _see(self, name: str, facts: VmFacts) -> None:
        self._next_version(name, facts)
        self.ledger.apply(VmSeen(self.vms[name]), Instant(self.now))
        self._check()

    def _next_version(self, name: str, facts: VmFacts) -> None:
        self.vms[name] = replace(facts, version=facts.version + 1)

    def _check(self) -> None:
        broken = violations(self.ledger)
        if broken:
            raise AssertionError("; ".join(broken))


def _both(amount: Resources) -> int:
    if amount.cpu.value != amount.mem.value:
        raise AssertionError(f"CPU and memory were treated differently: {amount}")
    return amount.cpu.value
