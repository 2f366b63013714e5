"""The tests' own accounting detects violations."""

from __future__ import annotations

from protocol.names import ANNOTATION_PERMIT
from protocol.permits import encode_permit
from protocol.units import Resources
from tests.kubernetes.scheduling.books import PODS, VMS, Held, Obj, Seen, broken_promises, overcommitted, reserved

ROOMS = {"n": Resources.parse(3, "8Gi")}


def vm(revision: int, use: int, permit: int = 0, has: int = 1) -> Seen:
    """The VM with this many CPUs, and a Gi of memory for each."""
    stored = {ANNOTATION_PERMIT: encode_permit(Resources.parse(permit, f"{permit}Gi"))} if permit else {}
    found = {
        "metadata": {"name": "db", "uid": "vm", "annotations": stored},
        "spec": {"guest": {"cpus": {"use": use}, "memorySlotSize": "1Gi", "memorySlots": {"use": use}}},
        "status": {"cpus": has, "memorySize": f"{has}Gi"},
    }
    return Seen(revision, VMS, False, found)


def pod(revision: int, uid: str, *, cpu: str = "1", runs_vm: bool = False, is_deletion: bool = False) -> Seen:
    owners = [{"kind": "VirtualMachine", "uid": "vm"}] if runs_vm else []
    found: Obj = {
        "metadata": {"uid": uid, "ownerReferences": owners},
        "spec": {"nodeName": "n", "containers": [{"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]},
        "status": {"phase": "Pending"},
    }
    return Seen(revision, PODS, is_deletion, found)


def test_vm_counts_with_its_maximum_use() -> None:
    runs = pod(1, "a", cpu="100m", runs_vm=True).found
    counted = [
        reserved([runs], [each.found])["n"].cpu.quantity() for each in (vm(2, 1), vm(2, 1, 3), vm(2, 1, 2, has=4))
    ]
    assert counted == ["1", "3", "4"]


def test_finished_and_unscheduled_pods_count_nothing() -> None:
    finished, waiting = pod(1, "a").found, pod(1, "b").found
    finished["status"]["phase"] = "Succeeded"
    del waiting["spec"]["nodeName"]
    assert reserved([finished, waiting], []) == {}


def test_brief_overcommitment_is_detected() -> None:
    runs = pod(2, "a", cpu="100m", runs_vm=True)
    story = [vm(1, 1), runs, pod(3, "b"), vm(4, 1, 2), pod(6, "b", is_deletion=True), vm(7, 1, 3)]
    assert overcommitted(story, ROOMS) == []
    assert overcommitted([*story, vm(5, 1, 3)], ROOMS) == ["revision 5: 4 cpu, 4Gi on n, which has 3 cpu, 8Gi"]


def test_unstored_permit_and_excess_use_are_detected() -> None:
    story = [vm(1, 1), vm(2, 1, 2), vm(3, 2, 2), vm(4, 1, 1)]
    held = Held("db", Resources.parse(2, "2Gi"), 2, 3)
    assert broken_promises(story, [held]) == []
    assert broken_promises(story, [Held("db", held.permit, 2, 4)]) == [
        "revision 4: the agent of db holds 2 cpu, 2Gi, stored are 1 cpu, 1Gi"
    ]
    assert broken_promises([vm(5, 3, 2)], []) == ["revision 5: db uses 3 cpu, 3Gi, permitted are 2 cpu, 2Gi"]
