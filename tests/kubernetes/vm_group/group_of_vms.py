"""A VirtualMachineGroup of a test on real nodes, and the HPA over it: small guests that take a CPU each at most."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx2 as httpx

from protocol.kubernetes.resources import (
    ENDPOINT_SLICES,
    HORIZONTAL_AUTOSCALERS,
    PODS,
    VIRTUAL_MACHINES,
    VM_GROUPS,
    Resource,
)
from protocol.units import MilliCpu
from tests.kubernetes.object_watch import Object, watched
from tests.kubernetes.real_kubernetes import NotYetError

NAME: Final = "shop"
PRIMARY: Final = f"{NAME}-primary"
FIRST: Final = f"{NAME}-replica-0"
SECOND: Final = f"{NAME}-replica-1"
READS: Final = f"{NAME}-read"
BUSY: Final = MilliCpu(400)
"""An emulated guest takes 50 to 120m to rest, 164m where the machine is slow; two are one too many below half of this.
To work it takes what it gets of a busy machine.
"""

_METRICS: Final = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods"
_SETTLED: Final = {"stabilizationWindowSeconds": 20}
_GROUP: Final = {"apiVersion": VM_GROUPS.api_version, "kind": VM_GROUPS.kind}

GROUP: Final[dict[str, Any]] = {
    **_GROUP,
    "metadata": {"name": NAME, "namespace": "default"},
    "spec": {
        "replicas": 1,
        "template": {
            "metadata": {"labels": {"autoscaling.neon.tech/enabled": "true"}},
            "spec": {
                "schedulerName": "autoscale-scheduler",
                "terminationGracePeriodSeconds": 10,
                "guest": {
                    "cpus": {"min": 1, "max": 1, "use": 1},
                    "memorySlotSize": "128Mi",
                    "memorySlots": {"min": 4, "max": 4, "use": 4},
                    "rootDisk": {"image": "localhost:5001/postgres-vm:dev"},
                    "ports": [{"name": "postgres", "port": 5432}],
                },
            },
        },
        "drain": {"gracePeriod": "10s"},
    },
}
HPA: Final[dict[str, Any]] = {
    "apiVersion": HORIZONTAL_AUTOSCALERS.api_version,
    "kind": HORIZONTAL_AUTOSCALERS.kind,
    "metadata": {"name": NAME, "namespace": "default"},
    "spec": {
        "minReplicas": 1,
        "maxReplicas": 2,
        "scaleTargetRef": {**_GROUP, "name": NAME},
        "metrics": [
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": BUSY.quantity()}},
            }
        ],
        "behavior": {"scaleUp": _SETTLED, "scaleDown": _SETTLED},
    },
}


@dataclass(frozen=True, slots=True)
class GroupOfVms:
    """The group, from the API server."""

    api: httpx.Client

    def vm(self, name: str, holds: Callable[[Object], bool], what: str, seconds: float = 90.0) -> Object:
        """A member's VM, once ``holds`` is true for it."""
        return self._once(VIRTUAL_MACHINES, name, holds, what, seconds)

    def serves(self, *replicas: str, seconds: float) -> dict[str, str]:
        """The addresses of these replicas, once they and no others are whom the read endpoint offers to new clients."""
        try:
            return offered(
                self._once(ENDPOINT_SLICES, READS, lambda it: set(offered(it)) == set(replicas), "who serves", seconds)
            )
        except NotYetError as error:
            raise NotYetError("\n".join((str(error), *self._how_it_is()))) from error

    def wants(self, replicas: int, what: str, seconds: float) -> None:
        """Returns once this many replicas are asked for."""
        try:
            self._once(VM_GROUPS, NAME, lambda it: it["spec"]["replicas"] == replicas, what, seconds)
        except NotYetError as error:
            hpa = self.api.get(HORIZONTAL_AUTOSCALERS.path("default", NAME)).raise_for_status().json()
            told = f"its HPA: {json.dumps(hpa['status'])}\nits pods take {self._taken()}"
            raise NotYetError(f"{error}\n{told}") from error

    def rests(self) -> None:
        """Returns once the HPA has read of the replicas that they do little."""
        self._once(HORIZONTAL_AUTOSCALERS, NAME, is_calm, "the HPA reads that the replica rests", 90.0)

    def is_gone(self, *vms: str) -> None:
        """Returns once these VMs are no more."""
        for name in vms:
            self.vm(name, lambda it: not it, "its VM is gone")

    def _taken(self) -> dict[str, dict[str, str]]:
        """CPU usage of each container of each pod, as reported to the HPA."""
        found = self.api.get(_METRICS).raise_for_status().json()["items"]
        return {
            pod["metadata"]["name"]: {each["name"]: each["usage"]["cpu"] for each in pod["containers"]} for pod in found
        }

    def _how_it_is(self) -> Iterator[str]:
        """The group, each of its VMs, and the last lines of their consoles."""
        for kind in (VM_GROUPS, VIRTUAL_MACHINES):
            for each in self.api.get(kind.path("default")).raise_for_status().json()["items"]:
                yield f"{kind.kind} {each['metadata']['name']}: {json.dumps(each.get('status'))}"
                if pod := each.get("status", {}).get("podName"):
                    yield self.api.get(PODS.path("default", pod, "log"), params={"tailLines": 15}).text

    def _once(self, kind: Resource, name: str, holds: Callable[[Object], bool], what: str, seconds: float) -> Object:
        return watched(self.api, kind, name, holds, what, seconds)


def offered(found: Object) -> dict[str, str]:
    """Addresses that an EndpointSlice offers to new clients, by VM name."""
    ready = [each for each in found.get("endpoints") or () if each["conditions"]["ready"]]
    return {each["targetRef"]["name"]: each["addresses"][0] for each in ready}


def is_calm(hpa: Object) -> bool:
    """True if the HPA measures the replicas, far below its target."""
    read = hpa["status"].get("currentMetrics") or ()
    return [
        MilliCpu.parse(each["resource"]["current"]["averageValue"]) < BUSY for each in read if "resource" in each
    ] == [True]
