"""A herd of sleepers under watch: what its node holds is counted from the objects alone."""

from __future__ import annotations

from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_PERMIT
from protocol.permits import encode_permit
from protocol.units import Instant, Resources
from scripts.bench.mass_wake_bench import HerdWatch, simulated_object

SMALL, LARGE = ObjectName("default", "vm-1"), ObjectName("default", "vm-4")


def seen(name: ObjectName, phase: str, permit: str = "0", state: str = "Awake", pod: str = "a") -> Json:
    annotations = {ANNOTATION_PERMIT: encode_permit(Resources.parse(permit, "128Mi"))}
    metadata = {"name": name.name, "namespace": name.namespace, "annotations": annotations}
    status = {"phase": phase, "podName": pod, "node": "node-1", "sleep": {"state": state}}
    return {**simulated_object(name), "metadata": metadata, "status": status}


def test_a_permit_counts_before_its_guest_runs() -> None:
    watch = HerdWatch(Resources.parse(1, "1Gi"), asked_at=dict.fromkeys((SMALL, LARGE), Instant(5.0)))
    watch.update(LARGE, seen(LARGE, "Waking", state="Waking"), Instant(6.0))
    watch.update(SMALL, seen(SMALL, "Waking", "500m", "Waking"), Instant(6.5))
    watch.update(SMALL, seen(SMALL, "Running", "500m"), Instant(7.0))
    assert (watch.granted, watch.awake, str(watch.peak), watch.overcommits) == (
        [SMALL],
        {SMALL: 7.0},
        "500m cpu, 256Mi",
        [],
    )
    watch.update(LARGE, seen(LARGE, "Waking", "1", "Waking"), Instant(8.0))
    assert (watch.granted, watch.overcommits, watch.lost) == ([SMALL, LARGE], ["1500m cpu, 256Mi of 1 cpu, 1Gi"], set())


def test_vm_that_starts_again_is_lost() -> None:
    watch = HerdWatch(Resources.parse(8, "8Gi"))
    watch.update(SMALL, seen(SMALL, "Asleep"), Instant(0.0))
    watch.update(SMALL, seen(SMALL, "Running", pod="b"), Instant(1.0))
    watch.update(LARGE, seen(LARGE, "Running", state="Restarted"), Instant(1.0))
    assert watch.lost == {SMALL, LARGE}
    watch.update(ObjectName("default", "vm-9"), None, Instant(2.0))
    assert len(watch.lost) == 3
