"""VMs, their pods and other pods: they are created, changed, moved, deleted, and recreated with the same names."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from msgspec import structs

from protocol.guest.sleep import ASLEEP, WAKING
from protocol.units import ZERO, Resources
from scheduler_plugin.ledger.events import BindEnded, BindRequested, WriteOutcome
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase, PodFacts, VmFacts
from scheduler_plugin.ledger.outcomes import LedgerError
from tests.scheduler_plugin.ledger.any_order.hearing_scheduler import HearingScheduler
from tests.scheduler_plugin.ledger.any_order.undelivered_news import NODES, UNREADABLE, names, size_of, sizes
from tests.scheduler_plugin.ledger.fleet import amount, name


class ChangingObjects(HearingScheduler):
    """Changes of objects by users, kube-scheduler and the runtime."""

    @initialize(has_agent=st.booleans(), use=sizes)
    def begin(self, has_agent: bool, use: Resources) -> None:
        """Two VMs run, one is being made."""
        for vm, on in (("a", "n1"), ("b", "n2"), ("c", None)):
            self.make_vm(vm, use, has_agent, None)
            self.make_pod(vm, ZERO, ZERO)
            if on is not None:
                self.bound(next(each for each in self.api.pods.values() if each.vm == name(vm)), on)
        self.relist()

    @rule(vm=names, use=sizes, has_agent=st.booleans(), permit=st.none() | sizes)
    def make_vm(self, vm: str, use: Resources, has_agent: bool, permit: Resources | None) -> None:
        if name(vm) not in self.api.vms:
            uid = f"{vm}-{self.api.number()}"
            made = VmFacts(name(vm), uid, 0, amount(20), use, permit=permit, has_agent=has_agent, phase="Pending")
            self.api.put_vm(made)

    @rule(vm=names, use=sizes)
    def resize_by_hand(self, vm: str, use: Resources) -> None:
        if name(vm) in self.api.vms:
            self.api.put_vm(structs.replace(self.api.vms[name(vm)], use=use, wakes_with=None))
            self.guests = {uid: size.at_most(use) for uid, size in self.guests.items()}

    @rule(vm=names)
    def opt_in_or_out(self, vm: str) -> None:
        """An agent whose VM opts out forgets its permit."""
        if name(vm) in self.api.vms:
            changed = self.api.put_vm(
                structs.replace(self.api.vms[name(vm)], has_agent=not self.api.vms[name(vm)].has_agent)
            )
            for uid in [uid for uid in self.agents if self.api.pods[uid].vm_uid == changed.uid]:
                del self.agents[uid]
            # What a VM without an agent has counts by its object.
            for uid in [uid for uid in self.guests if self.api.pods[uid].vm_uid == changed.uid]:
                del self.guests[uid]

    @rule(vm=names, is_bounded=st.booleans(), maximum=sizes)
    def break_or_mend(self, vm: str, is_bounded: bool, maximum: Resources) -> None:
        """The object becomes unreadable, or readable again; its permit does not change."""
        found = self.api.vms.get(name(vm))
        if found is None:
            return
        if found.unreadable:
            self.api.put_vm(structs.replace(found, unreadable="", is_bounded=True))
        else:
            self.api.put_vm(
                structs.replace(
                    found,
                    unreadable=UNREADABLE,
                    is_bounded=is_bounded,
                    use=size_of(found).at_least(maximum),
                    wakes_with=None,
                )
            )

    @rule(vm=names, phase=st.sampled_from((ASLEEP, ASLEEP, WAKING)))
    def sleep_or_wake(self, vm: str, phase: str) -> None:
        """A guest that runs is put to sleep, or something must reach one that sleeps."""
        found = self.api.vms.get(name(vm))
        pod = None if found is None else self.runner_of(found)
        if found is None or pod is None or pod.node is None or found.unreadable:
            return
        if phase == ASLEEP and found.phase == "Running" and found.has_agent:
            self.guests.pop(pod.uid, None)
            self.api.put_vm(structs.replace(found, phase=ASLEEP))
        elif phase == WAKING and found.phase == ASLEEP:
            self.api.put_vm(structs.replace(found, phase=WAKING))

    @rule(vm=names)
    def start_guest(self, vm: str) -> None:
        """The controller wakes a guest by the permit on its object, and by nothing that a scheduler knows."""
        found = self.api.vms.get(name(vm))
        pod = None if found is None else self.runner_of(found)
        if found is None or found.phase != WAKING or found.unreadable or pod is None:
            return
        size = size_of(found)
        if found.has_agent and not size.within(found.permit or ZERO):
            return
        self.api.put_vm(structs.replace(found, phase="Running", actual=size))
        if found.has_agent:
            self.guests[pod.uid] = size

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
        self.api.put_vm(structs.replace(found, pod=pod, phase="Pending", actual=None))
        counted = requests.at_least(around)
        self.api.put_pod(PodFacts(f"uid-{pod.name}", pod, counted, name(vm), vm_uid=found.uid, overhead=around))

    @rule(data=st.data(), to=st.sampled_from(NODES))
    def place(self, data: st.DataObject, to: str) -> None:
        """One cycle of kube-scheduler, or another scheduler that asks no extender."""
        unbound = [each for each in self.api.pods.values() if each.node is None]
        if not unbound:
            return
        pod = data.draw(st.sampled_from(unbound))
        if data.draw(st.booleans()):
            try:
                reservation = self.ledger.apply(BindRequested(pod, to), self.now)
            except LedgerError:
                return
            if not reservation.needs_bind:
                return
            self.did(self.ledger.apply(BindEnded(pod.uid, to, WriteOutcome.DONE), self.now))
        self.bound(pod, to)

    def bound(self, pod: PodFacts, to: str) -> None:
        """The pod is bound, and its guest runs."""
        self.api.put_pod(replace(pod, node=to))
        found = self.api.vms.get(pod.vm) if pod.vm is not None else None
        if found is not None and found.uid == pod.vm_uid and pod.has_runner:
            self.api.put_vm(structs.replace(found, phase="Running", actual=size_of(found)))

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
        self.api.put_vm(structs.replace(found, pod=target.name))
        self.agents.pop(source.uid, None)
        self.guests.pop(source.uid, None)
        if is_known:
            done = MigrationFacts(name(f"m-{number}"), f"m-{number}", 0, found.name, MigrationPhase.SUCCEEDED, to)
            self.api.put_migration(replace(done, source_pod=source.name, target_pod=target.name, ended_at=0.0))

    @rule(data=st.data(), is_finished=st.booleans())
    def end_pod(self, data: st.DataObject, is_finished: bool) -> None:
        if not self.api.pods:
            return
        uid = data.draw(st.sampled_from(sorted(self.api.pods)))
        self.agents.pop(uid, None)
        self.guests.pop(uid, None)
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
