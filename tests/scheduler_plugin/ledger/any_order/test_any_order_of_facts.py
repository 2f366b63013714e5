"""Facts in any order: objects are created, changed, deleted and recreated, and events arrive late or twice.

Rules that hold here:

- ``Api`` is the truth; its news wait in one queue for each kind and are heard in the order of that kind, now and then
  twice, or all at once from a complete list.
- After every step no rule is broken, and every agent's permit is reserved where its pod is.
- In the end, once all is heard and no agent is left, each pod reserves what its object needs and nothing more, and less
  only where its node has no room for it.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from msgspec import structs

from protocol.guest.sleep import WAKING
from protocol.messages import AgentRequest
from protocol.units import ZERO, Bytes, MilliCpu, Resources
from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.accounts.permit_state import SETTLE
from scheduler_plugin.ledger.events import PermitRequested
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase
from scheduler_plugin.ledger.invariants import VmTruth, violations
from scheduler_plugin.ledger.outcomes import LedgerError
from tests.examples import examples
from tests.scheduler_plugin.ledger.any_order.changing_objects import ChangingObjects
from tests.scheduler_plugin.ledger.any_order.undelivered_news import NAMES, NODES, names, sizes
from tests.scheduler_plugin.ledger.fleet import amount, name


class AnyOrder(ChangingObjects):
    # Agents -------------------------------------------------------------------------------------------------------

    @rule(vm=names, wanted=sizes, is_lost=st.booleans())
    def ask(self, vm: str, wanted: Resources, is_lost: bool) -> None:
        """The agent in the VM's pod asks, and is answered once what must be written is written."""
        found = self.api.vms.get(name(vm))
        pod = None if found is None else self.runner_of(found)
        if found is None or not found.has_agent or pod is None or pod.node is None:
            return
        wanted = wanted if is_lost else wanted.at_least(found.use)
        if found.wakes_with is not None:
            # It gives its permit up or wants to wake; one that has not read its VM asks for anything.
            wanted = found.wakes_with if found.phase == WAKING else ZERO
            wanted = amount(1) if is_lost else wanted
        request = AgentRequest(pod.name, wanted, self.agents.get(pod.uid), sequence=self.api.number())
        try:
            decision = self.ledger.apply(PermitRequested(pod.uid, request), self.now)
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
        used = {uid: self.guests.get(uid, ZERO) for uid in self.agents | self.guests if uid in self.ledger.claims}
        known = {uid: VmTruth(size, size.at_least(self.agents.get(uid, ZERO))) for uid, size in used.items()}
        assert violations(self.ledger, known) == []

    def teardown(self) -> None:
        """All events have arrived, all writes are done, and no agent or VM's label is left: only the objects remain."""
        for vm in list(self.api.vms.values()):
            self.guests.clear()
            self.api.put_vm(structs.replace(vm, has_agent=False, unreadable="", is_bounded=True))
        for migration in list(self.api.migrations):
            self.api.drop_migration(migration)
        while any(self.api.news.values()):
            for kind in self.api.news:
                self.hear(kind, 3)
        for claim in self.ledger.claims.values():
            assert claim.state in (ClaimState.BOUND, ClaimState.CONFIRMED)
        self.wait(SETTLE)
        while self.writes:
            self.carry_out(self.writes.popitem()[1])
        self.wait(SETTLE)
        self.missing()
        for _ in NAMES:  # what one VM gives back another may take
            self.relist()
        assert self.fits_nowhere(self.missing())
        assert violations(self.ledger) == []

    def reserved(self) -> dict[str, Resources]:
        known = self.ledger.claims.items()
        return {uid: each.reserved for uid, each in known if each.pod.vm_uid in self.uids() and uid not in self.left()}

    def left(self) -> set[str]:
        """Pods that their VMs have left: they keep their reservations, whatever happens to the VM."""
        left = [each for each in self.ledger.claims.values() if each.left_with is not None]
        for claim in left:
            assert claim.vm is not None
            assert claim.vm.facts is not None
            assert claim.vm.facts.pod not in (None, claim.pod.name)
        return {each.pod.uid for each in left}

    def missing(self) -> dict[str, Resources]:
        """The part of their objects' requests that pods do not reserve; none reserves more."""
        reserved, needed = self.reserved(), self.needed()
        assert reserved.keys() == needed.keys()
        assert all(reserved[uid].within(needed[uid]) for uid in needed)
        return {uid: needed[uid] - reserved[uid] for uid in needed if reserved[uid] != needed[uid]}

    def fits_nowhere(self, missing: dict[str, Resources]) -> bool:
        """True if each is too much for the node of one of its VM's pods."""
        for uid, more in missing.items():
            vm = self.ledger.claims[uid].vm
            claims = [] if vm is None else vm.claims
            frees = [self.ledger.nodes[each.node].room.free for each in claims]
            shared = len({each.node for each in claims}) < len(claims)
            for lacks in (structs.replace(more, mem=Bytes(0)), structs.replace(more, cpu=MilliCpu(0))):
                if lacks.any and not shared and all(lacks.within(free) for free in frees):
                    return False
        return True

    def uids(self) -> set[str]:
        return {"", *(vm.uid for vm in self.api.vms.values())}

    def needed(self) -> dict[str, Resources]:
        """Requirements of each bound pod by its objects alone; pods of deleted VMs keep their reservations."""
        needed = {}
        for pod in self.api.pods.values():
            vm = self.api.vms.get(pod.vm) if pod.vm is not None else None
            if pod.node is None or pod.vm_uid not in self.uids() or pod.uid in self.left():
                continue
            is_run = vm is not None and (pod.has_runner or vm.pod is None)
            guest = vm.use.at_least(vm.actual or ZERO) + pod.overhead if vm is not None and is_run else ZERO
            needed[pod.uid] = guest.at_least(pod.requests)
        return needed


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(12, 80), stateful_step_count=30, deadline=None)
