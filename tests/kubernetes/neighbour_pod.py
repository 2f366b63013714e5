"""An ordinary pod next to a VM on a real node: it may request room, and its kubelet resizes it in place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from protocol.names import LABEL_MAKE_ROOM
from protocol.units import MilliCpu, Resources
from tests.kubernetes.real_kubernetes import RealKubernetes, busybox_pod
from tests.kubernetes.scheduling.books import requests_of

WEB: Final = "web"
_TOO_MUCH: Final = MilliCpu(200)


@dataclass(frozen=True, slots=True)
class NeighbourPod:
    """The pod ``web`` on ``node``."""

    cluster: RealKubernetes
    node: str
    namespace: str = "default"

    def start(self, asks: str = "true") -> None:
        """Returns once it runs, small. ``asks`` is its label for room."""
        resources = {"requests": {"cpu": "50m", "memory": "16Mi"}}
        pod = busybox_pod(WEB, "sleep", "1200", node=self.node, resources=resources)
        pod["metadata"] |= {"labels": {LABEL_MAKE_ROOM: asks}, "namespace": self.namespace}
        self.cluster.apply(pod)
        self.cluster.wait("condition=Ready", f"pod/{WEB}", namespace=self.namespace)

    def end(self) -> None:
        """Delete the pod, if it exists."""
        self.cluster.kubectl("delete", f"pod/{WEB}", self._place, "--ignore-not-found")

    def wish(self) -> MilliCpu:
        """An amount of the node's CPU that fits only after the VM has left."""
        allocatable = MilliCpu.parse(self.cluster.get("node", self.node)["status"]["allocatable"]["cpu"])
        others = Resources.sum(requests_of(each) for each in self._there() if each["metadata"]["name"] != WEB)
        return allocatable - others.cpu + _TOO_MUCH

    def resize(self, cpu: MilliCpu) -> None:
        """A person wants it that large."""
        larger = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu.quantity()}}}]}}
        self.cluster.kubectl("patch", "pod", WEB, self._place, "--subresource=resize", f"--patch={json.dumps(larger)}")

    def pending(self) -> list[str]:
        """Reasons why its resize is pending."""
        return [each["reason"] for each in self._status.get("conditions", []) if each["type"] == "PodResizePending"]

    def granted(self) -> MilliCpu:
        """Resources granted by its kubelet."""
        return MilliCpu.parse(self._status["containerStatuses"][0]["resources"]["requests"]["cpu"])

    @property
    def _place(self) -> str:
        return f"--namespace={self.namespace}"

    @property
    def _status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.get("pod", WEB, self._place)["status"]
        return found

    def _there(self) -> list[dict[str, Any]]:
        found = self.cluster.get("pods", "--all-namespaces")["items"]
        here = (each for each in found if each["spec"].get("nodeName") == self.node)
        return [each for each in here if each["status"].get("phase") not in {"Succeeded", "Failed"}]
