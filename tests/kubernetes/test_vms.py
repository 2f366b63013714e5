"""A VM on real nodes: it boots in a pod, grows, and moves with its address while a session is open."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from deploy.neonvm.objects.pod_form import FLAT_RESOURCE
from protocol.names import ANNOTATION_CONFIG, MIGRATION_PLURAL
from protocol.units import Bytes, Resources
from tests.conformance.cluster import client_of
from tests.kubernetes.connection_burst import grows_for_connections
from tests.kubernetes.echo_client import SETTLED, echoing
from tests.kubernetes.neighbour_pod import NeighbourPod
from tests.kubernetes.postgres_session import Session
from tests.kubernetes.real_kubernetes import NotYetError, RealKubernetes, eventually
from tests.kubernetes.scheduling.books import overcommitted
from tests.kubernetes.scheduling.history import History
from tests.kubernetes.test_node_failures import pid_of
from tests.kubernetes.vms import (
    FIRST,
    NODES,
    PODS,
    booted,
    flat_session,
    following,
    has,
    leading_controller,
    let,
    monitor_of,
    movable,
    requested,
    room_of,
    runner_requests,
    size_of,
    status,
    until_books_agree,
    want,
)

pytestmark = pytest.mark.kubernetes

MINUTE = 60.0
LONG = 120.0
"""A Lease runs out, and a busy machine takes its time, before another controller takes a move up."""
STANDSTILL = 0.1
"""A guest that answers nothing for so long in a move stands still; it does for 0.15 s and more."""
SMALL = Resources.parse(1, "384Mi")
HOLD = [{"hold": {"window": "5s"}}]
AT_ONCE = {"smoothing": {"cpu": HOLD, "memory": HOLD}, "memory": {"cache": {"enabled": False}}}
"""An agent that gives back soon what is not needed."""
DEVICES = "autoscaling.neon.tech/guest-devices"


@pytest.fixture(scope="module")
def vm(with_vms: RealKubernetes) -> Iterator[RealKubernetes]:
    """The cluster with our programs, and a VM with a running database and an agent."""
    with booted(with_vms):
        yield with_vms


@pytest.fixture
def session(vm: RealKubernetes) -> Iterator[Session]:
    """A session over the flat network."""
    with flat_session(vm) as opened:
        yield opened


def test_vm_boots_and_reports_acceleration(vm: RealKubernetes) -> None:
    found = status(vm)
    assert (found["phase"], found["node"] in NODES) == ("Running", True)
    (said,) = (each for each in found["conditions"] if each["type"] == "Accelerated")
    assert said["reason"] in {"Accelerated", "Emulated"}
    # What the node has was handed to the pod, which could open it; whether a guest boots on it is another question.
    has_kvm = Path("/sys/class/misc/kvm").exists()
    assert said["message"].startswith("KVM: " if has_kvm else "software emulation: there is no /dev/kvm")
    assert [each["metadata"]["name"] for each in vm.get("ipaddresses")["items"] if "labels" in each["metadata"]].count(
        found["extraNetIP"]
    ) == 1


def test_vm_gets_available_devices(vm: RealKubernetes) -> None:
    assert [offered(vm, node) for node in NODES] == ["1k", "1k"]
    (pod,) = vm.get("pods", PODS)["items"]
    (runner,) = (each for each in pod["spec"]["containers"] if each["name"] == "neonvm-runner")
    assert runner["resources"]["limits"] == {DEVICES: "1", FLAT_RESOURCE: "1"}


def offered(cluster: RealKubernetes, node: str) -> str:
    """Number of pods of a node that may request its devices."""
    return str(cluster.get("node", node)["status"]["allocatable"].get(DEVICES, "0"))


def test_network_policy_protects_pod_ports(vm: RealKubernetes) -> None:
    """The controller makes it in the VM's namespace; nothing was set for that."""

    def is_there() -> bool:
        found = vm.get("networkpolicies")["items"]
        return [each["metadata"]["name"] for each in found] == ["neonvm-runners"]

    eventually(is_there, "the controller has made its NetworkPolicy", 60.0)


def test_vm_grows(vm: RealKubernetes) -> None:
    want(vm, "2", 4)
    eventually(lambda: has(vm, "2", 4), "it has grown")
    until_books_agree(vm)


def test_guest_monitor_approves_shrinks(vm: RealKubernetes) -> None:
    """The VM does not list its port: the agent reaches it from within the pod."""
    try:
        want(vm, "1", 8)
        eventually(lambda: has(vm, "1", 8), "it has grown")
        eventually(lambda: counts_on(vm) == Bytes.parse("1Gi"), "its monitor knows")
        assert monitor_of(vm)["version"] == 2
        let(vm, ("1", 2), ("2", 8), AT_ONCE)
        eventually(lambda: counts_on(vm) < Bytes.parse("1Gi"), "its monitor has agreed to less")
        eventually(lambda: size_of(vm).mem < Bytes.parse("1Gi"), "the memory has gone")
    finally:
        vm.kubectl("annotate", "neonvm/db", f"{ANNOTATION_CONFIG}-")
        want(vm, "2", 4)
    eventually(lambda: has(vm, "2", 4), "it is as before")


def counts_on(cluster: RealKubernetes) -> Bytes:
    """The memory that the guest's monitor was last notified of; 0 before that."""
    return Bytes.parse(monitor_of(cluster)["counts_on"] or "0")


def test_vm_grows_for_a_burst_of_connections(vm: RealKubernetes, session: Session) -> None:
    """They never ask anything; what looks find of that is counted. On a busy machine a look may be first, and right."""
    try:
        let(vm, ("1", 4), ("2", 4), AT_ONCE)
        eventually(lambda: monitor_of(vm)["version"] == 2, "its monitor is heard")
        assert grows_for_connections(vm, session.namespace), "a report was heard before a scrape"
    finally:
        vm.kubectl("annotate", "neonvm/db", f"{ANNOTATION_CONFIG}-")
        want(vm, "2", 4)
    eventually(lambda: has(vm, "2", 4), "it is as before")


def test_migration_loses_no_frame(vm: RealKubernetes, session: Session) -> None:
    """An emulated guest pauses for seconds: frames sent during the pause are buffered and answered."""
    before = status(vm)
    move = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration", "metadata": {"name": "unnoticed"}}
    with echoing(session.namespace, before["extraNetIP"]) as client:
        vm.apply({**move, "spec": {"vmName": "db", "completionTimeout": 120}})
        path = ("virtualmachinemigrations.vm.neon.tech", "unnoticed")
        until_moved(vm, path)
        eventually(lambda: len(vm.get("pods", "--selector=vm.neon.tech/name=db")["items"]) == 1, "one pod is left")
        time.sleep(2 * SETTLED)
        with suppress(NotYetError):  # a guest that has only just arrived may still have much to answer
            eventually(lambda: len(client.lost) <= 1, "all is answered", MINUTE)
        lost = client.lost
        told = f"{len(lost)} lost, {client.dropped} of them here, the slowest took {client.longest:.1f} s: {lost}"
        assert (status(vm)["node"] != before["node"], len(lost) <= 1) == (True, True), told


@pytest.mark.parametrize(
    ("dies", "then"),
    [("none", ("1500m", 5)), ("source", ("2", 6)), ("target", ("1", 7))],
    ids=["none", "source", "target"],
)
def test_migration_keeps_open_session(vm: RealKubernetes, session: Session, dies: str, then: tuple[str, int]) -> None:
    """``dies`` is whose kubelet and containerd are killed while it moves, ``then`` the size that it takes then."""
    before, backend = status(vm), session.ask("select pg_backend_pid()")
    (target,) = set(NODES) - {before["node"]}
    name = f"move-{dies}"
    nodes = {"none": [], "source": [before["node"]], "target": [target]}[dies]
    killed = [pid_of(vm, f"{node} {part}") for node in nodes for part in ("kubelet", "containerd")]
    spec = {"vmName": "db", "completionTimeout": 120}
    kind = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration"}
    over = threading.Event()
    worker = threading.Thread(target=lambda: [session.ask("select 1") for _ in iter(over.is_set, True)])
    worker.start()
    try:
        vm.apply({**kind, "metadata": {"name": name}, "spec": spec})
        path = ("virtualmachinemigrations.vm.neon.tech", name)
        eventually(lambda: vm.get(*path).get("status", {}).get("phase") not in {None, "", "Pending"}, "it has begun")
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        until_moved(vm, path)
    finally:
        over.set()
        worker.join()
    after = status(vm)
    assert (after["node"], after["extraNetIP"]) == (target, before["extraNetIP"])
    assert session.ask("select pg_backend_pid()") == backend
    eventually(lambda: len(vm.get("pods", PODS)["items"]) == 1, "one pod is left")
    want(vm, *then)
    eventually(lambda: has(vm, *then), "it follows its agent")
    until_books_agree(vm)
    vm.wait("condition=Ready", "node", "--all")
    eventually(lambda: [offered(vm, node) for node in NODES] == ["1k", "1k"], "a new kubelet knows the devices")


@pytest.mark.parametrize(
    ("stands_still", "then"), [(False, ("2", 4)), (True, ("1500m", 6))], ids=["while it is sent", "as it stands still"]
)
def test_migration_survives_killed_controller(
    vm: RealKubernetes, session: Session, stands_still: bool, then: tuple[str, int]
) -> None:
    """The other replica continues the migration; until then the guest is paused, or runs at one end."""
    before, asked = status(vm), Session(session.namespace, status(vm)["extraNetIP"], patience=LONG)
    backend, leader = asked.ask("select pg_backend_pid()"), leading_controller(vm)
    path = ("virtualmachinemigrations.vm.neon.tech", f"leader-killed-{int(stands_still)}")
    kind = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration", "metadata": {"name": path[1]}}
    with answers_of(asked) as answers:
        vm.apply({**kind, "spec": {"vmName": "db", "completionTimeout": 120}})
        eventually(lambda: vm.get(*path).get("status", {}).get("phase") not in {None, "", "Pending"}, "it has begun")
        if stands_still:
            eventually(lambda: time.monotonic() - answers[-1] > STANDSTILL, "the guest stands still", every=0.02)
        os.kill(leader, signal.SIGKILL)
        until_ended(vm, path)
        ended_at = time.monotonic()
        eventually(lambda: answers[-1] > ended_at, "the guest answers", LONG)
    until_moved(vm, path)
    assert (status(vm)["node"] != before["node"], asked.ask("select pg_backend_pid()")) == (True, backend)
    asked.close()
    eventually(lambda: len(vm.get("pods", PODS)["items"]) == 1, "one pod is left")
    want(vm, *then)
    eventually(lambda: has(vm, *then), "it follows its agent")
    until_books_agree(vm)
    vm.wait("condition=Available", "deployment/neonvm-controller", namespace="kube-system")


def until_moved(cluster: RealKubernetes, path: tuple[str, str]) -> None:
    """Returns once a migration has ended, which must have succeeded."""
    until_ended(cluster, path)
    found = cluster.get(*path)["status"]
    assert found["phase"] == "Succeeded", found


def until_ended(cluster: RealKubernetes, path: tuple[str, str]) -> None:
    """Returns once a migration has ended, well or badly."""
    eventually(
        lambda: cluster.get(*path).get("status", {}).get("phase") in {"Succeeded", "Failed"}, "the migration has ended"
    )


@contextmanager
def answers_of(session: Session) -> Iterator[list[float]]:
    """Times of the guest's responses to repeated requests."""
    answers, over = [time.monotonic()], threading.Event()

    def ask() -> None:
        while not over.is_set():
            session.ask("select 1")
            answers.append(time.monotonic())

    worker = threading.Thread(target=ask)
    worker.start()
    try:
        yield answers
    finally:
        over.set()
        worker.join()


def test_target_pod_requests_the_vms_permit(vm: RealKubernetes) -> None:
    """B.10: before it is bound it requests all that the VM has reserved, and no node is ever promised twice."""
    with following(vm), client_of(vm.kubeconfig) as http:
        eventually(lambda: requested(vm) == [size_of(vm)], "its pod requests what it has", 180.0)
        source, held = status(vm)["podName"], size_of(vm)
        room = {node: room_of(vm, node) for node in NODES}
        with History(http, {"pods": "/api/v1/namespaces/default/pods"}) as history:
            name = "with-requests"
            kind = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration", "metadata": {"name": name}}
            vm.apply({**kind, "spec": {"vmName": "db", "completionTimeout": 120}})
            path = ("virtualmachinemigrations.vm.neon.tech", name)
            until_moved(vm, path)
            eventually(lambda: len(vm.get("pods", PODS)["items"]) == 1, "one pod is left")
        pods = [each.found for each in sorted(history.events, key=lambda each: each.revision)]
        bound = [each for each in pods if each["metadata"]["name"] != source and each["spec"].get("nodeName")]
        assert [runner_requests(each) for each in bound] == [held] * len(bound)
        assert overcommitted(history.events, room) == []
        want(vm, "1", 3)
        eventually(lambda: has(vm, "1", 3) and requested(vm) == [size_of(vm)], "requests come back after it")
        until_books_agree(vm)
    eventually(lambda: requested(vm) == [FIRST], "switched off, they are what the pod was made with", 180.0)


def test_guest_migrates_for_deferred_resize(vm: RealKubernetes, session: Session) -> None:
    """B.14: from the kubelet's verdict to the resize that it makes. The guest's sessions go with it."""
    node, backend = status(vm)["node"], session.ask("select pg_backend_pid()")
    web = NeighbourPod(vm, node)
    want(vm, "1", 3)
    try:
        with following(vm), movable(vm):
            eventually(lambda: requested(vm) == [size_of(vm)] == [SMALL], "its pod requests what it has", 180.0)
            web.start()
            wanted = web.wish()
            web.resize(wanted)
            eventually(lambda: web.pending() == ["Deferred"], "the kubelet puts it off", 30.0)
            began = time.monotonic()
            eventually(lambda: web.granted() == wanted, "the kubelet has resized it")
            took = time.monotonic() - began
            print(f"from Deferred to resized, a guest moved between: {took:.1f} s")
            assert (web.pending(), took < MINUTE) == ([], True), took
            assert (status(vm)["node"] != node, session.ask("select pg_backend_pid()")) == (True, backend)
            (move,) = (each for each in vm.get(MIGRATION_PLURAL)["items"] if is_for_room(each))
            assert (move["spec"]["vmName"], move["status"]["phase"]) == ("db", "Succeeded")
            until_books_agree(vm)
    finally:
        web.end()


def is_for_room(migration: dict[str, Any]) -> bool:
    """True if our scheduler ordered it for what the node lacks.

    The cluster's VMs move after three seconds above the watermark, too (``with_short_delays``): if the planner looks
    between the patch of the pod and its kubelet's verdict, those end first.
    """
    why = migration["metadata"].get("annotations", {}).get("autoscaling.neon.tech/reason", "")
    return "defers a pod's resize" in why or "above its watermark" in why
