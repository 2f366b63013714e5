"""The tier of ``.ci/run`` on a real Kubernetes: installed, used, attacked, checked, and removed without a trace.

The longer stories of the same steps are ``make test-kubernetes`` and ``make test-adoption``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol.names import ANNOTATION_PERMIT
from tests.deploy.manifests import ROOT
from tests.kubernetes.adoption.release import NAMESPACE, Release, bring_images, telling
from tests.kubernetes.adoption.steps import (
    EMULATED,
    NAME,
    deleted,
    installed,
    is_available,
    is_in_order,
    resized,
    taken_out,
    vm,
)
from tests.kubernetes.adoption.stranger import Stranger
from tests.kubernetes.flat_client import flat_client
from tests.kubernetes.machine_state import machine_state
from tests.kubernetes.postgres_session import Session, password_of
from tests.kubernetes.real_kubernetes import PATIENCE, RealKubernetes, eventually, running

pytestmark = pytest.mark.kubernetes


def test_first_hour_of_an_installation(home: Path, tmp_path: Path) -> None:
    """Chart installed, a VM grown, strangers refused, the VM moved with its session, everything removed."""
    assert home.is_dir(), "there can be clusters on this machine"
    cluster = RealKubernetes("first-hour", tmp_path / "clusters")
    before = machine_state(cluster.name, cluster.home)
    with running(cluster, "--nodes", "2"), telling(cluster):
        cluster.kubectl("delete", "crds", "--all")
        bring_images(cluster, tmp_path)
        release = Release(cluster)
        installed(release, "--create-namespace")
        cluster.apply(password_of(NAME))
        cluster.kubectl("apply", f"--filename={ROOT / 'vm-deploy.yaml'}")
        eventually(lambda: is_available(cluster), "the VM is available", 240.0)
        is_in_order(release, but=EMULATED)
        resized(cluster, 2)
        with stranger(cluster) as attacker:
            assert succeeded(attacker) == []
        moves_with_its_session(cluster)
        is_in_order(release, but=EMULATED)
        deleted(cluster)
        taken_out(release)
    assert machine_state(cluster.name, cluster.home) == before


@contextmanager
def stranger(cluster: RealKubernetes) -> Iterator[Stranger]:
    attacker = Stranger(cluster)
    attacker.start()
    try:
        yield attacker
    finally:
        attacker.end()


def succeeded(attacker: Stranger) -> list[str]:
    """The attacks that worked, and what should have worked and did not."""
    runner, agent, scheduler = addresses(attacker.cluster)
    attempts = {
        "reads the runner's API without TLS": attacker.reads(f"http://{runner}:25183/status"),
        "reads the runner's API without a certificate": attacker.reads(f"https://{runner}:25183/status"),
        "speaks to QEMU's monitor": attacker.reads(f"https://{runner}:20183/"),
        "asks an agent to explain a VM": attacker.reads(f"http://{agent}:9101/explain/default/{NAME}"),
        "asks the scheduler for the fleet": attacker.reads(f"http://{scheduler}:10297/nodes"),
        "asks for a permit without a token": attacker.reads(f"https://{scheduler}:10299/"),
        "forges a permit": attacker.edits(
            {"metadata": {"annotations": {ANNOTATION_PERMIT: '{"vCPUs":1000,"mem":"1Ti"}'}}}
        ),
        "claims more than any node has": attacker.edits({"spec": {"guest": {"cpus": {"max": 5000, "use": 5000}}}}),
        "cannot even read metrics": not attacker.reads(f"http://{scheduler}:10297/metrics"),
    }
    return [what for what, worked in attempts.items() if worked]


def addresses(cluster: RealKubernetes) -> tuple[str, str, str]:
    """Pod addresses of the VM's runner, of an agent and of the active scheduler."""
    runner = vm(cluster)["status"]["podIP"]
    agents = cluster.get("pods", f"--namespace={NAMESPACE}", "--selector=app.kubernetes.io/name=autoscaling-agent")
    slices = cluster.get("endpointslices", f"--namespace={NAMESPACE}")["items"]
    active = next(
        address
        for each in slices
        if each["metadata"]["labels"]["kubernetes.io/service-name"] == "autoscaling-scheduler"
        for endpoint in each["endpoints"] or ()
        for address in endpoint["addresses"]
    )
    return runner, agents["items"][0]["status"]["podIP"], active


def moves_with_its_session(cluster: RealKubernetes) -> None:
    before = vm(cluster)["status"]
    with flat_client(cluster) as place:
        session = Session(place, before["extraNetIP"])
        backend = session.ask("select pg_backend_pid()")
        migrate(cluster)
        assert vm(cluster)["status"]["node"] != before["node"]
        assert session.ask("select pg_backend_pid()") == backend
        session.close()


def migrate(cluster: RealKubernetes) -> None:
    """``autoscale migrate``, as people run it."""
    command = (sys.executable, "-m", "scripts.autoscale.main", "migrate", NAME, f"--kubeconfig={cluster.kubeconfig}")
    done = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
