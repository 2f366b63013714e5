"""The controller's complete plan for a VM that is ordered to sleep, sleeps or wakes, in every situation."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from deploy.neonvm.controller.plan import plan
from deploy.neonvm.controller.sleep_plan import sleep_event
from deploy.neonvm.controller.vm_facts import ActiveMigration, VmObservation, VmPlan
from deploy.neonvm.ports import GuestPhase, GuestState
from protocol.guest.sleep import SleepReport, SleepState
from protocol.kubernetes.objects import Json, child, items
from protocol.names import ANNOTATION_PERMIT, ANNOTATION_SLEEP
from protocol.permits import encode_permit
from protocol.units import Resources
from tests.neonvm.sample_objects import WANTED, facts, has, runner, virtual_machine

AT = "2026-01-01T00:00:00Z"
SIZES: Json = {"cpus": None, "memorySize": None, "growingTo": None}
PLACE: Json = {
    "node": "n1",
    "podIP": "10.0.0.9",
    "extraNetIP": "10.1.0.1",
    "machine": {"maxCpus": "4", "minMemory": "1Gi", "maxMemory": "8Gi"},
}
SIZE: Json = {"cpus": "2", "memory": "2Gi"}
UNKNOWN: Json = {"cpus": "", "memory": ""}
FIGURES_SAID: Json = {"sessions": 3, "saved": 7, "seconds": 0.0, **SIZE}
SLEPT: Json = {"order": "a", "state": "Asleep", "since": AT, "message": "", **FIGURES_SAID}
WOKEN: Json = {**SLEPT, "state": "Waking", "message": "10.1.0.7 connects"}
FIGURES = SleepReport("a", SleepState.ASLEEP, sessions=3, saved=7)
GONE = has("0", "0", GuestPhase.ASLEEP)
CALLED = has("0", "0", GuestPhase.WAKING)
AWAKE = has("2", "2Gi")


def vm_with(
    phase: str,
    sleep: Json | None = None,
    order: str = "a",
    *,
    permit: str = "",
    enabled: str = "true",
    cmdline: str = "",
    has: str = "",
) -> Json:
    """A VM with this phase and ``status.sleep``, an order, and a permit for these CPUs and 2Gi. Its status says that
    the guest ``has`` these CPUs and 2Gi.
    """
    annotations = {ANNOTATION_SLEEP: order} if order else {}
    if permit:
        annotations[ANNOTATION_PERMIT] = encode_permit(Resources.parse(permit, "2Gi"))
    labels = {"autoscaling.neon.tech/enabled": enabled}
    status: Json = {"phase": phase, "podName": "db-x", **({"sleep": sleep} if sleep else {})}
    status = {**status, **({"cpus": has, "memorySize": "2Gi"} if has else {})}
    vm = virtual_machine(status, "Always", annotations=annotations, labels=labels)
    guest = {**child(vm, "spec", "guest"), "appendKernelCmdline": cmdline}
    return {**vm, "spec": {**child(vm, "spec"), "guest": guest}}


def observed(vm: Json, guest: GuestState, sleeping: SleepReport | None = None, **more: Any) -> VmObservation:
    found = replace(facts(vm, runner(), guest), sleeping=sleeping or SleepReport())
    return replace(found, **more)


def said(made: VmPlan) -> list[tuple[object, object, object]]:
    return [(each["type"], each["reason"], each["message"]) for each in items(made.status, "conditions")]


def test_order_is_passed_to_settled_guest() -> None:
    made = plan(observed(vm_with("Running"), AWAKE))
    assert (made.sleep, made.desired, made.wake, "sleep" in made.status) == ("a", WANTED, False, False)


@pytest.mark.parametrize(
    ("vm", "guest", "more"),
    [
        (vm_with("Running", order=""), AWAKE, {}),
        (vm_with("Running", order="x" * 129), AWAKE, {}),
        (vm_with("Pending"), AWAKE, {}),
        (vm_with("Running"), has("1", "2Gi"), {}),
        (vm_with("Running"), has("2", "3Gi"), {"stalled": frozenset({"memory"})}),
        (vm_with("Running"), has("2", "2Gi", GuestPhase.BOOTING), {}),
        (vm_with("Running"), AWAKE, {"migrates": True}),
        (vm_with("Running", WOKEN, "b"), AWAKE, {}),
    ],
    ids=["none", "too long", "not yet running", "scaling", "stalled", "booting", "migrates", "end not written"],
)
def test_order_waits_or_counts_as_none(vm: Json, guest: GuestState, more: dict[str, Any]) -> None:
    made = plan(observed(vm, guest, **more))
    assert (made.sleep, child(made.status, "sleep").get("state")) in {("", None), ("", "Awake")}


@pytest.mark.parametrize("state", ["Refused", "Awake", "Restarted"])
def test_order_is_given_once(state: str) -> None:
    report: Json = {**SLEPT, "state": state, "message": "m"}
    made = plan(observed(vm_with("Running", report), AWAKE))
    assert (made.sleep, made.status["sleep"]) == ("", report)
    assert plan(observed(vm_with("Running", report, "b"), AWAKE)).sleep == "b"


@pytest.mark.parametrize(
    ("vm", "why"),
    [
        (vm_with("Running", enabled="false"), "autoscaling is not enabled for the VM"),
        (vm_with("Running", cmdline="autoscale.primary=10.1.0.2"), "the VM is a standby"),
    ],
)
def test_order_that_must_not_be_followed_is_refused(vm: Json, why: str) -> None:
    made = plan(observed(vm, AWAKE))
    refused: Json = {"order": "a", "state": "Refused", "since": "", "message": why}
    assert made.sleep == ""
    assert made.status["sleep"] == {**refused, "sessions": 0, "saved": 0, "seconds": 0.0, **UNKNOWN}


def test_refusal_by_guest_is_reported() -> None:
    own = SleepReport("a", SleepState.REFUSED, message="a session is in a transaction")
    made = plan(observed(vm_with("Running"), AWAKE, own))
    assert (made.sleep, child(made.status, "sleep")["message"]) == ("", "a session is in a transaction")
    later = {**child(made.status, "sleep"), "since": AT}
    assert plan(observed(vm_with("Running", later), AWAKE, own)).status["sleep"] == later


def test_sleeper_keeps_place_and_machine() -> None:
    made = plan(observed(vm_with("Running", has="2"), GONE, FIGURES))
    message = "asleep with 3 sessions open; the next packet from a client wakes it"
    assert said(made) == [("Available", "Asleep", message), ("Asleep", "Asleep", message)]
    status = {key: value for key, value in made.status.items() if key != "conditions"}
    assert status == {"phase": "Asleep", **PLACE, **SIZES, "sleep": {**SLEPT, "since": ""}}
    assert (made.desired, made.wake, made.sleep, made.hold, made.delete_pod) == (WANTED, False, "", False, False)


def test_sleep_without_figures_keeps_those_of_status() -> None:
    """A new controller adopts the sleeping guest, whose runner does not report them again."""
    adopted = SleepReport("", SleepState.ASLEEP)
    assert plan(observed(vm_with("Asleep", SLEPT), GONE, adopted)).status["sleep"] == SLEPT
    first = plan(observed(vm_with("Running", has="2"), GONE, adopted)).status["sleep"]
    assert first == {**SLEPT, "since": "", "sessions": 0, "saved": 0}, "its end was never written"


@pytest.mark.parametrize(
    ("vm", "guest", "more", "why"),
    [
        (vm_with("Asleep", SLEPT), CALLED, {}, "10.1.0.7 connects"),
        (vm_with("Asleep", SLEPT, order=""), GONE, {}, "the order to sleep was removed"),
        (vm_with("Asleep", SLEPT), GONE, {"migrates": True}, "a migration is waiting for it"),
        (
            vm_with("Asleep", SLEPT),
            GONE,
            {"is_sleep_over": True},
            "asleep for 20 days, the longest that TCP connections survive",
        ),
        (vm_with("Asleep", SLEPT, cmdline="autoscale.primary=10.1.0.2"), GONE, {}, "the VM is a standby"),
        (vm_with("Waking", {**WOKEN, "message": "earlier"}), GONE, {}, "earlier"),
        (vm_with("Waking", {**WOKEN, "message": "earlier"}, order="b"), GONE, {}, "earlier"),
    ],
    ids=["frame", "order removed", "migration", "20 days", "standby", "already waking", "new order while it wakes"],
)
def test_waking_waits_for_permit(vm: Json, guest: GuestState, more: dict[str, Any], why: str) -> None:
    own = replace_state(FIGURES, why) if guest is CALLED else FIGURES
    made = plan(observed(vm, guest, own, **more))
    assert (made.status["phase"], made.wake, made.desired) == ("Waking", False, WANTED)
    since = AT if child(vm, "status", "sleep")["state"] == "Waking" else ""
    assert made.status["sleep"] == {**WOKEN, "since": since, "message": why}
    assert said(made)[1] == ("Asleep", "Waking", f"waking: {why}; waiting for a permit for 2 cpu, 2Gi")


def replace_state(report: SleepReport, message: str) -> SleepReport:
    return SleepReport(report.order, SleepState.WAKING, "", message, report.sessions, report.saved)


@pytest.mark.parametrize(("permit", "wakes"), [("", False), ("1500m", False), ("2", True), ("4", True)])
def test_permit_must_cover_spec_use(permit: str, *, wakes: bool) -> None:
    made = plan(observed(vm_with("Asleep", SLEPT, permit=permit), CALLED, replace_state(FIGURES, "x")))
    assert (made.wake, made.status["phase"]) == (wakes, "Running" if wakes else "Waking")
    assert child(made.status, "sleep")["state"] == "Waking"
    assert {key: made.status[key] for key in SIZES} == SIZES, "no guest runs yet"


def test_unreadable_permit_wakes_nothing() -> None:
    vm = vm_with("Waking", WOKEN)
    metadata = {**child(vm, "metadata"), "annotations": {ANNOTATION_SLEEP: "a", ANNOTATION_PERMIT: "{"}}
    made = plan(observed({**vm, "metadata": metadata}, CALLED, FIGURES))
    assert (made.wake, made.status["phase"]) == (False, "Waking")


def test_vm_without_autoscaling_needs_no_permit() -> None:
    made = plan(observed(vm_with("Asleep", SLEPT, enabled="false"), GONE, FIGURES))
    assert (made.wake, made.status["phase"]) == (True, "Running")
    assert child(made.status, "sleep")["message"] == "autoscaling is not enabled for the VM"


def test_written_decision_to_wake_holds() -> None:
    """The phase already reserves the guest's use, so lowering the permit now has no effect."""
    for guest, permit in product((GONE, CALLED), ("", "500m")):
        made = plan(observed(vm_with("Running", WOKEN, permit=permit), guest, FIGURES))
        assert (made.wake, made.status["phase"], made.status["sleep"]) == (True, "Running", WOKEN)


def test_new_sleep_is_no_old_decision() -> None:
    slept = vm_with("Running", {**WOKEN, "state": "Awake"}, order="b")
    made = plan(observed(slept, GONE, SleepReport("b", SleepState.ASLEEP)))
    assert (made.wake, made.status["phase"], child(made.status, "sleep")["order"]) == (False, "Asleep", "b")


def test_failed_wake_makes_vm_unavailable() -> None:
    found = replace(observed(vm_with("Running", WOKEN), CALLED, FIGURES), guest_fault="QEMU does not start")
    made = plan(found)
    assert said(made)[0] == ("Available", "WakeFailed", "QEMU does not start")
    assert (items(made.status, "conditions")[0]["status"], made.wake) == ("False", True)


def test_sleeper_out_of_reach_is_unavailable() -> None:
    """Its runner does not respond: a packet could not wake it."""
    slept = vm_with("Asleep", {"order": "a", "state": "Asleep"}, order="a")
    made = plan(replace(observed(slept, GONE, FIGURES), guest_fault="its runner does not respond"))
    why = "asleep, but clients cannot wake it: its runner does not respond"
    assert said(made)[0] == ("Available", "CannotWake", why)
    assert (items(made.status, "conditions")[0]["status"], made.status["phase"]) == ("False", "Asleep")


@pytest.mark.parametrize(
    ("own", "guest", "state", "message", "seconds"),
    [
        (SleepReport("a", SleepState.AWAKE, seconds=0.25), AWAKE, "Awake", "10.1.0.7 connects", 0.25),
        (SleepReport(), AWAKE, "Awake", "10.1.0.7 connects", 0.0),
        (
            SleepReport("a", SleepState.RESTARTED, message="damaged", seconds=5.5),
            has("2", "2Gi", GuestPhase.BOOTING),
            "Restarted",
            "damaged",
            5.5,
        ),
    ],
    ids=["awake", "woken by another controller", "booted"],
)
def test_end_of_sleep_is_reported(
    own: SleepReport, guest: GuestState, state: str, message: str, seconds: float
) -> None:
    made = plan(observed(vm_with("Running", WOKEN), guest, own))
    assert made.status["sleep"] == {**WOKEN, "state": state, "message": message, "seconds": seconds, "since": ""}
    assert (made.status["phase"], made.sleep, made.wake) == ("Running", "", False)
    assert "Asleep" not in [kind for kind, _, _ in said(made)]


def test_edited_spec_of_sleeper_needs_larger_permit() -> None:
    vm = vm_with("Waking", WOKEN, permit="2")
    guest = {**child(vm, "spec", "guest"), "cpus": {"min": "500m", "max": 4, "use": 3}}
    edited = {**vm, "spec": {**child(vm, "spec"), "guest": guest}}
    made = plan(observed(edited, CALLED, FIGURES))
    assert (made.wake, made.desired) == (False, Resources.parse("3", "2Gi"))


@pytest.mark.parametrize(("permit", "phase"), [("2", "Waking"), ("3", "Running")])
def test_guest_wakes_with_what_it_had(permit: str, phase: str) -> None:
    """A user lowered the size in the spec during sleep. The saved guest has more, and shrinks once it runs."""
    slept = plan(observed(vm_with("Running", has="3"), GONE, FIGURES)).status["sleep"]
    assert slept == {**SLEPT, "since": "", "cpus": "3"}
    made = plan(observed(vm_with("Asleep", {**SLEPT, "cpus": "3"}, permit=permit), CALLED, FIGURES))
    assert (made.status["phase"], made.wake, made.desired) == (phase, phase == "Running", WANTED)
    assert ("waiting for a permit for 3 cpu, 2Gi" in str(said(made)[1][2])) is (phase == "Waking")


def test_edited_machine_of_sleeper_is_told() -> None:
    vm = vm_with("Asleep", SLEPT)
    guest = {**child(vm, "spec", "guest"), "cpus": {"min": "500m", "max": 8, "use": 2}}
    made = plan(observed({**vm, "spec": {**child(vm, "spec"), "guest": guest}}, GONE, FIGURES))
    assert ("RestartRequired", "SpecChanged") in [(kind, reason) for kind, reason, _ in said(made)]


MOVE = ActiveMigration("db-x", "db-y", is_placed=True, is_transferring=False, target_pod=None, target_guest=None)


def test_migration_wakes_before_it_holds() -> None:
    asleep = observed(vm_with("PreMigrating", SLEPT, permit="2"), GONE, FIGURES, migrates=True, active_migration=MOVE)
    made = plan(asleep)
    assert (made.status["phase"], made.wake, made.hold) == ("Running", True, False)
    own = SleepReport("a", SleepState.AWAKE, seconds=0.2)
    awake = plan(observed(vm_with("Running", WOKEN), AWAKE, own, migrates=True, active_migration=MOVE))
    assert (awake.status["phase"], awake.hold) == ("PreMigrating", True)
    assert child(awake.status, "sleep")["state"] == "Awake"


def test_deleted_sleeper_ends_with_its_pod() -> None:
    vm = vm_with("Asleep", SLEPT)
    leaving = {**vm, "metadata": {**child(vm, "metadata"), "deletionTimestamp": AT}}
    assert plan(observed(leaving, GONE, FIGURES)) == VmPlan({}, delete_pod=True)


def test_sleeper_without_pod_restarts_and_says_so() -> None:
    gone = plan(facts(vm_with("Asleep", SLEPT)))
    assert (gone.status["phase"], "sleep" in gone.status) == ("Failed", False)
    made = plan(facts(vm_with("Failed", SLEPT)))
    lost = {**SLEPT, "state": "Restarted", "since": "", "message": "its pod ended while it was asleep"}
    assert (made.status["podName"], made.status["sleep"]) == ("db-new", lost)
    assert "sleep" not in plan(facts(vm_with("Failed", {**SLEPT, "state": "Awake"}))).status


@pytest.mark.parametrize(
    ("state", "more", "event"),
    [
        (
            "Asleep",
            {"saved": 5 << 20},
            ("Asleep", "asleep with 3 sessions open; 5 MiB of memory saved"),
        ),
        ("Asleep", {"sessions": 1}, ("Asleep", "asleep with 1 session open; 0 MiB of memory saved")),
        ("Refused", {}, ("SleepRefused", "staying awake: why")),
        ("Waking", {}, ("Waking", "waking: why")),
        ("Awake", {"seconds": 0.312}, ("Awake", "awake after 0.31 s: why")),
        ("Restarted", {}, ("Restarted", "booting from disk, sessions lost: why")),
    ],
)
def test_each_new_state_is_an_event(state: str, more: Json, event: tuple[str, str]) -> None:
    sleep = {**SLEPT, "state": state, "message": "why", **more}
    assert sleep_event(vm_with("Running"), {"sleep": sleep}) == event
    assert sleep_event(vm_with("Running", sleep), {"sleep": sleep}) is None
    assert sleep_event(vm_with("Running"), {"phase": "Running"}) is None
