"""Any order of any facts: objects come, change, go and come back under their names, and news arrives late or twice.

Rules that hold here:

- ``Api`` is the truth; its news wait in one queue for each kind and are heard in the order of that kind, now and then
  twice, or all at once from a complete list.
- After every step no rule is broken, and every agent's permit is reserved where its pod is.
- In the end, once all is heard and no agent is left, each pod reserves what its object needs and nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.messages import AgentRequest, ObjectName
from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger import (
    Effect,
    Ledger,
    LedgerError,
    MigrationFacts,
    MigrationPhase,
    PersistPermit,
    PodFacts,
    ReadPod,
    VmFacts,
    VmTruth,
    violations,
)
from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.accounts.outstanding_permits import SETTLE
from tests.scheduler_plugin.ledger.fleet import NOW, amount, name, node

NAMES = ("a", "b", "c")
NODES = ("n1", "n2")
names = st.sampled_from(NAMES)
sizes = st.integers(1, 6).map(amount)
kinds = st.sampled_from(("vm", "pod", "migration"))
UNREADABLE = "spec: garbage"


@dataclass
class Api:
    """What the API holds, and the events that are not delivered yet."""

    version: int = 0
    vms: dict[ObjectName, VmFacts] = field(default_factory=dict)
    pods: dict[str, PodFacts] = field(default_factory=dict)
    migrations: dict[ObjectName, MigrationFacts] = field(default_factory=dict)
    news: dict[str, list[object]] = field(default_factory=lambda: {"vm": [], "pod": [], "migration": []})

    def put_vm(self, vm: VmFacts) -> VmFacts:
        self.version += 1
        self.vms[vm.name] = replace(vm, version=self.version)
        self.news["vm"].append(self.vms[vm.name])
        return self.vms[vm.name]

    def drop_vm(self, vm: ObjectName) -> None:
        del self.vms[vm]
        self.news["vm"].append(vm)

    def put_pod(self, pod: PodFacts) -> None:
        self.pods[pod.uid] = pod
        self.news["pod"].append(pod)

    def drop_pod(self, uid: str) -> None:
        del self.pods[uid]
        self.news["pod"].append(uid)

    def put_migration(self, migration: MigrationFacts) -> None:
        self.version += 1
        self.migrations[migration.name] = replace(migration, version=self.version)
        self.news["migration"].append(self.migrations[migration.name])

    def drop_migration(self, migration: ObjectName) -> None:
        del self.migrations[migration]
        self.news["migration"].append(migration)

    def number(self) -> int:
        self.version += 1
        return self.version


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.api, self.now = Api(), NOW
        self.ledger = Ledger()
        self.agents: dict[str, Resources] = {}
        self.writes: dict[ObjectName, PersistPermit] = {}
        self.heard: list[object] = []
        self.start()

    @initialize(has_agent=st.booleans(), use=sizes)
    def begin(self, has_agent: bool, use: Resources) -> None:
        """Two VMs run, one is being made."""
        for vm, on in (("a", "n1"), ("b", "n2"), ("c", None)):
            self.make_vm(vm, use, has_agent, None)
            self.make_pod(vm, ZERO, ZERO)
            if on is not None:
                self.bound(next(each for each in self.api.pods.values() if each.vm == name(vm)), on)
        self.relist()

    # The scheduler ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.api.version % 7 == 0)
    @rule()
    def start(self) -> None:
        """A new process rebuilds everything from the API; what the last one was about to write is lost."""
        self.ledger = Ledger()
        self.writes.clear()
        self.relist()

    @precondition(lambda self: self.api.version % 3 == 0)
    @rule()
    def relist(self) -> None:
        for queue in self.api.news.values():
            queue.clear()
        self.heard.clear()
        nodes = [node(each, 12) for each in NODES]
        api = self.api
        lists = (nodes, api.pods.values(), api.vms.values(), self.now, api.migrations.values())
        self.did(self.ledger.resync(*lists))

    @rule(kind=kinds, count=st.integers(1, 3))
    def hear(self, kind: str, count: int) -> None:
        for _ in range(min(count, len(self.api.news[kind]))):
            found = self.api.news[kind].pop(0)
            self.heard = [*self.heard[-5:], found] if isinstance(found, VmFacts | MigrationFacts) else self.heard
            self.take(kind, found)

    @precondition(lambda self: self.heard)
    @rule(data=st.data())
    def hear_again(self, data: st.DataObject) -> None:
        """Old news of an object that is still there."""
        found = data.draw(st.sampled_from(self.heard))
        if isinstance(found, VmFacts) and found.name in self.ledger.vms:
            self.take("vm", found)
        elif isinstance(found, MigrationFacts) and found.name in self.ledger.migrations:
            self.take("migration", found)

    def take(self, kind: str, found: object) -> None:
        ledger = self.ledger
        match kind, found:
            case "vm", VmFacts():
                self.did(ledger.see_vm(found, self.now))
            case "vm", ObjectName():
                self.did(ledger.lose_vm(found))
            case "pod", PodFacts():
                self.did(ledger.see_pod(found))
            case "pod", str():
                self.did(ledger.lose_pod(found))
            case _, MigrationFacts():
                self.did(ledger.see_migration(found, self.now))
            case _, ObjectName():
                self.did(ledger.lose_migration(found))

    def did(self, effects: tuple[Effect, ...]) -> None:
        self.writes |= {effect.vm: effect for effect in effects if isinstance(effect, PersistPermit)}
        for read in [effect for effect in effects if isinstance(effect, ReadPod)]:
            self.did(self.ledger.pod_read(read.uid, self.api.pods.get(read.uid)))

    @rule(seconds=st.sampled_from((1.0, SETTLE / 2, SETTLE)))
    def wait(self, seconds: float) -> None:
        self.now = Instant(self.now + seconds)
        self.did(self.ledger.pass_time(self.now))

    @rule(vm=names, is_lost=st.booleans())
    def write(self, vm: str, is_lost: bool) -> None:
        order = self.writes.pop(name(vm), None)
        if order is not None:
            self.carry_out(order, is_lost=is_lost)

    def carry_out(self, order: PersistPermit, *, is_lost: bool = False) -> bool:
        """Writes a permit onto the VM with its UID; whether the scheduler hears that it is there."""
        found = self.api.vms.get(order.vm)
        stored = None
        if found is not None and found.uid == order.uid:
            stored = self.api.put_vm(replace(found, permit=order.permit))
        if stored is None or is_lost:
            self.did(self.ledger.permit_unsure(order.revision, order.vm))
            return False
        self.did(self.ledger.permit_stored(order.revision, stored))
        return True

    # VMs and their pods -------------------------------------------------------------------------------------------

    @rule(vm=names, use=sizes, has_agent=st.booleans(), permit=st.none() | sizes)
    def make_vm(self, vm: str, use: Resources, has_agent: bool, permit: Resources | None) -> None:
        if name(vm) not in self.api.vms:
            uid = f"{vm}-{self.api.number()}"
            made = VmFacts(name(vm), uid, 0, amount(20), use, permit=permit, has_agent=has_agent, phase="Pending")
            self.api.put_vm(made)

    @rule(vm=names, use=sizes)
    def resize_by_hand(self, vm: str, use: Resources) -> None:
        if name(vm) in self.api.vms:
            self.api.put_vm(replace(self.api.vms[name(vm)], use=use))

    @rule(vm=names)
    def opt_in_or_out(self, vm: str) -> None:
        """An agent whose VM opts out forgets what it was told."""
        if name(vm) in self.api.vms:
            changed = self.api.put_vm(replace(self.api.vms[name(vm)], has_agent=not self.api.vms[name(vm)].has_agent))
            for uid in [uid for uid in self.agents if self.api.pods[uid].vm_uid == changed.uid]:
                del self.agents[uid]

    @rule(vm=names, is_bounded=st.booleans(), most=sizes)
    def break_or_mend(self, vm: str, is_bounded: bool, most: Resources) -> None:
        """The object becomes unreadable, or readable again; the permit on it stays what it was."""
        found = self.api.vms.get(name(vm))
        if found is None:
            return
        if found.unreadable:
            self.api.put_vm(replace(found, unreadable="", is_bounded=True))
        else:
            self.api.put_vm(replace(found, unreadable=UNREADABLE, is_bounded=is_bounded, use=found.use.at_least(most)))

    @rule(vm=names)
    def delete_vm(self, vm: str) -> None:
        if name(vm) in self.api.vms:
            self.api.drop_vm(name(vm))

    @rule(vm=names, around=st.sampled_from((ZERO, amount(0.5))), requests=st.sampled_from((ZERO, amount(3))))
    def make_pod(self, vm: str, around: Resources, requests: Resources) -> None:
        found = self.api.vms.get(name(vm))
        if found is None or self.runner_of(found) is not None:
            return
        pod = name(f"{vm}-pod-{self.api.number()}")
        self.api.put_vm(replace(found, pod=pod, phase="Pending", actual=None))
        counted = requests.at_least(around)
        self.api.put_pod(PodFacts(f"uid-{pod.name}", pod, counted, name(vm), vm_uid=found.uid, around=around))

    @rule(data=st.data(), to=st.sampled_from(NODES))
    def place(self, data: st.DataObject, to: str) -> None:
        """One cycle of kube-scheduler, or another scheduler that asks no extender."""
        unbound = [each for each in self.api.pods.values() if each.node is None]
        if not unbound:
            return
        pod = data.draw(st.sampled_from(unbound))
        if data.draw(st.booleans()):
            try:
                reservation = self.ledger.reserve(pod, to)
            except LedgerError:
                return
            if not reservation.needs_bind:
                return
            self.did(self.ledger.bind_done(pod.uid, to))
        self.bound(pod, to)

    def bound(self, pod: PodFacts, to: str) -> None:
        """The pod is bound, and its guest runs."""
        self.api.put_pod(replace(pod, node=to))
        found = self.api.vms.get(pod.vm) if pod.vm is not None else None
        if found is not None and found.uid == pod.vm_uid and pod.has_runner:
            self.api.put_vm(replace(found, phase="Running", actual=found.use))

    def runner_of(self, vm: VmFacts) -> PodFacts | None:
        """The pod with the VM's guest, and not the one that it has left."""
        runners = [each for each in self.api.pods.values() if each.vm_uid == vm.uid and each.has_runner]
        return next((each for each in runners if each.name == vm.pod), runners[0] if runners else None)

    @rule(vm=names, to=st.sampled_from(NODES), is_known=st.booleans())
    def arrive(self, vm: str, to: str, is_known: bool) -> None:
        """The VM has moved by a migration, which may be deleted already; the pod that it has left is still there."""
        found = self.api.vms.get(name(vm))
        source = None if found is None else self.runner_of(found)
        if found is None or source is None or source.node is None:
            return
        number = self.api.number()
        target = replace(source, uid=f"uid-{vm}-{number}", name=name(f"{vm}-pod-{number}"), node=to)
        self.api.put_pod(target)
        self.api.put_vm(replace(found, pod=target.name))
        self.agents.pop(source.uid, None)
        if is_known:
            done = MigrationFacts(name(f"m-{number}"), f"m-{number}", 0, found.name, MigrationPhase.SUCCEEDED, to)
            self.api.put_migration(replace(done, source_pod=source.name, target_pod=target.name, ended_at=0.0))

    @rule(data=st.data(), is_finished=st.booleans())
    def end_pod(self, data: st.DataObject, is_finished: bool) -> None:
        if not self.api.pods:
            return
        uid = data.draw(st.sampled_from(sorted(self.api.pods)))
        self.agents.pop(uid, None)
        if is_finished:
            self.api.put_pod(replace(self.api.pods[uid], finished=True))
        self.api.drop_pod(uid)

    @rule(number=st.integers(1, 2), size=sizes, to=st.sampled_from((None, *NODES)))
    def foreign_pod(self, number: int, size: Resources, to: str | None) -> None:
        uid = f"foreign-{number}"
        if uid in self.api.pods:
            self.api.drop_pod(uid)
        elif not any(isinstance(each, str) and each == uid for each in self.api.news["pod"]):
            fresh = f"{uid}-{self.api.number()}"
            self.api.put_pod(PodFacts(fresh, name(fresh), size, node=to))

    @rule(vm=names, size=sizes, to=st.sampled_from((None, *NODES)))
    def owned_pod(self, vm: str, size: Resources, to: str | None) -> None:
        """A pod that the VM owns and does not run in, such as a backup's; the VM may be so new that it has no pod."""
        if name(vm) not in self.api.vms:
            self.make_vm(vm, size, True, None)
        uid = f"backup-{vm}-{self.api.number()}"
        vm_uid = self.api.vms[name(vm)].uid
        self.api.put_pod(PodFacts(uid, name(uid), size, name(vm), to, vm_uid=vm_uid, has_runner=False))

    # Agents -------------------------------------------------------------------------------------------------------

    @rule(vm=names, wanted=sizes, is_lost=st.booleans())
    def ask(self, vm: str, wanted: Resources, is_lost: bool) -> None:
        """The agent in the VM's pod asks, and is answered once what must be written is written."""
        found = self.api.vms.get(name(vm))
        pod = None if found is None else self.runner_of(found)
        if found is None or not found.has_agent or pod is None or pod.node is None:
            return
        wanted = wanted if is_lost else wanted.at_least(found.use)
        request = AgentRequest(pod.name, wanted, self.agents.get(pod.uid), sequence=self.api.number())
        try:
            decision = self.ledger.decide(pod.uid, request, self.now)
        except LedgerError:
            return
        self.did(decision.effects)
        if decision.persist is not None:
            self.writes[decision.persist.vm] = decision.persist
        if decision.persist is not None and decision.persist.before_answer:
            del self.writes[decision.persist.vm]
            if not self.carry_out(decision.persist, is_lost=is_lost):
                return
        if found.uid == self.api.vms[name(vm)].uid and self.api.vms[name(vm)].has_agent:
            self.agents[pod.uid] = decision.permit

    # Migrations ---------------------------------------------------------------------------------------------------

    @rule(vm=names, to=st.sampled_from(NODES))
    def order_to_move(self, vm: str, to: str) -> None:
        found = self.api.vms.get(name(vm))
        if found is None or any(each.vm == found.name for each in self.api.migrations.values()):
            return
        number = self.api.number()
        self.api.put_migration(MigrationFacts(name(f"m-{number}"), f"m-{number}", 0, found.name, target=to))

    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """A migration takes a step: it names its pods (whatever pod has such a name), fails, or is deleted."""
        if not self.api.migrations:
            return
        found = self.api.migrations[data.draw(st.sampled_from(sorted(self.api.migrations, key=str)))]
        vm = self.api.vms.get(found.vm)
        if found.phase is MigrationPhase.PENDING and vm is not None:
            pods = sorted({each.name for each in self.api.pods.values()}, key=str)
            target = data.draw(st.sampled_from([None, *pods]))
            running = replace(found, phase=MigrationPhase.RUNNING, source_pod=vm.pod, target_pod=target)
            self.api.put_migration(running)
        elif not found.phase.is_over:
            self.api.put_migration(replace(found, phase=MigrationPhase.FAILED, ended_at=0.0))
        else:
            self.api.drop_migration(found.name)

    # What must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_broken(self) -> None:
        known = {uid: VmTruth(ZERO, permit) for uid, permit in self.agents.items() if uid in self.ledger.claims}
        assert violations(self.ledger, known) == []

    def teardown(self) -> None:
        """All is heard and written, and every agent is gone with its VM's label: the objects alone are left."""
        for vm in list(self.api.vms.values()):
            self.api.put_vm(replace(vm, has_agent=False, unreadable="", is_bounded=True))
        for migration in list(self.api.migrations):
            self.api.drop_migration(migration)
        while any(self.api.news.values()):
            for kind in self.api.news:
                self.hear(kind, 3)
        for claim in self.ledger.claims.values():
            assert claim.state in (ClaimState.BOUND, ClaimState.CONFIRMED)
        assert self.reserved() == self.needed()
        while self.writes:
            self.carry_out(self.writes.popitem()[1])
        self.relist()
        assert self.reserved() == self.needed()
        assert violations(self.ledger) == []

    def reserved(self) -> dict[str, Resources]:
        return {uid: claim.reserved for uid, claim in self.ledger.claims.items() if claim.pod.vm_uid in self.uids()}

    def uids(self) -> set[str]:
        return {"", *(vm.uid for vm in self.api.vms.values())}

    def needed(self) -> dict[str, Resources]:
        """What each bound pod needs by the objects alone; pods of deleted VMs keep what they had."""
        needed = {}
        for pod in self.api.pods.values():
            vm = self.api.vms.get(pod.vm) if pod.vm is not None else None
            if pod.node is None or pod.vm_uid not in self.uids():
                continue
            is_run = vm is not None and (pod.has_runner or vm.pod is None)
            guest = vm.use.at_least(vm.actual or ZERO) + pod.around if vm is not None and is_run else ZERO
            needed[pod.uid] = guest.at_least(pod.requests)
        return needed


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
