"""Simulated API server and scheduler: the real ledger, which sees every change immediately."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil
from typing import Final

from protocol.messages import AgentRequest, ObjectName, PluginResponse
from protocol.units import ZERO, Instant
from scheduler_plugin.constraints.model import NodeTraits
from scheduler_plugin.ledger import events
from scheduler_plugin.ledger.accounts.waiting_pods import PERCENT, sample_size
from scheduler_plugin.ledger.facts import NodeFacts, PodFacts, VmFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.placement.verdict import FITS
from scripts.autoscale.simulate.fleet import SimulatedFleet, SimulationSettingsError
from scripts.autoscale.simulate.simulated_groups import HOSTNAME
from scripts.autoscale.simulate.simulated_vm import NAMESPACE, SimulatedVm

MIGRATING: Final = "Migrating"
RUNNING: Final = "Running"


class SimulatedCluster:
    """The ledger and the VMs' objects. Counts ``growths``, requests for more; ``granted`` and ``denied`` ones.

    Repeats of a denied request do not count. ``in_place`` counts the granted growths of VMs that did not have to
    migrate first.
    """

    def __init__(self, fleet: SimulatedFleet) -> None:
        self.ledger = Ledger()
        self.touched: set[str] = set()
        self.vms: dict[ObjectName, SimulatedVm] = {}
        self.growths = self.granted = self.denied = self.in_place = 0
        self.nodes = [f"node-{number}" for number in range(fleet.settings.nodes)]
        self._groups = fleet.settings.groups
        # Nodes searched so far, over all placements.
        self._searched = 0
        policy, size = fleet.policy, fleet.allocatable
        nodes = [NodeFacts(name, size, policy, traits=NodeTraits({HOSTNAME: name})) for name in self.nodes]
        # Writes never fail and watches never lag here; `tests/scenarios` covers failures, delays and restarts.
        self.ledger.apply(events.Listed(nodes, [], []), Instant(0.0))

    # Requests and changes of VMs --------------------------------------------------------------------------------------

    def request_permit(self, vm: SimulatedVm, request: AgentRequest, now: Instant) -> PluginResponse:
        """Process a request of the VM's agent, and store the permit."""
        ceiling, denial = vm.held, vm.state.scheduler.denial
        decision = self.ledger.apply(events.PermitRequested(vm.pod, request), now)
        if decision.persist is not None:
            vm.version += 1
            vm.permit = decision.persist.permit
            # Stored before the response, as in the real scheduler.
            written = events.PermitWritten(vm.name, decision.persist.revision, events.WriteOutcome.DONE, self.facts(vm))
            self.ledger.apply(written, now)
            vm.refresh_agent(now)
            self.touched.add(vm.node)
        # Shrinks are always granted; counting them would hide denials.
        is_repeat = denial is not None and request.resources.within(denial.wanted)
        if not is_repeat and not request.resources.within(ceiling):
            is_granted = request.resources.within(decision.permit)
            self.growths += 1
            self.granted += is_granted
            self.denied += not is_granted
            self.in_place += is_granted and not vm.moved_for_room
            vm.moved_for_room &= not is_granted
        return decision.response

    def must_shrink(self, vm: SimulatedVm) -> bool:
        """Return True if the scheduler waits for the VM to shrink."""
        return self.ledger.claims[vm.pod].asked_since is not None

    def publish(self, vm: SimulatedVm, now: Instant) -> None:
        """Publish a change of the VM's object to the scheduler and the agent."""
        vm.version += 1
        self.ledger.apply(events.VmSeen(self.facts(vm)), now)
        vm.refresh_agent(now)
        self.touched.add(vm.node)

    def facts(self, vm: SimulatedVm) -> VmFacts:
        """The VM's object, as the ledger sees it."""
        return VmFacts(
            name=vm.name,
            uid=vm.name.name,
            version=vm.version,
            maximum=vm.bounds.max,
            use=vm.use,
            actual=vm.use,
            permit=vm.permit,
            pod=ObjectName(NAMESPACE, vm.pod),
            phase=MIGRATING if vm.is_migrating else RUNNING,
            constraints=self._groups.constraints(vm.index),
        )

    # Placement -----------------------------------------------------------------------------------------------

    def place(self, vm: SimulatedVm, now: Instant) -> None:
        """Create the VM and its pod. Raises ``SimulationSettingsError`` if no node has room."""
        self.vms[vm.name] = vm
        pod = f"{vm.name.name}-0"
        vm.start_agent(pod, now)
        self.ledger.apply(events.VmSeen(self.facts(vm)), now)
        facts = self.pod(vm, pod)
        fits = self._feasible(facts)
        if not fits:
            raise SimulationSettingsError(
                "--fill: no node has room for a VM at the start; lower --fill or raise --nodes"
            )
        (vm.node,) = self.ledger.best(facts, set(self._spread(vm, fits)), 1)
        self.bind(facts, vm.node, now)

    def _feasible(self, pod: PodFacts) -> list[str]:
        """Nodes that fit the pod, from the next sample of nodes; its size is kube-scheduler's.

        Continues with further samples until a node fits.
        """
        count = len(self.nodes)
        size = sample_size(count, PERCENT)
        for _ in range(ceil(count / size)):
            sample = range(self._searched, self._searched + size)
            self._searched = sample.stop
            fits = self.ledger.filter(pod, [self.nodes[number % count] for number in sample]).fits
            if fits:
                return fits
        return []

    def _spread(self, vm: SimulatedVm, fits: list[str]) -> list[str]:
        """Of the nodes that fit, those with the fewest members of the VM's group."""
        if vm.index >= self._groups.members:
            return fits
        names = (ObjectName(NAMESPACE, f"vm-{index}") for index in self._groups.members_with(vm.index))
        members_by_node = Counter(self.vms[name].node for name in names if name in self.vms)
        fewest = min(members_by_node[node] for node in fits)
        return [node for node in fits if members_by_node[node] == fewest]

    def bind(self, pod: PodFacts, node: str, now: Instant) -> bool:
        """Bind the pod; return False if the scheduler refuses."""
        if self.ledger.apply(events.BindRequested(pod, node), now).verdict is not FITS:
            return False
        self.ledger.apply(events.BindEnded(pod.uid, node, events.WriteOutcome.DONE), now)
        self.ledger.apply(events.PodSeen(replace(pod, node=node)), now)
        self.touched.add(node)
        return True

    def adopt_pod(self, vm: SimulatedVm, now: Instant) -> None:
        """Make the VM the owner of its pod, instead of the migration that created it."""
        self.ledger.apply(events.PodSeen(replace(self.pod(vm, vm.pod), node=vm.node)), now)

    def pod(self, vm: SimulatedVm, pod: str, migration: ObjectName | None = None) -> PodFacts:
        """An unbound pod of the VM; the name is also the UID."""
        traits = self._groups.traits(vm.index)
        return PodFacts(pod, ObjectName(NAMESPACE, pod), ZERO, vm.name, migration=migration, traits=traits)

    def take_touched(self) -> list[str]:
        """Return the nodes that changed since the last call."""
        # Sorted, because the order of a set of strings differs between runs.
        touched = sorted(self.touched)
        self.touched.clear()
        return touched
