"""The controller's complete plan for every state of a VM."""

from dataclasses import replace

import pytest

from deploy.neonvm.controller.plan import plan
from deploy.neonvm.controller.vm_facts import ActiveMigration, VmObservation, VmPlan
from deploy.neonvm.ports import CPU, MEMORY, GuestPhase, GuestState
from protocol.kubernetes.objects import Json, child, items
from protocol.messages import ObjectName
from protocol.units import Resources
from tests.neonvm.sample_objects import WANTED, facts, has, made_with, runner, virtual_machine

NO_GUEST = {"podIP": None, "node": None, "cpus": None, "memorySize": None, "growingTo": None, "machine": None}
MACHINE: Json = {"maxCpus": "4", "minMemory": "1Gi", "maxMemory": "8Gi"}
NAMED: Json = {"phase": "Pending", "podName": "db-x"}
REVISION: Json = {"value": 7, "flags": 1}
LEAVING: Json = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def conditions(made: VmPlan) -> list[tuple[object, object, object]]:
    return [(each["status"], each["reason"], each["message"]) for each in items(made.status, "conditions")]


def bare(made: VmPlan) -> Json:
    return {key: value for key, value in made.status.items() if key != "conditions"}


def test_finalizer_precedes_the_pod() -> None:
    assert plan(facts(virtual_machine(finalizers=[]))) == VmPlan({}, add_finalizer=True)


def test_pod_name_is_recorded_before_creation() -> None:
    expected = VmPlan({"phase": "Pending", "podName": "db-new", "extraNetIP": "10.1.0.1", **NO_GUEST})
    assert plan(facts(virtual_machine())) == expected


def test_pod_uses_recorded_name() -> None:
    assert plan(facts(virtual_machine(NAMED))) == VmPlan({}, create_pod=True)


def test_unscheduled_pod_leaves_vm_pending() -> None:
    made = plan(facts(virtual_machine(NAMED), runner("Pending")))
    assert bare(made) == {"phase": "Pending", "node": "n1"}
    assert made.desired is None


@pytest.mark.parametrize(("use", "node", "remade"), [(1, "", True), (2, "", False), (3, "", False), (1, "n1", False)])
def test_a_waiting_pod_that_would_boot_too_large(use: int, node: str, *, remade: bool) -> None:
    """Its arguments do not change, so even all the room that its VM requests now would not be enough."""
    vm = virtual_machine(NAMED)
    lowered = {**child(vm, "spec", "guest"), "cpus": {"min": "500m", "max": 4, "use": use}}
    waits = runner("Pending")
    pod = {**waits, "spec": {**child(waits, "spec"), "nodeName": node}}
    made = plan(facts({**vm, "spec": {**child(vm, "spec"), "guest": lowered}}, pod))
    assert (made.remake_pod, made.delete_pod, made.status["phase"]) == (remade, False, "Pending")


def test_running_vm_reports_size_and_follows_spec() -> None:
    made = plan(facts(virtual_machine(NAMED), runner(), has("2", "2Gi")))
    assert bare(made) == {
        "phase": "Running",
        "node": "n1",
        "podIP": "10.0.0.9",
        "extraNetIP": "10.1.0.1",
        "cpus": "2",
        "memorySize": "2Gi",
        "machine": MACHINE,
    }
    assert (made.desired, conditions(made)) == (WANTED, [("True", "GuestRuns", "")])


def test_guest_keeps_address_of_former_controller() -> None:
    made = plan(facts(virtual_machine({**NAMED, "extraNetIP": "10.101.0.7"}), runner(), has("2", "2Gi")))
    assert made.status["extraNetIP"] == "10.101.0.7"


@pytest.mark.parametrize(("cpu", "mem"), [("1", "2Gi"), ("2", "2560Mi")])
def test_vm_is_scaling_until_guest_follows(cpu: str, mem: str) -> None:
    made = plan(facts(virtual_machine(NAMED), runner(), has(cpu, mem)))
    assert (made.status["phase"], made.status["cpus"], made.status["memorySize"]) == ("Scaling", cpu, mem)


def test_order_is_clipped_to_the_running_machine() -> None:
    """An edited spec exceeds the running machine: the status reports it, and no order waits for it."""
    vm = virtual_machine(NAMED)
    guest = {"cpus": {"min": 1, "max": 8, "use": 8}, "memorySlots": {"min": 2, "max": 16, "use": 16}}
    spec = {**child(vm, "spec"), "guest": {**child(vm, "spec", "guest"), **guest}}
    edited = {**vm, "spec": {**spec, "targetRevision": {"revision": REVISION}}}
    made = plan(facts(edited, runner(), has("4", "8Gi")))
    assert (made.desired, made.status["phase"]) == (Resources.parse("4", "8Gi"), "Running")
    assert "currentRevision" not in made.status, "the guest has not all of the spec"
    assert conditions(made)[1] == (
        "True",
        "SpecChanged",
        "the running machine differs from the spec: CPU max is 4, the spec says 8; memory min is 1Gi, the spec says "
        "2Gi; memory max is 8Gi, the spec says 16Gi; delete pod db-x to restart",
    )


STALL = "memory not reached: requested 2 cpu, 2Gi, the guest has 2 cpu, 1Gi; retrying"


@pytest.mark.parametrize(
    ("cpu", "stalled", "phase", "said"),
    [
        ("2", {MEMORY}, "Running", [("True", "GuestDoesNotFollow", STALL)]),
        ("1", {MEMORY}, "Scaling", [("True", "GuestDoesNotFollow", STALL.replace("has 2 cpu", "has 1 cpu"))]),
        ("2", {CPU}, "Scaling", []),
        ("2", set(), "Scaling", []),
    ],
    ids=["memory alone", "CPU still comes", "CPU has come", "not yet"],
)
def test_stalled_resize_is_told_and_bars_no_move(cpu: str, stalled: set[str], phase: str, said: list[object]) -> None:
    """A guest that does not follow its order is not Scaling forever, because a VM migrates only in phase Running."""
    found = replace(facts(virtual_machine(NAMED), runner(), has(cpu, "1Gi")), stalled=frozenset(stalled))
    made = plan(found)
    assert (made.status["phase"], made.desired, conditions(made)[1:]) == (phase, WANTED, said)
    assert "currentRevision" not in made.status


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_pod_of_an_unknown_machine_is_told(phase: str) -> None:
    pod: Json = {**runner(phase), "spec": {"nodeName": "n1", "containers": [{"name": "neonvm-runner"}]}}
    made = plan(facts(virtual_machine(NAMED), pod, has("2", "2Gi")))
    unknown = "pod db-x has no record of the machine that it runs; delete the pod to recreate it"
    assert (made.desired, conditions(made)) == (None, [("False", "UnknownMachine", unknown)])


@pytest.mark.parametrize(
    ("guest", "before", "said"),
    [
        (has("2", "2Gi"), {}, {"currentRevision": {"revision": REVISION}}),
        (
            has("2", "2Gi"),
            {"currentRevision": {"revision": {"value": 6, "flags": 1}}},
            {"currentRevision": {"revision": REVISION}},
        ),
        (has("2", "2Gi"), {"currentRevision": {"revision": REVISION, "updatedAt": "earlier"}}, {}),
        (has("1", "2Gi"), {}, {}),
        (has("2", "2Gi", GuestPhase.BOOTING), {}, {}),
    ],
    ids=["at last", "anew", "already", "not yet", "booting"],
)
def test_current_revision_waits_for_whole_guest(guest: GuestState, before: Json, said: Json) -> None:
    """NeonVM's contract: ``spec.targetRevision`` is copied to ``status.currentRevision``."""
    vm = virtual_machine({**NAMED, **before})
    revision = {"targetRevision": {"revision": REVISION, "updatedAt": "2026-01-01T00:00:00Z"}}
    made = plan(facts({**vm, "spec": {**child(vm, "spec"), **revision}}, runner(), guest))
    assert {key: value for key, value in made.status.items() if key == "currentRevision"} == said


def test_removed_revision_stays_in_status() -> None:
    vm = virtual_machine({**NAMED, "currentRevision": {"revision": REVISION}})
    assert "currentRevision" not in plan(facts(vm, runner(), has("2", "2Gi"))).status


def test_a_refused_resize_is_said() -> None:
    made = plan(facts(virtual_machine(NAMED), runner(), has("1", "2Gi"), refused="no daemon"))
    assert conditions(made) == [("True", "ResizeRefused", "no daemon")]


def test_unreachable_runner_of_new_vm_is_reported() -> None:
    silent = replace(facts(virtual_machine(NAMED), runner(), refused="no answer"), is_known=False)
    made = plan(silent)
    assert (set(made.status), conditions(made)) == ({"conditions"}, [("False", "RunnerUnreachable", "no answer")])
    assert plan(replace(silent, guest_fault="")) == VmPlan({})
    assert plan(replace(silent, vm=virtual_machine({**NAMED, "phase": "Running"}))) == VmPlan({})


def test_a_booting_guest_is_running_but_not_available() -> None:
    made = plan(facts(virtual_machine(NAMED), runner(), has("1", "1Gi", GuestPhase.BOOTING)))
    assert (made.status["phase"], conditions(made)) == ("Running", [("False", "Booting", "the guest is booting")])


def test_stopped_guest_reports_no_size() -> None:
    made = plan(facts(virtual_machine(NAMED), runner(), has("0", "0", GuestPhase.STOPPED)))
    assert bare(made) == {"phase": "Pending", "node": "n1"}


ENDED: Json = {"reason": "GuestEnded", "message": "QEMU died"}


@pytest.mark.parametrize(
    ("policy", "phase", "again"),
    [
        ("Always", "Failed", True),
        ("Always", "Succeeded", True),
        ("OnFailure", "Failed", True),
        ("OnFailure", "Succeeded", False),
        ("Never", "Failed", False),
    ],
)
def test_ended_pod_follows_restart_policy(policy: str, phase: str, again: bool) -> None:
    made = plan(facts(virtual_machine(NAMED, policy), runner(phase, ENDED)))
    assert bare(made) == {"phase": phase, **NO_GUEST}
    assert (conditions(made), made.delete_pod) == ([("False", "GuestEnded", "QEMU died")], again)
    after = plan(facts(virtual_machine({"phase": phase, "podName": "db-x", "restartCount": 2}, policy)))
    fresh = VmPlan({"phase": "Pending", "podName": "db-new", "extraNetIP": "10.1.0.1", "restartCount": 3, **NO_GUEST})
    assert after == (fresh if again else VmPlan({}))


@pytest.mark.parametrize(("policy", "again"), [("Always", True), ("OnFailure", True), ("Never", False)])
def test_vm_of_moved_away_guest_has_failed(policy: str, again: bool) -> None:
    moved: Json = {"reason": "Migrated", "message": "the guest has moved to pod db-y"}
    made = plan(facts(virtual_machine(NAMED, policy), runner("Succeeded", moved)))
    assert bare(made) == {"phase": "Failed", **NO_GUEST}
    lost = ("False", "GuestLost", "the guest has moved to pod db-y, and was lost there")
    assert (conditions(made), made.delete_pod) == ([lost], again)


def test_a_restart_waits_for_its_pause() -> None:
    vm = virtual_machine({"phase": "Failed", "podName": "db-x"})
    assert plan(facts(vm, due=False)) == VmPlan({}, wait_for_restart=True)


def test_vanished_pod_counts_as_failed() -> None:
    made = plan(facts(virtual_machine({"phase": "Running", "podName": "db-x"})))
    assert bare(made) == {"phase": "Failed", **NO_GUEST}
    assert conditions(made) == [("False", "PodGone", "pod db-x is gone")]


def test_a_pod_that_is_leaving_is_waited_for() -> None:
    assert plan(facts(virtual_machine(NAMED), runner(leaving=True), has("2", "2Gi"))) == VmPlan({})


def test_unusable_spec_is_reported_only() -> None:
    found = replace(facts(virtual_machine(NAMED), runner()), machine=None, fault="spec.guest.cpus: expected …")
    made = plan(found)
    assert conditions(made) == [("False", "InvalidSpec", "spec.guest.cpus: expected …")]
    assert made == VmPlan(made.status)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (runner(), VmPlan({}, delete_pod=True)),
        (runner(leaving=True), VmPlan({})),
        (None, VmPlan({}, remove_finalizer=True)),
    ],
)
def test_a_deleted_vm_goes_after_its_pod(pod: Json | None, expected: VmPlan) -> None:
    assert plan(facts(virtual_machine(NAMED, **LEAVING), pod)) == expected


def test_foreign_finalizer_is_left_alone() -> None:
    assert plan(facts(virtual_machine(NAMED, finalizers=["other"], **LEAVING))) == VmPlan({})


def test_a_condition_keeps_its_time_while_it_stays() -> None:
    old = [{"type": "Available", "status": "True", "lastTransitionTime": "then"}]
    vm = virtual_machine({**NAMED, "conditions": old})
    stays = plan(facts(vm, runner(), has("2", "2Gi")))
    turns = plan(facts(vm, runner(), has("2", "2Gi", GuestPhase.BOOTING)))
    assert [each.get("lastTransitionTime") for each in items(stays.status, "conditions")] == ["then"]
    assert [each.get("lastTransitionTime") for each in items(turns.status, "conditions")] == [None]


TARGET: Json = {
    "metadata": {"name": "db-y", "namespace": "default", "uid": "target-uid"},
    "spec": {"nodeName": "n2", "containers": made_with(virtual_machine())},
    "status": {"phase": "Running", "podIP": "10.0.0.10"},
}
HAS: Json = {"cpus": "2", "memorySize": "2Gi", "machine": MACHINE}
WHERE: Json = {"node": "n1", "podIP": "10.0.0.9", "extraNetIP": "10.1.0.1", **HAS}
THERE: Json = {**WHERE, "node": "n2", "podIP": "10.0.0.10"}


def moving(
    pod: Json | None,
    state: GuestPhase | None,
    active_migration: ActiveMigration,
    /,
    name: str = "db-x",
    **metadata: object,
) -> VmObservation:
    vm = virtual_machine({"phase": "Running", "podName": name}, **metadata)
    guest = has("2", "2Gi", state) if state is not None else None
    return replace(facts(vm, pod, guest), active_migration=active_migration, others=(TARGET,))


PREPARES = ActiveMigration("db-x", "db-y", is_placed=True, is_transferring=False, target_pod=TARGET, target_guest=None)
TRANSFERS = replace(PREPARES, is_transferring=True)
ARRIVED = replace(TRANSFERS, target_guest=has("2", "2Gi"))


@pytest.mark.parametrize(("active_migration", "phase"), [(PREPARES, "PreMigrating"), (TRANSFERS, "Migrating")])
def test_migrating_vm_is_frozen_and_reported(active_migration: ActiveMigration, phase: str) -> None:
    made = plan(moving(runner(), GuestPhase.RUNNING, active_migration))
    assert bare(made) == {"phase": phase, **WHERE}
    assert conditions(made) == [("True", "GuestRuns", "the guest is being migrated")]
    assert replace(made, status={}) == VmPlan({}, hold=True)


def test_vm_scales_while_target_is_unscheduled() -> None:
    waits = replace(PREPARES, is_placed=False, target_pod=None)
    made = plan(moving(runner(), GuestPhase.RUNNING, waits))
    assert (bare(made)["phase"], made.desired, made.hold) == ("Running", WANTED, False)
    ended = plan(moving(runner("Failed"), None, waits))
    assert bare(ended)["phase"] == "Failed"


@pytest.mark.parametrize(
    ("pod", "state"),
    [(None, None), (runner("Failed"), None), (runner(), GuestPhase.STOPPED), (runner(leaving=True), None)],
)
def test_ended_source_is_ambiguous_during_move(pod: Json | None, state: GuestPhase | None) -> None:
    assert plan(moving(pod, state, TRANSFERS)) == VmPlan({"phase": "Migrating"}, hold=True)


def test_arrived_guest_outlives_source() -> None:
    for pod, state in ((runner(), GuestPhase.STOPPED), (None, None)):
        made = plan(moving(pod, state, ARRIVED))
        assert bare(made) == {"phase": "Running", "podName": "db-y", **THERE}
        assert (conditions(made), replace(made, status={})) == ([("True", "GuestRuns", "")], VmPlan({}))


def test_unusable_spec_does_not_block_arrival() -> None:
    found = replace(moving(None, None, ARRIVED), machine=None, fault="nonsense")
    assert plan(found).status["podName"] == "db-y"


def test_arrived_vm_lives_before_migration_ends() -> None:
    found = moving(TARGET, GuestPhase.RUNNING, ARRIVED, name="db-y")
    made = plan(replace(found, others=(owned("db-x"),)))
    assert (bare(made), made.desired) == ({"phase": "Running", **THERE}, WANTED)
    assert made.unneeded_pods == ()


def owned(name: str, *, leaving: bool = False) -> Json:
    """A pod that the VM owns."""
    made = runner(leaving=leaving)
    return {**made, "metadata": {**child(made, "metadata"), "name": name, "ownerReferences": [{"uid": "vm-uid"}]}}


def test_deletes_only_own_unneeded_pods() -> None:
    others = (owned("db-old"), owned("db-older", leaving=True), TARGET)
    made = plan(replace(facts(virtual_machine(NAMED), runner(), has("2", "2Gi")), others=others))
    assert made.unneeded_pods == (ObjectName("default", "db-old"),)


@pytest.mark.parametrize(("other", "makes"), [(TARGET, False), ({**TARGET, "status": {"phase": "Failed"}}, True)])
def test_no_new_pod_while_disk_is_in_use(other: Json, makes: bool) -> None:
    assert plan(replace(facts(virtual_machine(NAMED)), others=(other,))) == VmPlan({}, create_pod=makes)


def test_deletion_waits_for_all_pods() -> None:
    gone = facts(virtual_machine(NAMED, **LEAVING))
    assert plan(replace(gone, others=(TARGET,))) == VmPlan({})
    assert plan(replace(gone, others=(owned("db-old"),))) == VmPlan(
        {}, unneeded_pods=(ObjectName("default", "db-old"),)
    )
