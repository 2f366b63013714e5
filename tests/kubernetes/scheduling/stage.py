"""A namespace, nodes that no kubelet has, VMs without guests and their pods: what a story of placement is played on.

The nodes are tainted, so that only the stories' own pods go there; those tolerate it, and that no kubelet reports.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2 as httpx

from protocol.names import TOKEN_AUDIENCE, VM_GROUP, VM_KIND, VM_PLURAL, VM_VERSION
from protocol.units import Resources
from tests.conformance.cluster import MERGE_PATCH, done
from tests.kubernetes.real_kubernetes import NotYetError, eventually
from tests.kubernetes.scheduling.books import PODS, VMS, Books, Obj, reserved
from tests.kubernetes.scheduling.history import History
from tests.kubernetes.scheduling.programs import Programs

MADE_UP: Final = "autoscale.test/made-up"
TOLERATED: Final = [
    {"key": key, "operator": "Exists"}
    for key in (MADE_UP, "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
]
SYSTEM: Final = Resources.parse("500m", "1Gi")
"""What the manifest's settings keep back on every node."""

AT_ONCE: Final = 8
_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
_NUMBERS: Final = itertools.count(1)


@dataclass(slots=True)
class Stage:
    """The nodes and pods of one test. Its nodes have a label, and its pods are placed only there."""

    http: httpx.Client
    programs: Programs
    name: str
    rooms: Books = field(default_factory=dict)
    has_priority: bool = False

    def path(self, plural: str, name: str = "") -> str:
        """A collection of the story's namespace, or an object in it."""
        root = f"/apis/{VM_GROUP}/{VM_VERSION}" if plural == VM_PLURAL else "/api/v1"
        return f"{root}/namespaces/{self.name}/{plural}" + (f"/{name}" if name else "")

    def set_up(self) -> None:
        """The namespace, and the service account of its pods."""
        done(self.http.post("/api/v1/namespaces", json={"metadata": {"name": self.name}}))
        for account in ("agent", "other"):
            done(self.http.post(self.path("serviceaccounts"), json={"metadata": {"name": account}}))

    def take_down(self) -> None:
        """Removes everything. Pods go first: nothing would end those of a node that is not there."""
        self.http.delete(self.path(PODS), params={"gracePeriodSeconds": "0"})
        with ThreadPoolExecutor(AT_ONCE) as hands:  # the API server alone would delete them one after another
            list(hands.map(lambda node: self.http.delete(f"/api/v1/nodes/{node}"), self.rooms))
        self.http.delete(f"/api/v1/namespaces/{self.name}")
        if self.has_priority:
            self.http.delete(f"{_CLASSES}/{self.name}")

    # What there is ------------------------------------------------------------------------------------------------

    def node(self, name: str, cpu: str = "4500m", mem: str = "17Gi", **labels: str) -> str:
        """A node of that size, of which the manifest's settings keep ``SYSTEM`` back; its whole name."""
        whole = f"{self.name}-{name}"
        size = {"cpu": cpu, "memory": mem, "pods": "500"}
        body = {
            "metadata": {"name": whole, "labels": {"story": self.name, "kubernetes.io/hostname": whole, **labels}},
            "spec": {"taints": [{"key": MADE_UP, "effect": "NoSchedule"}]},
            "status": {"allocatable": size, "capacity": size},
        }
        done(self.http.post("/api/v1/nodes", json=body))
        self.rooms[whole] = Resources.parse(cpu, mem) - SYSTEM
        return whole

    def vm(self, name: str, cpu: object = 1, slots: int = 2) -> Obj:
        """A VM with 500m to 16 vCPUs and 1 to 64 slots of 1Gi, whose guest has what the spec asks for."""
        guest = {
            "cpus": {"min": "500m", "max": 16, "use": cpu},
            "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "max": 64, "use": slots},
            "rootDisk": {"image": "example.invalid/image"},
        }
        labels = {"autoscaling.neon.tech/enabled": "true", "autoscaling.neon.tech/auto-migration-enabled": "false"}
        body = {
            "apiVersion": f"{VM_GROUP}/{VM_VERSION}",
            "kind": VM_KIND,
            "metadata": {"name": name, "labels": labels},
            "spec": {"schedulerName": "autoscale-scheduler", "guest": guest},
        }
        done(self.http.post(self.path(VMS), json=body))
        return self.guest_has(name, cpu, slots)

    def guest_has(self, vm: str, cpu: object, slots: int) -> Obj:
        """The VM's guest has that size now, as NeonVM's controller says it."""
        status = {"phase": "Running", "cpus": cpu, "memorySize": f"{slots}Gi"}
        return self.patch(f"{self.path(VMS, vm)}/status", {"status": status})

    def vm_pod(self, vm: Obj, name: str, cpu: str = "100m", mem: str = "128Mi", **spec: Any) -> Obj:
        """A new pod that runs the VM; it asks for less than the VM has, as pods of VMs that grow do."""
        owner = {key: vm[key] for key in ("apiVersion", "kind")}
        owner |= {key: vm["metadata"][key] for key in ("name", "uid")}
        return self.pod(name, cpu, mem, owners=[{**owner, "controller": True}], **spec)

    def pod(self, name: str, cpu: str = "1", mem: str = "1Gi", *, owners: Iterable[Obj] = (), **spec: Any) -> Obj:
        """A new pod that our scheduler is to place on one of the story's nodes. ``spec`` adds to its spec."""
        resources = {"requests": {"cpu": cpu, "memory": mem}}
        container = {"name": "neonvm-runner", "image": "example.invalid/image", "resources": resources}
        metadata = {"name": name, "labels": spec.pop("labels", {}), "ownerReferences": list(owners)}
        whole = {
            "schedulerName": "autoscale-scheduler",
            "serviceAccountName": "agent",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"story": self.name},
            "tolerations": TOLERATED,
            "containers": [container],
            **spec,
        }
        return done(self.http.post(self.path(PODS), json={"metadata": metadata, "spec": whole}))

    def priority(self) -> str:
        """The class of a priority above that of other pods."""
        done(self.http.post(_CLASSES, json={"metadata": {"name": self.name}, "value": 1000}))
        self.has_priority = True
        return self.name

    def patch(self, path: str, body: Obj, by: str = "") -> Obj:
        """A merge patch, in the name of the user ``by`` if one is given; the object that it makes."""
        headers = {"Content-Type": MERGE_PATCH, **({"Impersonate-User": by} if by else {})}
        return done(self.http.patch(path, json=body, headers=headers))

    def delete_pods(self, *names: str) -> None:
        """Deletes pods at once, as a kubelet does that has ended their containers; all where none is named."""
        query = {"gracePeriodSeconds": "0"}
        if not names:
            done(self.http.delete(self.path(PODS), params=query))
            return
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda name: done(self.http.delete(self.path(PODS, name), params=query)), names))

    def token(self, pod: Obj, account: str = "agent", audience: str = TOKEN_AUDIENCE) -> str:
        """A token that is bound to the pod, as the kubelet asks for it. Empty where the API server refuses."""
        meta = pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        body = {"spec": {"audiences": [audience], "boundObjectRef": bound}}
        answer = self.http.post(f"{self.path('serviceaccounts', account)}/token", json=body)
        return str(answer.json()["status"]["token"]) if answer.is_success else ""

    # What is seen -------------------------------------------------------------------------------------------------

    def pods(self) -> list[Obj]:
        """All pods of the story."""
        return list(done(self.http.get(self.path(PODS)))["items"])

    def pod_names(self) -> set[str]:
        """The names of all pods of the story."""
        return {each["metadata"]["name"] for each in self.pods()}

    def get(self, plural: str, name: str) -> Obj:
        """One object."""
        return done(self.http.get(self.path(plural, name)))

    def placed(self) -> dict[str, str]:
        """The node of each pod that has one."""
        return {
            each["metadata"]["name"]: each["spec"]["nodeName"] for each in self.pods() if "nodeName" in each["spec"]
        }

    def refused(self) -> dict[str, str]:
        """Message of each pod that kube-scheduler has rejected."""
        return {
            each["metadata"]["name"]: said
            for each in self.pods()
            if "nodeName" not in each["spec"] and (said := why_not(each))
        }

    def until_placed(self, *names: str, seconds: float = 30.0) -> dict[str, str]:
        """The nodes of these pods, once all have one."""
        try:
            eventually(lambda: set(names) <= self.placed().keys(), f"{', '.join(names)} placed", seconds)
        except NotYetError as error:
            raise NotYetError(f"{error}: {self.refused()}") from None
        return {name: node for name, node in self.placed().items() if name in names}

    def until_refused(self, *names: str) -> dict[str, str]:
        """Messages of these pods, once all have been rejected."""
        eventually(lambda: set(names) <= self.refused().keys(), f"{', '.join(names)} refused", 30.0)
        return {name: said for name, said in self.refused().items() if name in names}

    def until_refused_but(self, placed: int) -> list[str]:
        """The pods that are left, once this many of the pods of app ``db`` have a node and all others were refused."""
        pods = [each["metadata"]["name"] for each in self.pods() if each["metadata"].get("labels", {}).get("app")]

        def is_so() -> bool:
            found, refused = self.placed(), self.refused()
            return [sum(pod in found for pod in pods), sum(pod in refused for pod in pods)] == [
                placed,
                len(pods) - placed,
            ]

        eventually(is_so, f"{placed} of {len(pods)} placed", 30.0)
        return [pod for pod in pods if pod in self.refused()]

    def books(self) -> Books:
        """Reservations of the test's nodes, computed from the objects at one revision."""
        pods = done(self.http.get(self.path(PODS)))
        exactly = {"resourceVersion": pods["metadata"]["resourceVersion"], "resourceVersionMatch": "Exact"}
        return reserved(pods["items"], done(self.http.get(self.path(VMS), params=exactly))["items"])

    def their_books(self) -> Books:
        """Reservations of the test's nodes with pods, according to our scheduler."""
        status, said = self.programs.get("/nodes")
        assert status == 200, said
        return {
            node["name"]: Resources.parse(node["reserved"]["cpu"], node["reserved"]["mem"])
            for node in said["nodes"]
            if node["name"] in self.rooms and node["pods"]
        }

    def until_books_agree(self) -> None:
        """Wait until our scheduler's ledger matches the API's objects."""
        try:
            eventually(lambda: self.books() == self.their_books(), "the book is that of the API", 10.0)
        except NotYetError as error:
            raise NotYetError(f"{error}: by objects {_told(self.books())}, by us {_told(self.their_books())}") from None

    def history(self) -> History:
        """A recording of the story's pods and VMs."""
        return History(self.http, {plural: self.path(plural) for plural in (PODS, VMS)})


@contextmanager
def new_stage(http: httpx.Client, programs: Programs, prefix: str) -> Iterator[Stage]:
    """A stage with its own number; it is removed at the end of the test."""
    programs.mend()
    made = Stage(http, programs, f"{prefix}-{next(_NUMBERS)}")
    made.set_up()
    try:
        yield made
    finally:
        made.take_down()


def why_not(pod: Obj) -> str:
    """The message of the pod's scheduling condition."""
    said = [each for each in pod["status"].get("conditions", []) if each["type"] == "PodScheduled"]
    return str(said[0].get("message") or said[0].get("reason")) if said and said[0]["status"] == "False" else ""


def _told(books: Books) -> dict[str, str]:
    return {node: str(amount) for node, amount in sorted(books.items())}
