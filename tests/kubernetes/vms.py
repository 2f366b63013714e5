"""A VM on real nodes with its agent: its size, its desired size, and its reservations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import yaml

from protocol.kubernetes.api import ApiError
from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_CONFIG, MIGRATION_PLURAL, VM_KIND
from protocol.units import ZERO, Resources
from tests import plain_yaml
from tests.kubernetes.flat_client import flat_client
from tests.kubernetes.pod_processes import processes_of
from tests.kubernetes.postgres_session import PATIENCE, Session, password_of
from tests.kubernetes.real_kubernetes import NotYetError, RealKubernetes, eventually
from tests.kubernetes.scheduling.books import Books, Obj, needs_of, requests_of

NODES: Final = ("node-1", "node-2")
PODS: Final = "--selector=vm.neon.tech/name=db"
FIRST: Final = Resources.parse("100m", "128Mi")
"""What the VM's pods are made with."""

_SLOT_MIB: Final = 128
_POD_SECURITY: Final = "pod-security.kubernetes.io/enforce"
_SYSTEM: Final = "--namespace=kube-system"


def bounds(cpu: str, slots: int) -> str:
    """The annotation with which there is one size that the agent may choose."""
    size = {"cpu": cpu, "mem": f"{slots * _SLOT_MIB}Mi"}
    return json.dumps({"min": size, "max": size})


VM: Final[dict[str, Any]] = {
    "apiVersion": "vm.neon.tech/v1",
    "kind": VM_KIND,
    "metadata": {
        "name": "db",
        "namespace": "default",
        "labels": {"autoscaling.neon.tech/enabled": "true", "autoscaling.neon.tech/auto-migration-enabled": "false"},
        "annotations": {ANNOTATION_BOUNDS: bounds("1", 3)},
    },
    "spec": {
        "schedulerName": "autoscale-scheduler",
        "extraNetwork": {"enable": True},
        "terminationGracePeriodSeconds": 20,
        "podResources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "guest": {
            "cpus": {"min": "250m", "max": 2, "use": 1},
            "memorySlotSize": f"{_SLOT_MIB}Mi",
            "memorySlots": {"min": 2, "max": 8, "use": 3},
            "rootDisk": {"image": "localhost:5001/postgres-vm:dev"},
            "ports": [{"port": 5432}],
        },
    },
}


@contextmanager
def booted(cluster: RealKubernetes) -> Iterator[None]:
    """The VM, from its database's first answer, in a namespace without privileged pods. It is removed afterwards."""
    cluster.kubectl("label", "namespace", "default", f"{_POD_SECURITY}=baseline")
    cluster.apply(password_of("db"), VM)
    try:
        eventually(lambda: _is_available(cluster), "the VM is ready", 240.0)
        yield
    finally:
        cluster.kubectl("delete", "neonvm/db", "--ignore-not-found")
        eventually(lambda: not cluster.get("pods", PODS)["items"], "its pod is gone")
        cluster.kubectl("label", "namespace", "default", f"{_POD_SECURITY}-")


def _is_available(cluster: RealKubernetes) -> bool:
    conditions = {each["type"]: each["status"] for each in status(cluster).get("conditions", [])}
    return conditions.get("Available") == "True"


@contextmanager
def flat_session(cluster: RealKubernetes, patience: float = PATIENCE) -> Iterator[Session]:
    """A session with the VM's database over the flat network, which waits ``patience`` seconds for an answer."""
    with flat_client(cluster) as client:
        opened = Session(client, status(cluster)["extraNetIP"], patience)
        yield opened
        opened.close()


def leader_of(cluster: RealKubernetes) -> str:
    """The controller that acts, as its Lease names it."""
    return str(cluster.get("lease", "neonvm-controller", _SYSTEM)["spec"]["holderIdentity"])


def leading_controller(cluster: RealKubernetes) -> int:
    """The process of the replica that acts."""
    holder = leader_of(cluster)
    pods = cluster.get("pods", _SYSTEM, "--selector=app.kubernetes.io/name=neonvm-controller")["items"]
    (uid,) = (each["metadata"]["uid"] for each in pods if holder.startswith(each["metadata"]["name"]))
    (process,) = processes_of(uid, "neonvm-controller")
    return process


def status(cluster: RealKubernetes) -> dict[str, Any]:
    """The VM's status."""
    found: dict[str, Any] = cluster.get("neonvm", "db").get("status", {})
    return found


def want(cluster: RealKubernetes, cpu: str, slots: int) -> None:
    """From now on the VM's agent is to bring it to that size; it asks our scheduler for it."""
    cluster.kubectl("annotate", "--overwrite", "neonvm/db", f"{ANNOTATION_BOUNDS}={bounds(cpu, slots)}")


def let(cluster: RealKubernetes, least: tuple[str, int], most: tuple[str, int], policy: Obj) -> None:
    """From now on the VM's agent may choose between two sizes, by that policy."""
    low, high = ({"cpu": cpu, "mem": f"{slots * _SLOT_MIB}Mi"} for cpu, slots in (least, most))
    told = {ANNOTATION_BOUNDS: json.dumps({"min": low, "max": high}), ANNOTATION_CONFIG: json.dumps(policy)}
    cluster.kubectl("annotate", "--overwrite", "neonvm/db", *(f"{name}={text}" for name, text in told.items()))


def monitor_of(cluster: RealKubernetes) -> Obj:
    """The agent's report on the guest's monitor."""
    found: Obj = cluster.explained(f"default/{status(cluster)['podName']}", 9101, "/explain")["monitor"]
    return found


def has(cluster: RealKubernetes, cpu: str, slots: int) -> bool:
    """True if the guest has that size."""
    found = status(cluster)
    size = found.get("cpus") or "0", found.get("memorySize") or "0"
    return Resources.parse(*size) == Resources.parse(cpu, f"{slots * _SLOT_MIB}Mi")


def their_books(cluster: RealKubernetes) -> Books:
    """Reservations of each node according to our scheduler."""
    nodes = cluster.explained(_scheduler(cluster), 10297, "/nodes")["nodes"]
    return {each["name"]: Resources.parse(each["reserved"]["cpu"], each["reserved"]["mem"]) for each in nodes}


def until_books_agree(cluster: RealKubernetes) -> None:
    """Wait until our scheduler's ledger matches the API's objects. A killed kubelet reports nothing meanwhile."""

    def agree() -> bool:
        try:
            return own_books(cluster) == their_books(cluster)
        except ApiError:
            return False

    try:
        eventually(agree, "the book is that of the API", 60.0)
    except NotYetError as error:
        raise NotYetError(f"{error}: by objects {own_books(cluster)}, by us {their_books(cluster)}") from None


def own_books(cluster: RealKubernetes) -> Books:
    """The same, from objects of the API and nothing that the scheduler says."""
    vms = {vm["metadata"]["uid"]: vm for vm in cluster.get("neonvm", "--all-namespaces")["items"]}
    books = dict.fromkeys(NODES, ZERO)
    for pod in cluster.get("pods", "--all-namespaces")["items"]:
        node = pod["spec"].get("nodeName")
        if node is not None and pod["status"].get("phase") not in {"Succeeded", "Failed"}:
            books[node] += _held_by(pod, vms)
    return books


def _held_by(pod: Obj, vms: dict[str, Obj]) -> Resources:
    sidecars = [each for each in pod["spec"].get("initContainers", ()) if each.get("restartPolicy") == "Always"]
    owner = next((each for each in pod["metadata"].get("ownerReferences", ()) if each["kind"] == VM_KIND), None)
    # A VM that sleeps needs less than its pod requests.
    guest = requests_of(pod).at_least(ZERO if owner is None else needs_of(vms[owner["uid"]]))
    return guest + requests_of({"spec": {"containers": sidecars}})


def size_of(cluster: RealKubernetes) -> Resources:
    """The guest's size."""
    found = status(cluster)
    return Resources.parse(found["cpus"], found["memorySize"])


def requested(cluster: RealKubernetes) -> list[Resources]:
    """Requests of the guest's container in each pod of the VM."""
    return [runner_requests(each) for each in cluster.get("pods", PODS)["items"]]


def runner_requests(pod: Obj) -> Resources:
    """Requests of the guest's container."""
    return requests_of({"spec": {"containers": [each for each in pod["spec"]["containers"] if is_runner(each)]}})


def is_runner(container: Obj) -> bool:
    """True if a guest runs in it."""
    return bool(container["name"] == "neonvm-runner")


def room_of(cluster: RealKubernetes, node: str) -> Resources:
    """Room of the node for VM pods, without the cluster's own pods."""
    found = cluster.get("node", node)["status"]["allocatable"]
    others = cluster.get("pods", "--namespace=kube-system", f"--field-selector=spec.nodeName={node}")["items"]
    return Resources.parse(found["cpu"], found["memory"]) - Resources.sum(map(requests_of, others))


@contextmanager
def following(cluster: RealKubernetes) -> Iterator[None]:
    """Requests of pods follow their VMs while this is entered."""
    _set(cluster, follows=True)
    try:
        yield
    finally:
        _set(cluster, follows=False)


@contextmanager
def movable(cluster: RealKubernetes) -> Iterator[None]:
    """While entered, our scheduler may move the VM on its own, as one that has not moved recently."""
    label = "autoscaling.neon.tech/auto-migration-enabled"
    cluster.kubectl("delete", MIGRATION_PLURAL, "--all")
    cluster.kubectl("label", "--overwrite", "neonvm/db", f"{label}=true")
    try:
        yield
    finally:
        cluster.kubectl("label", "--overwrite", "neonvm/db", f"{label}=false")


def _set(cluster: RealKubernetes, *, follows: bool) -> None:
    name = ("configmap", "autoscaling-scheduler-config", "--namespace=kube-system")
    settings = plain_yaml.load(cluster.get(*name)["data"]["config.yaml"])
    settings["permits"] = {**settings.get("permits", {}), "asPodRequests": follows}
    patch = json.dumps({"data": {"config.yaml": yaml.safe_dump(settings)}})
    cluster.kubectl("patch", *name, "--type=merge", f"--patch={patch}")
    eventually(lambda: _follows(cluster) is follows, "the scheduler has the settings", 180.0)


def _follows(cluster: RealKubernetes) -> bool:
    """True if the scheduler's settings let requests follow."""
    cluster.look_anew("kube-system", "autoscaling-scheduler")
    return bool(cluster.explained(_scheduler(cluster), 10297, "/settings")["pod_requests"])


def _scheduler(cluster: RealKubernetes) -> str:
    """The only replica's pod."""
    (pod,) = cluster.get("pods", "--namespace=kube-system", "--selector=app.kubernetes.io/name=autoscaling-scheduler")[
        "items"
    ]
    return f"kube-system/{pod['metadata']['name']}"
