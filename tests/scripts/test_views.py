"""The output of ``autoscale explain`` for the programs' responses."""

from datetime import datetime

import pytest
import typer

from protocol.kubernetes.objects import Json
from scheduler_plugin.dashboard.explanation import database_explanation
from scripts.autoscale.cluster_flags import check_cluster_name, parse_database, parse_vm
from scripts.autoscale.demonstration.fleet import marked, reserved_bars
from tests.neonvm.sample_objects import virtual_machine
from tests.pod_databases import pod_database

STATUS: Json = {"phase": "Running", "node": "n1", "cpus": "2", "memorySize": "2Gi"}
AGENT: Json = {
    "because": "growing for cpu busy",
    "parts": [{"name": "memory used", "need": "249407828", "because": "0.17 GiB in use"}],
    "goal": {"cpu": "3", "mem": "2Gi"},
    "compute_unit": {"cpu": "500m", "mem": "512Mi"},
    "shrink_guard": "no proof yet",
    "smoothing": [
        {
            "resource": "cpu",
            "stage": "hold",
            "before": "250m",
            "after": "2",
            "reason": "no whole window observed yet (20 s)",
        },
        {"resource": "memory", "stage": "hysteresis", "before": "249407828", "after": "249407828", "reason": "why"},
    ],
    "metrics": {
        "age_seconds": 0.4,
        "cores_busy": 1.9,
        "load1": 2.0,
        "mem_used": "1Gi",
        "mem_total": "2019344Ki",
        "cpu_stall": 0.5,
    },
    "monitor": {"refused": "512Mi", "refused_because": "in use", "right_reports": 3, "false_reports": 1},
    "permit": {"cpu": "2", "mem": "2Gi"},
    "denied": {
        "by": "scheduler",
        "wanted": {"cpu": "3", "mem": "2Gi"},
        "granted": {"cpu": "2", "mem": "2Gi"},
        "since_seconds": 12.2,
        "times": 3,
    },
    "troubles": [{"with_": "metrics", "reason": "time-out", "since_seconds": 3.0}],
}
SCHEDULER: Json = {
    "pods": [
        {
            "pod": "default/db-x",
            "node": "n1",
            "state": "bound",
            "reserved": {"cpu": "2", "mem": "2Gi"},
            "reservedBecause": {"permit": {"cpu": "2", "mem": "2Gi"}},
            "denied": {"cpu": "1", "mem": "0"},
            "deniedBy": "node n1 has 0 cpu free",
            "deniedForSeconds": 12.0,
            "weight": 30,
            "promised": {"cpu": "500m", "mem": "0"},
            "permitProblem": "422: the annotation is immutable",
            "requests": {"cpu": "2", "mem": "2Gi"},
            "requestsProblem": "the pod's requests were not raised: 403: exceeded quota",
            "nodeTotal": {"cpu": "7500m", "mem": "15Gi"},
            "nodeReserved": {"cpu": "7500m", "mem": "3Gi"},
            "migrating": True,
        }
    ]
}


def test_explanation_has_obstacles_to_migration() -> None:
    scheduler: Json = {
        "staysBecause": "not opted in",
        "unreadableConstraints": "spec: Expected `object`",
        "refusedTargets": {
            "n2": {"why": "0/3 nodes are available", "againInSeconds": 41.2},
            "n3": {"why": "long ago", "againInSeconds": 0},
        },
    }
    assert list(database_explanation(virtual_machine(STATUS), None, scheduler))[-3:] == [
        "The scheduler does not migrate it on its own: not opted in.",
        "Its scheduling constraints are unreadable, so any node may be tried: spec: Expected `object`",
        "It is not scheduled to node n2 for 41 s: 0/3 nodes are available",
    ]


def test_explanation_has_stalled_migrations() -> None:
    why = "its target pod has had no node for 60 s, so it is ignored until it has one"
    over = {"name": "default/old", "phase": "Failed", "problem": "no luck", "seenForSeconds": 900.0}
    waits = {"name": "default/by-hand", "phase": "Pending", "problem": why, "seenForSeconds": 61.4}
    fine = {"name": "default/fine", "phase": "Running", "problem": None, "seenForSeconds": 3.0}
    told = list(database_explanation(virtual_machine(STATUS), None, {"migrations": [over, waits, fine]}))
    assert [line for line in told if line.startswith("Migration")] == [
        f"Migration default/by-hand has been Pending for 61 s: {why}"
    ]


def test_explanation_has_the_last_end() -> None:
    def event(at: str, message: str, uid: str, kind: str = "Warning", count: int = 1) -> Json:
        about: Json = {"involvedObject": {"uid": uid}, "type": kind, "count": count}
        return {**about, "reason": "Failed", "message": message, "lastTimestamp": at}

    vm = virtual_machine(STATUS)
    uid = str(vm["metadata"]["uid"])  # type: ignore[index]  # it has one
    events = [
        event("2026-01-01T00:00:02Z", "the VM has ended: its kernel panicked", uid, count=2),
        event("2026-01-01T00:00:01Z", "the VM has ended: QEMU was killed by SIGKILL", uid),
        event("2026-01-01T00:00:03Z", "of another VM", "other"),
        event("2026-01-01T00:00:03Z", "all is well", uid, "Normal"),
    ]
    assert [line for line in database_explanation(vm, None, None, events) if "Warning" in line] == [
        "  Warning of 2026-01-01T00:00:01Z: Failed: the VM has ended: QEMU was killed by SIGKILL",
        "  Warning of 2026-01-01T00:00:02Z: Failed: the VM has ended: its kernel panicked (2 times)",
    ]


def test_story_names_receivers() -> None:
    gift: Json = {"amount": {"cpu": "1", "mem": "0"}, "at": "2026-01-01T00:00:00Z", "to": ["default/a", "shop/b"]}
    at = f"{datetime.fromisoformat('2026-01-01T00:00:00Z').astimezone():%H:%M %Z}"
    assert (
        list(database_explanation(virtual_machine(STATUS), None, {"gaveBack": gift}))[-1]
        == f"It gave back 1 vCPU to a and shop/b at {at}."
    )


def test_story_says_why_vm_could_not_grow() -> None:
    scheduler: Json = {"noRoomToGrow": "default/a could not grow: no node has room"}
    lines = list(database_explanation(virtual_machine(STATUS), None, scheduler))
    assert lines[-1] == "default/a could not grow: no node has room."


def test_the_story_of_a_vm_answers_every_question() -> None:
    told = "\n".join(database_explanation(virtual_machine(STATUS), AGENT, SCHEDULER))
    for expected in (
        "default/db has 2 vCPU and 2Gi; it is Running on n1.",
        "Its bounds are 500m to 4 vCPU and 1 to 8 slots of 1Gi; its spec asks for 2 vCPU and 2 slots.",
        "Its agent: growing for cpu busy.",
        "The guest's monitor refused 512Mi: in use",
        "Load reports of the guest's monitor that made the VM grow: 3 confirmed, 1 not.",
        "- memory used needs 238Mi: 0.17 GiB in use",
        "The goal is 3 vCPU, 2Gi; a compute unit is 500m vCPU, 512Mi.",
        "  Policy: no proof yet",
        "    cpu hold: 250m → 2: no whole window observed yet (20 s)",
        "    memory hysteresis: 238Mi stays: why",
        "  Its last permit could not be stored, so it does not grow: 422: the annotation is immutable",
        "Measured 0 s ago: 1.90 vCPU busy, load 2.00, memory 1Gi of 1972Mi, ",
        "stalled on CPU 50% and on memory ? of the time.",
        "DENIED by the scheduler: it requested 3 vCPU, 2Gi and got 2 vCPU, 2Gi, for 12 s, 3 times.",
        "PROBLEM with metrics for 3 s: time-out",
        "It reserves 2 vCPU, 2Gi, the largest of: permit 2 vCPU, 2Gi.",
        "It denies 1 vCPU, 0 because node n1 has 0 cpu free, for 12 s.",
        "It is waiting for 1 vCPU, 0.5 vCPU promised by neighbours.",
        "Its pod requests 2 vCPU, 2Gi for the guest.",
        "The pod's requests were not raised: 403: exceeded quota.",
        "The node has 7500m vCPU, 15Gi for VMs and pods; 7500m vCPU, 3Gi are reserved.",
        "The VM is being migrated.",
    ):
        assert expected in told


def test_story_of_pod_names_no_guest() -> None:
    agent = {**AGENT, "because": "keeping memory: the trial of 512Mi failed: refaulted", "resize": {"pauses": []}}
    told = "\n".join(database_explanation(virtual_machine(STATUS), agent, None))
    assert "the trial of 512Mi failed: refaulted" in told
    assert "guest" not in told


def test_what_cannot_be_asked_is_said() -> None:
    told = "\n".join(database_explanation(virtual_machine(), None, None))
    assert "default/db has ? vCPU and ?; it is new on no node." in told
    assert "Its agent does not respond" in told
    assert "The scheduler has no pod of it" in told


def test_explanation_has_the_schedulers_problems() -> None:
    said = "the compute unit's memory of 32Gi is larger than the VM's range of 1Gi to 16Gi"
    lines = list(database_explanation(virtual_machine(STATUS), None, {"pods": [], "problems": [said]}))
    assert f"  Problem: {said}" in lines


def test_a_refused_resize_shows_in_the_story() -> None:
    refused = [{"type": "Available", "reason": "ResizeRefused", "message": "no daemon"}]
    told = "\n".join(
        database_explanation(virtual_machine({**STATUS, "conditions": refused}), {"because": "x"}, {"pods": []})
    )
    assert "Available: ResizeRefused: no daemon" in told
    assert "It has no metrics." in told


def test_a_node_is_a_bar_with_its_watermark() -> None:
    node: Json = {
        "name": "n1",
        "reserved": {"cpu": "4", "mem": "1Gi"},
        "total": {"cpu": "8", "mem": "2Gi"},
        "watermark": {"cpu": "7200m", "mem": "1Gi"},
    }
    assert reserved_bars(node) == ("████████████·········│··", "███████████│············")
    assert marked("····", 1.0, 0.0) == "····"


def test_vms_are_named_with_or_without_their_namespace() -> None:
    assert (str(parse_vm("db")), str(parse_vm("prod/db"))) == ("default/db", "prod/db")


@pytest.mark.parametrize(
    ("given", "database"),
    [
        ("db", "shop/db"),
        ("prod/db", "prod/db"),
        ("pod/pg-1", "shop/pod/pg-1"),
        ("prod/pod/pg-1", "prod/pod/pg-1"),
        ("pod/pod/pg-1", "pod/pod/pg-1"),
    ],
)
def test_pods_are_named_as_kubectl_prints_them(given: str, database: str) -> None:
    assert str(parse_database(given, "shop")) == database


def test_a_command_for_vms_refuses_a_pod() -> None:
    with pytest.raises(typer.BadParameter, match="default/pod/pg-1 is a pod; this command is for VMs only"):
        parse_vm("pod/pg-1")


@pytest.mark.parametrize("given", ["", "/", "a/", "/a", "a/b/c", "pod/", "a/pod/", "BAD NAME!", "../a"])
def test_invalid_vm_name_is_refused_at_once(given: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected a VM as"):
        parse_vm(given)


@pytest.mark.parametrize("given", ["", "..", "../local", "BAD name", "a" * 41])
def test_invalid_cluster_name_is_refused(given: str) -> None:
    with pytest.raises(typer.BadParameter, match="at most 40"):
        check_cluster_name(given)


def test_story_of_a_pod_has_objection() -> None:
    waits: Json = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "node has no room"}
    told = list(database_explanation(pod_database(conditions=[waits]), {"because": "growing"}, None))
    assert told[:5] == [
        "default/pod/pg-1 has 1 vCPU and 1Gi; it is Running on n1.",
        "  Its bounds are 500m to 4 vCPU and 512Mi to 8Gi; its container postgres requests now: 1 vCPU and 1Gi.",
        "  PodResizePending: Deferred: node has no room",
        "",
        "Its agent: growing.",
    ]
    starting = list(database_explanation(pod_database(node="", phase="Pending", containerStatuses=[]), None, None))
    assert starting[0] == "default/pod/pg-1 has nothing yet; it is Pending on no node."
    unreadable = list(database_explanation(pod_database(bounds=""), None, None))
    assert unreadable[0] == "default/pod/pg-1 has an unreadable size; it is Running on n1."
    assert unreadable[1].startswith("  It cannot be resized: metadata.annotations")
