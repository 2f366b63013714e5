"""No guest runs without room while its VM sleeps and wakes, for events in any order.

The controller and the ledger see the VM by watches that lag; a guest follows its orders late; controllers are replaced.
"""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from deploy.neonvm.controller.plan import plan
from deploy.neonvm.controller.vm_facts import VmObservation
from deploy.neonvm.objects.vm_spec import machine_of
from deploy.neonvm.ports import GuestPhase, GuestState
from protocol.guest.sleep import SLEEPING, SleepReport, SleepState
from protocol.kubernetes.objects import Json, annotations_of, child, text
from protocol.names import ANNOTATION_PERMIT, ANNOTATION_SLEEP
from protocol.permits import encode_permit
from protocol.units import Bytes, MilliCpu, Resources
from tests.neonvm.migration.fake_api import FakeApi, RefusedError
from tests.neonvm.sample_objects import WANTED, has, runner, virtual_machine

NOTHING = Resources(MilliCpu(0), Bytes(0))
RUNS = has("2", "2Gi")


class SleepModel(FakeApi):
    """One running VM, and everyone who takes part in its sleep. Each action is a method."""

    def __init__(self) -> None:
        super().__init__()
        annotations = {ANNOTATION_PERMIT: encode_permit(WANTED)}
        self._put(self.vms, virtual_machine({"phase": "Running", "podName": "db-x"}, "Always", annotations=annotations))
        self.guest = RUNS
        self.report = SleepReport()
        self.order = ""
        self.may_wake = False
        self.migrates = False
        self.took_room = False
        self.seen = self.on_standby = self.in_ledger = self.vm

    @property
    def vm(self) -> Json:
        return self.vms["db"]

    @property
    def has_room(self) -> bool:
        """True if the reservation that a ledger derives from the VM's object covers a running guest."""
        return self._phase not in SLEEPING or self._is_permitted

    @property
    def _phase(self) -> str:
        return text(self.vm, "status", "phase")

    @property
    def _is_permitted(self) -> bool:
        """True if the permit covers the guest, regardless of the spec."""
        permit = machine_of(self.vm).permit
        return permit is not None and WANTED.within(permit)

    # The guest, late as it likes.

    def follow(self) -> None:
        if self.order:
            self.report, self.guest = SleepReport(self.order, SleepState.ASLEEP, sessions=3, saved=7), self._still()
        elif self.may_wake:
            self._run(RUNS, SleepState.AWAKE)
        self.order, self.may_wake = "", False

    def refuse(self) -> None:
        if self.order:
            self.report, self.order = SleepReport(self.order, SleepState.REFUSED, message="busy"), ""

    def lose_memory(self) -> None:
        if self.may_wake:
            self._run(has("2", "2Gi", GuestPhase.BOOTING), SleepState.RESTARTED)
            self.may_wake = False

    def boot(self) -> None:
        if self.guest.phase is GuestPhase.BOOTING:
            self.guest = RUNS

    def call(self) -> None:
        if self.guest.phase is GuestPhase.ASLEEP:
            self.guest = self._still(GuestPhase.WAKING)
            self.report = SleepReport(self.report.order, SleepState.WAKING, "", "a query", 3, 7)

    def _run(self, state: GuestState, end: SleepState) -> None:
        self.guest, self.report = state, SleepReport(self.report.order, end, "", "why", 3, 7, 0.2)

    @staticmethod
    def _still(phase: GuestPhase = GuestPhase.ASLEEP) -> GuestState:
        return has("0", "0", phase)

    # People, and the agent.

    def put_order(self) -> None:
        self._annotate(ANNOTATION_SLEEP, self._next("order"))

    def remove_order(self) -> None:
        self._annotate(ANNOTATION_SLEEP, None)

    def lower_use(self) -> None:
        self._use(1)

    def restore_use(self) -> None:
        self._use(2)

    def _use(self, cpus: int) -> None:
        guest = child(self.vm, "spec", "guest")
        cpus_of_guest = {**child(guest, "cpus"), "use": cpus}
        self._patch(self.vms, self.vm, spec={"guest": {**guest, "cpus": cpus_of_guest}})

    def migrate(self) -> None:
        self.migrates = not self.migrates

    def _annotate(self, name: str, value: str | None) -> None:
        annotations = {**annotations_of(self.vm), name: value}
        metadata: Json = {"annotations": {key: text for key, text in annotations.items() if text is not None}}
        self._patch(self.vms, self.vm, metadata=metadata)

    # The ledger: it writes over the version that it knows.

    def watch_ledger(self) -> None:
        self.in_ledger = self.vm

    def give_up(self) -> None:
        if text(self.in_ledger, "status", "phase") == "Asleep":
            self._store(NOTHING)

    def grant(self) -> None:
        if text(self.in_ledger, "status", "phase") != "Asleep":
            self._store(machine_of(self.in_ledger).wakes_with)

    def _store(self, permit: Resources) -> None:
        annotations = {**annotations_of(self.in_ledger), ANNOTATION_PERMIT: encode_permit(permit)}
        try:
            self._patch(self.vms, self.in_ledger, metadata={"annotations": annotations})
        except RefusedError:
            return

    # The controller.

    def watch(self) -> None:
        self.seen = self.vm

    def replace_controller(self) -> None:
        """A new controller starts with fresh watches, and knows only the guest's phase."""
        self.watch_on_standby()
        self.take_over()

    def watch_on_standby(self) -> None:
        self.on_standby = self.vm

    def take_over(self) -> None:
        """A standby takes over, and its watch may lag behind its predecessor's writes."""
        self.seen, self.order, self.may_wake = self.on_standby, "", False
        self.report = SleepReport("", SleepState.ASLEEP) if self.guest.phase in SLEEPING else SleepReport()

    def reconcile(self) -> None:
        vm = self.seen
        todo = plan(self._facts(vm))
        status = child(vm, "status")
        sleep = child(todo.status, "sleep")
        wanted = {**todo.status, **({"sleep": {**sleep, "since": sleep["since"] or self._next("at")}} if sleep else {})}
        changed = {key: value for key, value in wanted.items() if status.get(key) != value}
        had_room, is_checked = self.has_room, bool(changed.keys() & {"phase", "sleep"})
        try:
            if changed:
                self._patch(self.vms, vm, status=changed, checked=is_checked)
        except RefusedError:
            return
        # A phase that reserves again must find its room reserved.
        self.took_room |= self.has_room and not had_room
        if todo.sleep and todo.sleep != self.report.order and self.guest.phase is GuestPhase.RUNNING:
            self.order = self.order or todo.sleep
        wakes = todo.wake and self.guest.phase in SLEEPING and (is_checked or self._is_current(vm))
        self.may_wake = self.may_wake or wakes

    def _facts(self, vm: Json) -> VmObservation:
        return VmObservation(
            vm=vm,
            machine=machine_of(vm),
            fault="",
            pod=runner(),
            guest=self.guest,
            guest_fault="",
            vm_address="10.1.0.1",
            restart_due=True,
            new_pod_name=lambda: "never",
            sleeping=self.report,
            migrates=self.migrates,
        )


ACTIONS = [
    SleepModel.follow,
    SleepModel.refuse,
    SleepModel.lose_memory,
    SleepModel.boot,
    SleepModel.call,
    SleepModel.put_order,
    SleepModel.remove_order,
    SleepModel.lower_use,
    SleepModel.restore_use,
    SleepModel.migrate,
    SleepModel.watch_ledger,
    SleepModel.give_up,
    SleepModel.grant,
    SleepModel.watch,
    SleepModel.replace_controller,
    SleepModel.watch_on_standby,
    SleepModel.take_over,
    SleepModel.reconcile,
]
TURN = [SleepModel.watch, SleepModel.reconcile, SleepModel.follow]
SLEEP = [SleepModel.put_order, *TURN, *TURN]
TAKE_BACK = [SleepModel.watch_ledger, SleepModel.give_up]
GRANT = [SleepModel.watch_ledger, SleepModel.grant]
DECIDE = [*TURN[:2]]
LATE = [SleepModel.take_over, SleepModel.reconcile, SleepModel.follow]


def check(world: SleepModel) -> None:
    assert not world.took_room
    assert world.has_room or world.guest.phase in SLEEPING


@given(st.lists(st.sampled_from(ACTIONS), max_size=60), st.booleans())
@example([*SLEEP, SleepModel.call, *TAKE_BACK, SleepModel.reconcile, SleepModel.follow], True)
@example([SleepModel.migrate, SleepModel.reconcile, *TAKE_BACK], True)
@example([SleepModel.call, SleepModel.replace_controller], True)
@example([*SLEEP, SleepModel.call, SleepModel.watch, *TAKE_BACK, *TURN, SleepModel.grant, *TURN], False)
@example([SleepModel.lower_use, *TAKE_BACK, SleepModel.call, *TURN, *GRANT, *TURN], True)
@example([SleepModel.call, *DECIDE, SleepModel.watch_on_standby, *TURN, *SLEEP, *TURN, *TAKE_BACK, *LATE], True)
def test_guest_runs_only_with_room(actions: list[object], asleep: bool) -> None:
    world = SleepModel()
    for action in [*(SLEEP if asleep else []), *actions]:
        action(world)  # type: ignore[operator]
        check(world)
    # Whatever has happened, a VM without an order runs in the end.
    world.remove_order()
    world.restore_use()
    world.migrates = False
    for _ in range(6):
        for action in (*TURN, SleepModel.boot, SleepModel.watch_ledger, SleepModel.grant):
            action(world)
            check(world)
    assert (world.guest, text(world.vm, "status", "phase")) == (RUNS, "Running")
    assert child(world.vm, "status", "sleep").get("state") not in SLEEPING


def test_model_sleeps_and_wakes() -> None:
    world = SleepModel()
    for action in (*SLEEP, *TAKE_BACK):
        action(world)
    assert (text(world.vm, "status", "phase"), world.has_room) == ("Asleep", False)
    for action in (SleepModel.call, *TURN, *TURN):
        action(world)
    assert (text(world.vm, "status", "phase"), world.guest.phase) == ("Waking", GuestPhase.WAKING)
    for action in (SleepModel.watch_ledger, SleepModel.grant, *TURN, *TURN):
        action(world)
    assert (text(world.vm, "status", "phase"), world.guest) == ("Running", RUNS)
