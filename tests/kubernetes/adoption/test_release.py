"""From an empty cluster to a VM that grows, through an upgrade and back, and out again, while clients are at work."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_CONFIG
from scripts.autoscale.check.finding import Level
from tests.deploy.manifests import ROOT
from tests.kubernetes.adoption.load import busy
from tests.kubernetes.adoption.release import (
    NAMESPACE,
    NEXT,
    Release,
    edit_settings,
    settings_of,
    telling,
)
from tests.kubernetes.check.faults import Installation
from tests.kubernetes.flat_client import flat_client
from tests.kubernetes.real_kubernetes import NotYetError, RealKubernetes, eventually
from tests.kubernetes.vms import bounds

pytestmark = pytest.mark.kubernetes

NAME = "postgres14-disk-test"
TEN_MINUTES = 600.0
NOT_ASKED = ("componentstatuses", "events", "leases.", "namespaces", "nodes.metrics", "pods.metrics")
"""Kinds of which nothing is a part of an installation; and Leases and the namespace, which stay. Programs make Leases,
and what is left of them holds nothing.
"""

OUR_NAMES = ("autoscal", "neonvm")
QUICK_TO_SHRINK = {
    "smoothing": {"cpu": [{"hold": {"window": "20s"}}], "memory": [{"hold": {"window": "20s"}}], "maxGap": "60s"}
}
"""By default an agent gives no memory back in its first five minutes, nor after ten seconds without a look. CPUs stay
with memory, in whole compute units.
"""


def vm(cluster: RealKubernetes) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("neonvm", NAME)
    return found


def cpus(cluster: RealKubernetes) -> float:
    said = str(vm(cluster).get("status", {}).get("cpus", "0"))
    return float(said.removesuffix("m")) / (1000 if said.endswith("m") else 1)


def is_available(cluster: RealKubernetes) -> bool:
    said = {each["type"]: each["status"] for each in vm(cluster).get("status", {}).get("conditions", [])}
    return said.get("Available") == "True"


def pods_of_vm(cluster: RealKubernetes) -> list[tuple[str, int]]:
    """Which pods the VM has, and how often their containers began anew."""
    found = cluster.get("pods", f"--selector=vm.neon.tech/name={NAME}")["items"]
    return [
        (each["metadata"]["uid"], sum(c["restartCount"] for c in each["status"]["containerStatuses"])) for each in found
    ]


def test_two_schedulers_answer_over_tls_and_so_does_the_webhook(release: Release) -> None:
    """The agents' port, the extender and the webhook are asked by the pod of ``helm test``. The page runs too."""
    values = ("agent.node.enabled=false", "agent.sidecar.enabled=true", "dashboard.enabled=true")
    with telling(release.cluster):
        release.helm("install", "--create-namespace", "--wait", "--timeout=6m", f"--set={','.join(values)}")
        answers(release)
        is_in_order(release)
        taken_out(release)


def test_the_recorded_history_outlives_the_release_and_the_next_one_goes_on_with_it(release: Release) -> None:
    """Nothing gives the claim a volume here; whose it is does not depend on that."""
    claim = ("persistentvolumeclaim/autoscaling-dashboard", f"--namespace={NAMESPACE}")
    without = ",".join(f"{part}.enabled=false" for part in ("scheduler", "agent.node", "neonvm", "certificates"))
    values = f"--set=dashboard.enabled=true,dashboard.history.persistent=true,{without}"
    notes = release.helm("install", "--create-namespace", values)
    assert "The page's history is on the claim autoscaling-dashboard" in notes
    made = release.cluster.get(*claim)["metadata"]["uid"]
    try:
        for _ in ("kept", "taken over and kept again"):
            assert "autoscaling-dashboard" in release.helm("uninstall", "--wait", "--timeout=2m")
            assert release.cluster.get(*claim)["metadata"]["uid"] == made
            release.helm("install", values)
    finally:
        release.helm("uninstall", "--wait", "--timeout=2m")
        release.cluster.kubectl("delete", *claim, "--timeout=60s")
    nothing_of_ours_is_left(release)


def test_from_an_empty_cluster_to_growth_through_an_upgrade_and_out_again(release: Release) -> None:
    with telling(release.cluster):
        from_nothing_to_nothing(release)


def from_nothing_to_nothing(release: Release) -> None:
    cluster, began = release.cluster, time.monotonic()
    installed(release, "--create-namespace")
    is_in_order(release)
    cluster.kubectl("apply", f"--filename={ROOT / 'vm-deploy.yaml'}")
    eventually(lambda: is_available(cluster), "the VM is available", 240.0)
    print(f"the database answers after {time.monotonic() - began:.0f} s")
    with flat_client(cluster) as place, busy(place, vm(cluster)["status"]["extraNetIP"], 3) as load:
        eventually(lambda: cpus(cluster) > 1, "it grows", 120.0)
        grown = time.monotonic() - began
        print(f"it grows after {grown:.0f} s")
        assert grown < TEN_MINUTES
        pods = pods_of_vm(cluster)
        upgraded_and_back(release)
        taken_out(release)
        assert is_available(cluster)
        before = load.answers
        eventually(lambda: load.answers > before, "its clients are answered without us", 120.0)
        given_certificates(release)
        assert (pods_of_vm(cluster), load.failures) == (pods, [])
        print(f"{load.answers} answers, none failed; the longest wait was {load.longest:.1f} s")
    shrinks(cluster)
    deleted(release)


def installed(release: Release, *more: str) -> None:
    """As people do it, and asked whether it answers."""
    began = time.monotonic()
    release.helm("install", "--wait", "--timeout=6m", *more)
    print(f"installed after {time.monotonic() - began:.0f} s")
    answers(release)


def answers(release: Release) -> None:
    """To ``helm test``."""
    assert "Phase:          Succeeded" in release.helm("test", "--timeout=2m")


def is_in_order(release: Release) -> None:
    """``autoscale check`` finds nothing wrong."""
    said = dict[str, tuple[Level, str]]()

    def nothing_is_wrong() -> bool:
        said.clear()
        said.update(Installation(release.cluster).check().wrong)
        return not said

    try:
        eventually(nothing_is_wrong, "everything is in order", 45.0)
    except NotYetError as error:
        raise AssertionError(f"{error}: {said}") from None


def upgraded_and_back(release: Release) -> None:
    """Under load, to a version that resizes the VM, and back to one that does. An upgrade keeps what was edited."""
    cluster, shipped = release.cluster, settings_of(release.cluster)
    changed = edit_settings(cluster, "cooldownSeconds: 300", "cooldownSeconds: 301")
    notes = release.helm("upgrade", "--reset-then-reuse-values", f"--set=image.tag={NEXT}", "--wait", "--timeout=6m")
    assert "kept as they are there, whatever the values say: autoscaling-scheduler-config" in " ".join(notes.split())
    assert settings_of(cluster) == changed
    eventually(lambda: release.tags() == {NEXT}, "all programs are the new ones")
    resized(cluster, 2)
    release.helm("rollback", "--wait", "--timeout=6m")
    eventually(lambda: release.tags() == {"dev"}, "all programs are the old ones")
    assert settings_of(cluster) == shipped, "a roll-back is to all that the revision had"
    resized(cluster, 3)


def given_certificates(release: Release) -> None:
    """Under load, from one scheduler without TLS, which takes over what an earlier release left, to two with it."""
    cluster = release.cluster
    installed(release, "--set=certificates.enabled=false")
    resized(cluster, 2)
    (alone,) = schedulers(cluster)
    assert led_to(cluster) == {alone}
    began = time.monotonic()
    notes = release.helm("upgrade", "--reset-values", "--wait", "--timeout=6m")
    assert "Its standby comes with the next upgrade" in notes
    release.helm("upgrade", "--reset-values", "--wait", "--timeout=6m")
    eventually(lambda: len(found := led_to(cluster)) == 1 and found < schedulers(cluster) - {alone}, "one leads")
    print(f"one of two leads after {time.monotonic() - began:.0f} s")
    answers(release)
    resized(cluster, 3)


def schedulers(cluster: RealKubernetes) -> set[str]:
    """The addresses of their pods."""
    selector = "--selector=app.kubernetes.io/name=autoscaling-scheduler"
    found = cluster.get("pods", f"--namespace={NAMESPACE}", selector)["items"]
    return {each["status"].get("podIP", "") for each in found}


def led_to(cluster: RealKubernetes) -> set[str]:
    """The addresses to which the agents' Service leads, in all slices."""
    selector = "--selector=kubernetes.io/service-name=autoscaling-scheduler"
    slices = cluster.get("endpointslices", f"--namespace={NAMESPACE}", selector)["items"]
    return {address for each in slices for endpoint in each["endpoints"] or () for address in endpoint["addresses"]}


def resized(cluster: RealKubernetes, size: int) -> None:
    """Agent and scheduler bring the VM to a size between whose bounds there is no other."""
    cluster.kubectl("annotate", "--overwrite", f"neonvm/{NAME}", f"{ANNOTATION_BOUNDS}={bounds(str(size), 2 * size)}")
    began = time.monotonic()
    eventually(lambda: cpus(cluster) == size, f"it has {size} CPUs", 180.0)
    print(f"it has {size} CPUs after {time.monotonic() - began:.0f} s")


def shrinks(cluster: RealKubernetes) -> None:
    """Without clients, by the agent of a new version, to what its policy finds enough."""
    policy = f"{ANNOTATION_CONFIG}={json.dumps(QUICK_TO_SHRINK)}"
    cluster.kubectl("annotate", "--overwrite", f"neonvm/{NAME}", policy, f"{ANNOTATION_BOUNDS}-")
    began = time.monotonic()
    eventually(lambda: cpus(cluster) < 3, "it shrinks", 180.0)
    print(f"it shrinks after {time.monotonic() - began:.0f} s")


def taken_out(release: Release) -> None:
    """Nothing of ours is left but the kinds, the VMs, and Leases that nothing holds."""
    release.helm("uninstall", "--wait", "--timeout=2m")
    nothing_of_ours_is_left(release)


def nothing_of_ours_is_left(release: Release) -> None:
    left = set[str]()

    def nothing_is_left() -> bool:
        left.clear()
        left.update(ours_in(release.cluster))
        return not left

    try:
        eventually(nothing_is_left, "nothing of ours is left")
    except NotYetError as error:
        raise AssertionError(f"{error}: {left}") from None
    assert {each["metadata"]["name"] for each in release.objects("crds")} == {
        "virtualmachines.vm.neon.tech",
        "virtualmachinemigrations.vm.neon.tech",
    }


def ours_in(cluster: RealKubernetes) -> set[str]:
    """The objects of all kinds that have a name of ours."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "--output=name").split()
    asked = ",".join(each for each in kinds if not each.startswith(NOT_ASKED))
    found = cluster.kubectl("get", asked, "--all-namespaces", "--output=name").split()
    return {each for each in found if each.partition("/")[2].startswith(OUR_NAMES)}


def deleted(release: Release) -> None:
    """A VM that is to go waits for its controller."""
    release.cluster.kubectl("delete", f"neonvm/{NAME}", "--timeout=80s")
    eventually(lambda: pods_of_vm(release.cluster) == [], "its pod is gone")
    taken_out(release)
