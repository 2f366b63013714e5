"""A VM on real nodes that sleeps (B.18): its pod and its sessions stay, and its node gets the room back."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from deploy.neonvm.sleep.image import NAME
from protocol.guest.sleep import SleepReport, sleep_report
from protocol.names import ANNOTATION_SLEEP
from protocol.units import ZERO
from scheduler_plugin.ledger.accounts.pod_requests import MIN_REQUESTS
from tests.kubernetes.pod_processes import processes_of
from tests.kubernetes.postgres_session import Session
from tests.kubernetes.real_kubernetes import PATIENCE, NotYetError, RealKubernetes, eventually
from tests.kubernetes.scheduling.books import permit_of
from tests.kubernetes.test_node_failures import pid_of
from tests.kubernetes.test_vms import until_ended, until_moved
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
STORM_ROUNDS: Final = 12
_QEMU: Final = "qemu-system"


@pytest.fixture(scope="module")
def vm(with_vms: RealKubernetes) -> Iterator[RealKubernetes]:
    """The cluster with our programs, and a VM with a running database and an agent."""
    with booted(with_vms):
        yield with_vms


@pytest.fixture
def session(vm: RealKubernetes) -> Iterator[Session]:
    """A session over the flat network, with a temporary table."""
    with flat_session(vm, LONG) as opened:
        opened.ask("create temporary table kept as select 42 as answer")
        yield opened


def test_idle_session_outlives_sleep(vm: RealKubernetes, session: Session) -> None:
    """QEMU exits and the pod stays Ready; permit, requests and reservation fall, and return with the query's result."""
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


def test_storm_of_sleeps_loses_nothing(vm: RealKubernetes, session: Session) -> None:
    """Sleeps, wakes, moves and killed controllers in random order: each row exists once, and the session survives."""
    seed = os.environ.get("AUTOSCALE_STORM_SEED") or str(secrets.randbelow(10**6))
    print(f"AUTOSCALE_STORM_SEED={seed} repeats these actions")
    storm = SleepStorm(vm, session, Random(seed))
    session.ask("create table storm (n int)")
    session.ask("create temporary table turns (n int)")
    backend = session.ask("select pg_backend_pid()")
    for _ in range(STORM_ROUNDS):
        storm.round()
    rows = session.ask("select coalesce(string_agg(n::text, ',' order by n), '') from storm")
    assert rows == ",".join(str(row) for row in range(1, storm.rows + 1))
    assert int(session.ask("select count(*) from turns")) == STORM_ROUNDS
    assert session.ask("select pg_backend_pid()") == backend
    assert storm.sleeps >= STORM_ROUNDS // 4, "most orders were refused or called off"
    until_books_agree(vm)
    print(f"{storm.sleeps} sleeps; answered {session.longest:.1f} s after it was asked at most")


@dataclass
class SleepStorm:
    """Orders to sleep that actions of ``draw`` interrupt or follow, with an idle ``session``."""

    cluster: RealKubernetes
    session: Session
    draw: Random
    rows: int = 0
    sleeps: int = 0
    actions: list[str] = field(default_factory=list)

    def round(self) -> None:
        """One order to sleep and one action, at a random moment of it; then the idle session asks."""
        actions = {
            "idle session": lambda: None,
            "new session": self._new_session,
            "order withdrawn": self._withdraw,
            "migration": self._migrate,
            "controller killed": self._kill_controller,
        }
        self.actions.append(self.draw.choice(list(actions)))
        # Memory that an interrupted sleep took from it comes back first.
        eventually(lambda: status(self.cluster)["phase"] == "Running", "it may sleep", LONG)
        with ThreadPoolExecutor(1) as pool:
            order = pool.submit(ordered, self.cluster)
            wait([order], timeout=self.draw.uniform(0.0, 12.0))
            actions[self.actions[-1]]()
            self._insert(self.session)
            self.session.ask("insert into turns values (1) returning n")
            # Called off or refused, or the VM has slept: each is right.
            done = order.result()
        self.sleeps += done.returncode == 0
        print(f"{self.actions[-1]}: {done.stdout}{done.stderr}".rstrip())

    def _insert(self, by: Session) -> None:
        self.rows += 1
        assert by.ask(f"insert into storm values ({self.rows}) returning n") == str(self.rows)  # noqa: S608 - a number

    def _new_session(self) -> None:
        other = Session(self.session.namespace, status(self.cluster)["extraNetIP"], LONG)
        self._insert(other)
        other.close()

    def _withdraw(self) -> None:
        self.cluster.kubectl("annotate", "neonvm/db", f"{ANNOTATION_SLEEP}-")

    def _migrate(self) -> None:
        path = ("virtualmachinemigrations.vm.neon.tech", f"storm-{len(self.actions)}")
        kind = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration", "metadata": {"name": path[1]}}
        self.cluster.apply({**kind, "spec": {"vmName": "db", "completionTimeout": 120}})
        until_ended(self.cluster, path)

    def _kill_controller(self) -> None:
        eventually(self._has_killed_leader, "a controller leads", LONG)

    def _has_killed_leader(self) -> bool:
        try:
            os.kill(leading_controller(self.cluster), signal.SIGKILL)
        except ValueError:
            # The Lease is still that of the one killed before.
            return False
        return True


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
    """Put the VM to sleep. A refused order is repeated, because the database may be busy with its own work."""
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
