"""From an empty cluster to a VM that grows, through an upgrade and back, and out again, while clients are at work."""

from __future__ import annotations

import json
import time

import pytest

from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_CONFIG
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
from tests.kubernetes.adoption.steps import (
    NAME,
    answers,
    cpus,
    deleted,
    installed,
    is_available,
    is_in_order,
    nothing_of_ours_is_left,
    pods_of_vm,
    resized,
    taken_out,
    vm,
)
from tests.kubernetes.flat_client import flat_client
from tests.kubernetes.postgres_session import password_of
from tests.kubernetes.real_kubernetes import RealKubernetes, eventually

pytestmark = pytest.mark.kubernetes

TEN_MINUTES = 600.0
QUICK_TO_SHRINK = {
    "smoothing": {"cpu": [{"hold": {"window": "20s"}}], "memory": [{"hold": {"window": "20s"}}], "maxGap": "60s"}
}
"""By default an agent gives no memory back in its first five minutes, nor after ten seconds without a look. CPUs stay
with memory, in whole compute units.
"""


def test_two_schedulers_and_webhook_serve_tls(release: Release) -> None:
    """The agents' port, the extender and the webhook are asked by the pod of ``helm test``. The page runs too."""
    values = ("agent.node.enabled=false", "agent.sidecar.enabled=true", "dashboard.enabled=true")
    with telling(release.cluster):
        release.helm("install", "--create-namespace", "--wait", "--timeout=6m", f"--set={','.join(values)}")
        answers(release)
        is_in_order(release)
        taken_out(release)


def test_next_release_reuses_recorded_history(release: Release) -> None:
    """Nothing gives the claim a volume here; whose it is does not depend on that."""
    claim = ("persistentvolumeclaim/autoscaling-dashboard", f"--namespace={NAMESPACE}")
    without = ",".join(f"{part}.enabled=false" for part in ("scheduler", "agent.node", "neonvm", "certificates"))
    values = f"--set=dashboard.enabled=true,dashboard.history.persistent=true,{without}"
    notes = release.helm("install", "--create-namespace", values)
    assert "The dashboard keeps its history on the claim autoscaling-dashboard" in notes
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


def test_install_grow_upgrade_uninstall(release: Release) -> None:
    with telling(release.cluster):
        from_nothing_to_nothing(release)


def from_nothing_to_nothing(release: Release) -> None:
    cluster, began = release.cluster, time.monotonic()
    installed(release, "--create-namespace")
    is_in_order(release)
    cluster.apply(password_of(NAME))
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
    deleted(cluster)
    taken_out(release)


def upgraded_and_back(release: Release) -> None:
    """Under load, to a version that resizes the VM, and back to one that does. An upgrade keeps what was edited."""
    cluster, shipped = release.cluster, settings_of(release.cluster)
    changed = edit_settings(cluster, "cooldownSeconds: 3600", "cooldownSeconds: 3601")
    notes = release.helm("upgrade", "--reset-then-reuse-values", f"--set=image.tag={NEXT}", "--wait", "--timeout=6m")
    assert "edited in the cluster are kept, whatever the values say: autoscaling-scheduler-config" in " ".join(
        notes.split()
    )
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
    assert "Its standby starts with the next upgrade" in notes
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


def shrinks(cluster: RealKubernetes) -> None:
    """Without clients, by the agent of a new version, to what its policy finds enough."""
    policy = f"{ANNOTATION_CONFIG}={json.dumps(QUICK_TO_SHRINK)}"
    cluster.kubectl("annotate", "--overwrite", f"neonvm/{NAME}", policy, f"{ANNOTATION_BOUNDS}-")
    began = time.monotonic()
    eventually(lambda: cpus(cluster) < 3, "it shrinks", 180.0)
    print(f"it shrinks after {time.monotonic() - began:.0f} s")
