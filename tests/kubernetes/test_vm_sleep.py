"""A VM on real nodes that sleeps (B.18): its pod and its sessions stay, and its node gets the room back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.neonvm.sleep.image import NAME
from protocol.guest.sleep import SleepReport, sleep_report
from protocol.units import ZERO
from scheduler_plugin.ledger.accounts.pod_requests import MIN_REQUESTS
from tests.kubernetes.pod_processes import processes_of
from tests.kubernetes.postgres_session import Session
from tests.kubernetes.real_kubernetes import PATIENCE, NotYetError, RealKubernetes, eventually
from tests.kubernetes.scheduling.books import permit_of
from tests.kubernetes.test_node_failures import pid_of
from tests.kubernetes.test_vms import until_moved
from tests.kubernetes.vms import (
    PODS,
    booted,
    flat_session,
    following,
    leader_of,
    leading_controller,
    requested,
    size_of,
    status,
    until_books_agree,
)

pytestmark = pytest.mark.kubernetes

LONG: Final = 180.0
"""Seconds. A Lease runs out and a VM is restored before a query is answered, on a machine that may be busy."""
_QEMU: Final = "qemu-system"


@pytest.fixture(scope="module")
def vm(with_vms: RealKubernetes) -> Iterator[RealKubernetes]:
    """The cluster with our programs, and a VM whose database answers, with its agent beside it."""
    with booted(with_vms):
        yield with_vms


@pytest.fixture
def session(vm: RealKubernetes) -> Iterator[Session]:
    """A session over the flat network, with a table of its own that ends with it."""
    with flat_session(vm, LONG) as opened:
        opened.ask("create temporary table kept as select 42 as answer")
        yield opened


def test_idle_session_outlives_sleep(vm: RealKubernetes, session: Session) -> None:
    """Its QEMU ends and its pod stays Ready; permit, requests and books fall, and all comes back with the answer."""
    size, backend = size_of(vm), session.ask("select pg_backend_pid()")
    with following(vm):
        eventually(lambda: requested(vm) == [size], "its pod requests what it has", LONG)
        put_to_sleep(vm)
        (pod,) = vm.get("pods", PODS)["items"]
        assert (processes_of(pod["metadata"]["uid"], _QEMU), is_ready(pod)) == ([], True)
        assert (report(vm).sessions, "memorySize" in status(vm)) == (1, False)
        eventually(lambda: permit_of(vm.get("neonvm", "db")) == ZERO, "its agent gives the permit up", LONG)
        eventually(lambda: requested(vm) == [MIN_REQUESTS], "its pod requests nothing for the guest", LONG)
        until_books_agree(vm)
        (pod,) = vm.get("pods", PODS)["items"]
        assert (status(vm)["phase"], is_ready(pod)) == ("Asleep", True), "what it gave back has not woken it"
        assert answer_of(session) == "42"
        until_awake(vm)
        eventually(lambda: requested(vm) == [size], "its pod requests what it has again", LONG)
        until_books_agree(vm)
    after = vm.get("pods", PODS)["items"]
    assert [each["metadata"]["uid"] for each in after] == [pod["metadata"]["uid"]]
    assert (size_of(vm), session.ask("select pg_backend_pid()")) == (size, backend)
    print(f"answered {session.longest:.1f} s after it was asked; {report(vm)}")


@pytest.mark.parametrize("asks", ["before", "after"])
def test_successor_of_killed_controller_wakes_vm(vm: RealKubernetes, session: Session, asks: str) -> None:
    """The packet comes before or after another replica leads: it is never lost."""
    put_to_sleep(vm)
    dead = leader_of(vm)
    os.kill(leading_controller(vm), signal.SIGKILL)
    if asks == "after":
        eventually(lambda: leader_of(vm) not in {"", dead}, "another controller leads", LONG)
        assert status(vm)["phase"] == "Asleep"
    assert answer_of(session) == "42"
    until_awake(vm)
    print(f"answered {session.longest:.1f} s after it was asked; {report(vm)}")
    vm.wait("condition=Available", "deployment/neonvm-controller", namespace="kube-system")


def test_sleeping_vm_moves_with_its_sessions(vm: RealKubernetes, session: Session) -> None:
    """Its disk and its memory go to the other node's pod; it runs there, and its session is answered from there."""
    source, backend = status(vm)["node"], session.ask("select pg_backend_pid()")
    put_to_sleep(vm)
    path = ("virtualmachinemigrations.vm.neon.tech", "asleep")
    kind = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration", "metadata": {"name": path[1]}}
    vm.apply({**kind, "spec": {"vmName": "db", "completionTimeout": 120}})
    until_moved(vm, path)
    eventually(lambda: len(vm.get("pods", PODS)["items"]) == 1, "one pod is left", LONG)
    (pod,) = vm.get("pods", PODS)["items"]
    until_awake(vm)
    assert (pod["spec"]["nodeName"], pod["spec"]["nodeName"] != source) == (status(vm)["node"], True)
    assert answer_of(session) == "42"
    assert session.ask("select pg_backend_pid()") == backend
    until_books_agree(vm)
    print(f"answered {session.longest:.1f} s after it was asked; {report(vm)}")


def test_vm_deleted_asleep_leaves_nothing(vm: RealKubernetes) -> None:
    """Neither a process, nor the memory's file, nor an address, nor anything reserved."""
    put_to_sleep(vm)
    (pod,) = vm.get("pods", PODS)["items"]
    uid, node, address = pod["metadata"]["uid"], pod["spec"]["nodeName"], status(vm)["extraNetIP"]
    kept = Path(f"/proc/{pid_of(vm, node)}/root/var/lib/kubelet/pods/{uid}")
    assert [file.stat().st_mode & 0o777 for file in kept.rglob(NAME)] == [0o600]
    assert address in claims(vm)
    vm.kubectl("delete", "neonvm/db")
    eventually(lambda: not vm.get("pods", PODS)["items"], "its pod is gone", LONG)
    eventually(lambda: not kept.exists(), "its memory is gone", LONG)
    eventually(lambda: address not in claims(vm), "its address is free", LONG)
    assert processes_of(uid, "") == []
    until_books_agree(vm)


def put_to_sleep(cluster: RealKubernetes) -> None:
    """Returns once the VM sleeps. A refused order is given again: its database may do something of its own."""
    refusals: list[str] = []

    def is_asleep() -> bool:
        done = ordered(cluster)
        refusals.append(done.stdout + done.stderr)
        return done.returncode == 0

    try:
        eventually(is_asleep, "the VM sleeps", LONG, every=2.0)
    except NotYetError as error:
        raise NotYetError(f"{error}: {refusals}") from None
    assert status(cluster)["phase"] == "Asleep"


def ordered(cluster: RealKubernetes) -> subprocess.CompletedProcess[str]:
    """``autoscale sleep``, as people run it."""
    command = (sys.executable, "-m", "scripts.autoscale.main", "sleep", "db", f"--kubeconfig={cluster.kubeconfig}")
    return subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def until_awake(cluster: RealKubernetes) -> None:
    """Returns once the status says that the VM runs again with its sessions."""
    eventually(lambda: report(cluster).state == "Awake", "it is awake", LONG)
    eventually(lambda: status(cluster)["phase"] == "Running", "it has its size", LONG)


def report(cluster: RealKubernetes) -> SleepReport:
    """The report on the VM's last sleep."""
    return sleep_report(cluster.get("neonvm", "db"))


def answer_of(session: Session) -> str:
    """The content of the session's own table."""
    return session.ask("select answer from kept")


def is_ready(pod: dict[str, Any]) -> bool:
    """Return True if a Service keeps the pod."""
    conditions = {each["type"]: each["status"] for each in pod["status"]["conditions"]}
    return bool(pod["status"]["phase"] == "Running" and conditions["Ready"] == "True")


def claims(cluster: RealKubernetes) -> list[str]:
    """The addresses of VMs on the flat network."""
    return [each["metadata"]["name"] for each in cluster.get("ipaddresses")["items"]]
