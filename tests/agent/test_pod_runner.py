"""The agent of a postgres in a pod, with time moved by hand, a kubelet that objects, and faults at every port."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed

from msgspec.structs import replace

from agent.assignments import Assignment, PodContainer
from agent.core.events import Fault
from agent.core.explain import explain
from agent.ports import ConflictError, PortError, RefusedError, UnwatchedError
from agent.runner import Ports, Runner
from protocol.guest.monitor_messages import DownscaleResult, UpscaleConfirmation
from protocol.messages import ObjectName
from protocol.pod_database import DEFERRED, INFEASIBLE, MEMORY_STEP, PodDatabase, ResizeObjection
from protocol.units import Bytes, Resources
from protocol.virtual_machine import Bounds, VirtualMachine
from tests.agent.core.story import POLICY
from tests.agent.fake_monitor import FakeMonitor
from tests.agent.fake_ports import FakeVmApi, RunnerFixture

NAME = ObjectName("default", "pod/pg-1")
ASSIGNMENT = Assignment(NAME, ObjectName("default", "pg-1"), "10.0.0.1", PodContainer("u", "c1"))
AWAY = PortError(Fault.NETWORK, "away")


def size(cpu: int | str, mem: str) -> Resources:
    return Resources.parse(cpu, mem)


FLOOR = size("250m", "1Gi")


class FakePod(FakeVmApi):
    """One pod; its kubelet does what is ordered, unless ``verdict`` says what is in the way of ``blocks``."""

    def __init__(self, use: Resources) -> None:
        super().__init__()
        self.verdict = ""
        self.blocks: Callable[[Resources, Resources], bool] = lambda _use, _has: True
        self.found: VirtualMachine = PodDatabase(
            name=NAME,
            uid="u",
            resource_version="1",
            labels={},
            annotations={},
            bounds=Bounds(FLOOR, size(4, "8Gi")),
            use=use,
            actual=use,
            slot_size=MEMORY_STEP,
            pod_name="pg-1",
            node="node-1",
            pod_ip=None,
            phase="Running",
            enabled=True,
            permit=None,
        )

    async def patch(self, use: Resources, slot_size: Bytes, base: int) -> VirtualMachine:
        """See ``VmApi``."""
        self.patched.append((use, base))
        if self.patch_errors:
            raise self.patch_errors.pop(0)
        if base != int(self.found.resource_version):
            raise ConflictError(Fault.VM_API, "changed")
        self.change(shown=False, use=self.stores(use), objection=None)
        answer = self.found
        self.looks()
        return answer

    def looks(self) -> None:
        """The kubelet handles the ordered resize."""
        use, has = self.found.use, self.found.actual
        assert has is not None
        if use == has:
            return
        if self.verdict and self.blocks(use, has):
            self.change(objection=ResizeObjection(self.verdict, "no room"))
        else:
            self.change(actual=use, objection=None)

    @property
    def targets(self) -> list[Resources]:
        """The sizes that were ordered."""
        return [use for use, _ in self.patched]


class PodFixture(RunnerFixture):
    """One runner of a pod, and fakes at all of its ports."""

    def __init__(self, use: Resources = FLOOR) -> None:
        self.reclaimer = FakeMonitor()
        super().__init__(monitor=self.reclaimer)
        self.pod = self.vm_api = FakePod(use)
        ports = Ports(self.guest, self.scheduler, self.pod, self.database.look, self.clock, self.reclaimer.connect)
        self.runner = Runner(ASSIGNMENT, ports, POLICY, 1, self.growths)

    @property
    def because(self) -> str:
        return explain(self.runner.state, str(NAME), self.clock.now()).because


async def test_load_grows_cpu_alone_within_a_second() -> None:
    async with PodFixture() as fixture:
        await fixture.clock.advance(1.0)
        fixture.guest.cores = 0.25
        await fixture.clock.advance(1.0)
        assert fixture.pod.targets == [size("500m", "1Gi")]
        assert fixture.scheduler.asked[-1] == size("500m", "1Gi")


async def test_deferred_wish_is_kept_until_there_is_room() -> None:
    async with PodFixture() as fixture:
        fixture.pod.verdict = DEFERRED
        fixture.guest.cores = 0.25
        await fixture.clock.advance(30.0)
        assert fixture.pod.targets == [size("500m", "1Gi")]
        assert set(fixture.scheduler.asked[2:]) == {size("500m", "1Gi")}, "so the ledger keeps the room"
        assert fixture.log.messages.count("the kubelet deferred or refused a resize") == 1
        fixture.pod.verdict = ""
        fixture.pod.looks()
        await fixture.clock.advance(1.0)
        assert fixture.pod.found.actual == size("500m", "1Gi")
        assert fixture.because == "sized for cpu busy and memory used"


async def test_infeasible_wish_is_tried_ever_more_seldom() -> None:
    async with PodFixture() as fixture:
        fixture.pod.verdict = INFEASIBLE
        fixture.guest.cores = 0.25
        await fixture.clock.advance(120.0)
        assert fixture.pod.targets == [size("500m", "1Gi"), FLOOR] * 5, "after 5, 10, 20 and 40 s"
        assert fixture.pod.found.use == FLOOR
        assert fixture.scheduler.asked[-1] == FLOOR


async def test_reasons_speak_of_the_pod() -> None:
    """Explanations, log lines and Events call it neither VM nor guest, for any failure."""
    async with PodFixture(size("250m", "2Gi")) as fixture:
        reasons = [fixture.because]

        async def passes(seconds: float) -> None:
            await fixture.clock.advance(seconds)
            account = explain(fixture.runner.state, str(NAME), fixture.clock.now())
            reasons.extend([account.because, *account.working_set])
            reasons.extend(f"{trouble['with_']}: {trouble['reason']}" for trouble in account.troubles)

        fixture.guest.cores = 0.1
        await passes(0.0)
        await fixture.reclaimer.says(UpscaleConfirmation(2))
        await passes(9.0)
        await fixture.reclaimer.says(DownscaleResult(fixture.reclaimer.last_number, ok=False, status="refaulted"))
        await passes(1.0)
        fixture.guest.error = PortError(Fault.GUEST, "cannot read the pod's cgroups: gone")
        await passes(60.0)
        fixture.guest.error = None
        await fixture.reclaimer.says(PortError(Fault.GUEST, "no response within 60 s"))
        await passes(1.0)
        fixture.guest.oom_kills, fixture.guest.cores = 2.0, 0.5
        fixture.pod.patch_errors = [RefusedError(Fault.VM_API, "exceeded quota: team")] * 9
        await passes(1.0)
        fixture.pod.get_errors = [AWAY]
        fixture.pod.end_watch(AWAY)
        await passes(1.0)
        fixture.pod.change(phase="Pending")
        await passes(1.0)
        texts = [*reasons, *fixture.log.messages, *(note for _, note in fixture.pod.told)]
        assert [text for text in texts if "VM" in text or "guest" in text] == []
        assert {reason for reason, _ in fixture.pod.told} == {"GuestOutOfMemory", "ResizeRefused"}
        assert {"patching the pod: exceeded quota: team", "reading the pod: away"} <= set(reasons)
        trials = ("ready to test the pod with less memory", "the test of the pod with less memory failed")
        assert {*trials, "cannot test the pod with less memory"} <= set(fixture.log.messages)


async def test_quota_is_reported_and_affects_one_resource() -> None:
    async with PodFixture() as fixture:
        await fixture.clock.advance(1.0)
        fixture.pod.patch_errors = [RefusedError(Fault.VM_API, "exceeded quota: team")] * 2
        fixture.guest.cores = 0.25
        await fixture.clock.advance(1.0)
        assert fixture.pod.targets == [size("500m", "1Gi")]
        refused = "growth to 500m cpu, 1Gi was refused: exceeded quota: team"
        assert fixture.pod.told == [("ResizeRefused", f"{refused}; no room is reserved for it until the next try")]
        assert fixture.because.endswith("CPU growth is retried in 4 s (try 2): exceeded quota: team")
        await fixture.clock.advance(60.0)
        assert fixture.pod.found.use == size("500m", "1Gi")


async def test_resize_altered_by_webhook_pauses_one_resource() -> None:
    async with PodFixture() as fixture:
        await fixture.clock.advance(1.0)
        fixture.pod.stores = lambda use: use.at_most(size("300m", "8Gi"))
        fixture.guest.cores = 0.25
        await fixture.clock.advance(1.0)
        assert fixture.pod.targets == [size("500m", "1Gi")] * 2, "again once the kubelet has applied a part"
        why = "the API server stored 300m cpu, 1Gi instead of 500m cpu, 1Gi; an admission webhook may have changed it"
        assert fixture.because.endswith(f"CPU growth is retried in 4 s (try 2): {why}")
        fixture.pod.stores = lambda use: use
        await fixture.clock.advance(5.0)
        assert fixture.pod.found.use == size("500m", "1Gi")


async def test_replaced_pod_is_left_alone() -> None:
    """The pod was rebuilt under its name: until the supervisor ends this agent, all its patches conflict."""
    async with PodFixture() as fixture:
        await fixture.clock.advance(1.0)
        gone = RefusedError(Fault.VM_API, "default/pg-1 was replaced by another pod of that name")
        fixture.pod.get_errors = [gone] * 100
        fixture.pod.patch_errors = [ConflictError(Fault.VM_API, "the UID in the precondition is another")] * 100
        fixture.pod.end_watch(gone)
        fixture.guest.cores = 0.25
        await fixture.clock.advance(30.0)
        assert (len(fixture.pod.patched), fixture.pod.found.use) == (6, FLOOR)
        troubles = explain(fixture.runner.state, str(NAME), fixture.clock.now()).troubles
        assert ("reading the pod", gone.reason) in [(trouble["with_"], trouble["reason"]) for trouble in troubles]


async def test_api_that_is_away_is_asked_again() -> None:
    async with PodFixture() as fixture:
        await fixture.clock.advance(1.0)
        fixture.pod.patch_errors = fixture.pod.get_errors = [AWAY]
        fixture.guest.cores = 0.25
        await fixture.clock.advance(5.0)
        assert len(fixture.pod.patched) == 1
        await fixture.clock.advance(2.0)
        assert fixture.pod.found.actual == size("500m", "1Gi")


async def test_reads_follow_pod_while_nothing_can_be_watched() -> None:
    """The API server answers each GET but no list: that is no trouble of the pod, and its owner's edits count."""
    async with PodFixture() as fixture:
        await fixture.clock.advance(1.0)
        for _ in range(9):
            fixture.pod.end_watch(UnwatchedError(Fault.VM_API, "503"))
        await fixture.clock.advance(60.0)
        assert (fixture.runner.log.tally["vm_lost"], fixture.pod.gets) == (0, 7), "after 1, 3, 7, 15, 31 and 51 s"
        fixture.pod.change(shown=False, bounds=Bounds(FLOOR, size("250m", "1Gi")))
        await fixture.clock.advance(20.0)
        assert fixture.runner.state.vm.observed is not None
        assert fixture.runner.state.vm.observed.bounds.max == FLOOR
        fixture.pod.get_errors = [AWAY]
        await fixture.clock.advance(20.0)
        assert fixture.runner.log.tally["vm_lost"] == 1


async def test_owner_resizes_pod_meanwhile() -> None:
    async with PodFixture() as fixture:
        await fixture.clock.advance(1.0)
        fixture.pod.change(shown=False, use=size(2, "2Gi"), actual=size(2, "2Gi"))
        fixture.guest.cores = 0.25
        await fixture.clock.advance(3.0)
        assert fixture.pod.targets == [size("500m", "1Gi")], "decided on an older version"
        assert fixture.scheduler.asked[-1] == size(2, "2Gi")
        await fixture.clock.advance(6.0)
        assert fixture.pod.found.use == size("500m", "2Gi"), "CPU by proof, memory only after a trial"


async def test_kernel_allowance_of_a_pod_is_its_own() -> None:
    policy = changed(POLICY, memory=replace(POLICY.memory, kernel_allowance=Bytes(1)))
    async with PodFixture() as fixture:
        fixture.runner.use_policy(policy)
        assert fixture.runner.state.policy.memory.kernel_allowance == Bytes(0)


async def test_conflict_of_quota_is_tried_again() -> None:
    """Two pods of a namespace may grow at once: the API then says 409 about their quota, and neither pod changes."""
    reason = 'Operation cannot be fulfilled on resourcequotas "team": the object has been modified'
    async with PodFixture() as fixture:
        await fixture.clock.advance(1.0)
        fixture.pod.patch_errors = [ConflictError(Fault.VM_API, reason)] * 2
        fixture.guest.cores = 0.25
        await fixture.clock.advance(4.0)
        assert len(fixture.pod.patched) == 1
        await fixture.clock.advance(4.0)
        assert len(fixture.pod.patched) == 2
        troubles = explain(fixture.runner.state, str(NAME), fixture.clock.now()).troubles
        assert [(trouble["with_"], trouble["reason"]) for trouble in troubles] == [("patching the pod", reason)]
        assert fixture.log.messages.count("not resized") == 1
        await fixture.clock.advance(6.0)
        assert fixture.pod.found.use == size("500m", "1Gi")
        assert explain(fixture.runner.state, str(NAME), fixture.clock.now()).troubles == []


async def test_room_of_lost_patch_is_given_up() -> None:
    """The API was away for a moment, the load is over, and nothing else changes the pod."""
    async with PodFixture() as fixture:
        await fixture.clock.advance(1.0)
        fixture.pod.patch_errors, fixture.pod.get_errors = [AWAY], [AWAY]
        fixture.guest.cores = 0.25
        await fixture.clock.advance(2.0)
        fixture.guest.cores = 0.0
        asked = []
        # As often as an API server ends watches.
        for _ in range(4):
            await fixture.clock.advance(240.0)
            asked.append(fixture.scheduler.asked[-1])
            fixture.pod.end_watch()
        assert asked == [size("500m", "1Gi")] * 3 + [FLOOR]
        assert len(fixture.pod.patched) == 1
