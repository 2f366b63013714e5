"""Workloads with groups over them, in a namespace of their own on a real Kubernetes; and what the cluster says of them.

Nothing here takes much: a busy pod may use a twentieth of a CPU, asks for a hundredth, and rests after 90 s.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx

from deploy.local.kubernetes.plan.cluster_plan import BUSYBOX_IMAGE
from protocol.kubernetes.resources import DEPLOYMENTS, HVPAS, Resource
from tests.kubernetes.real_kubernetes import NotYetError, RealKubernetes, eventually

NAMESPACE = "scaled"
IDLE = "exec sleep 3600"
BUSY = f"busybox timeout 90 sh -c 'while :; do :; done'; {IDLE}"
SMALL = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "50m", "memory": "64Mi"}}
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment"}
SYSTEM = "kube-system"

Object = dict[str, Any]
Condition = tuple[str, str, str]


def deployment(name: str, command: str = IDLE, containers: tuple[str, ...] = ("app",)) -> Object:
    """A Deployment of one small pod whose containers run ``command``."""
    pod = {"terminationGracePeriodSeconds": 0, "containers": [container(each, command) for each in containers]}
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {**DEPLOYMENT, "metadata": {"name": name}, "spec": spec}


def container(name: str, command: str) -> Object:
    """A small container."""
    image = {"image": BUSYBOX_IMAGE, "imagePullPolicy": "Never"}
    return {"name": name, **image, "command": ["sh", "-c", command], "resources": SMALL}


def hvpa(name: str, target: Object | None = None, **spec: Any) -> Object:
    """An Hvpa over the Deployment of its name, or over ``target``, that follows small changes."""
    quick = {"minCpuChange": {"value": "5m"}, "minMemChange": {"value": "1M"}}
    body = {"targetRef": target or {**DEPLOYMENT, "name": name}, **quick, **spec}
    return {"apiVersion": HVPAS.api_version, "kind": HVPAS.kind, "metadata": {"name": name}, "spec": body}


def hpa(name: str, target: Object, *metrics: Object, most: int = 3) -> Object:
    """An HPA of people's."""
    spec = {"minReplicas": 1, "maxReplicas": most, "scaleTargetRef": target, "metrics": list(metrics)}
    kind = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


def prompt(autoscaler: Object) -> Object:
    """An HPA that takes replicas as soon as fewer are enough."""
    spec = {**autoscaler["spec"], "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}
    return {**autoscaler, "spec": spec}


def cpu_metric(**target: Any) -> Object:
    """A metric of whole pods' CPU."""
    return {"type": "Resource", "resource": {"name": "cpu", "target": target}}


def vpa(name: str, target: Object, mode: str = "Off") -> Object:
    """A VPA of people's."""
    kind = {"apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler"}
    return {**kind, "metadata": {"name": name}, "spec": {"targetRef": target, "updatePolicy": {"updateMode": mode}}}


def tortoise(name: str, attached: str = "", **spec: Any) -> Object:
    """A Tortoise over the Deployment of its name."""
    references: Object = {"scaleTargetRef": {**DEPLOYMENT, "name": name}}
    if attached:
        references["horizontalPodAutoscalerName"] = attached
    kind = {"apiVersion": "autoscaling.mercari.com/v1beta3", "kind": "Tortoise"}
    return {**kind, "metadata": {"name": name}, "spec": {"updateMode": "Auto", "targetRefs": references, **spec}}


@dataclass(frozen=True, slots=True)
class Scene:
    """The namespace of these tests. ``api`` asks the cluster as people: a kubectl for each look would be most of the
    work.
    """

    cluster: RealKubernetes
    api: httpx.Client

    def apply(self, *objects: Object) -> None:
        """Creates or changes objects."""
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.cluster.kubectl("apply", f"--namespace={NAMESPACE}", "--filename=-", typed=listed)

    def get(self, kind: Resource, name: str, namespace: str = NAMESPACE) -> Object:
        """One object; an empty one if there is none."""
        answer = self.api.get(kind.path(namespace, name))
        found: Object = {} if answer.status_code == httpx.codes.NOT_FOUND else answer.raise_for_status().json()
        return found

    def list(self, kind: Resource, selector: str, namespace: str = NAMESPACE) -> Any:
        """All objects of a kind with those labels."""
        answer = self.api.get(kind.path(namespace), params={"labelSelector": selector})
        return answer.raise_for_status().json()["items"]

    def patch(self, kind: Resource, name: str, body: Object, subresource: str = "") -> None:
        """Merges ``body`` into an object."""
        headers = {"Content-Type": "application/merge-patch+json"}
        path = kind.path(NAMESPACE, name, subresource)
        self.api.patch(path, content=json.dumps(body), headers=headers).raise_for_status()

    def status(self, kind: Resource, name: str) -> Object:
        """The object's status; empty if there is none."""
        found: Object = self.get(kind, name).get("status", {})
        return found

    def condition(self, kind: Resource, name: str, about: str) -> Condition:
        """Status, reason and message of one condition; empty if it is not there."""
        for each in self.status(kind, name).get("conditions") or ():
            if each["type"] == about:
                return each["status"], each.get("reason", ""), each.get("message", "")
        return "", "", ""

    def becomes(self, kind: Resource, name: str, about: str, *expected: str) -> Condition:
        """The condition, once its status (and reason) are as ``expected``."""
        what = f"{kind.kind} {name} {about}"
        self.until(lambda: self.condition(kind, name, about)[: len(expected)], expected, what)
        return self.condition(kind, name, about)

    def until(self, look: Callable[[], Any], expected: Any, what: str) -> None:
        """Wait until ``look`` returns the ``expected`` value. Raises ``NotYetError`` with the last value."""
        try:
            eventually(lambda: bool(look() == expected), what)
        except NotYetError as error:
            raise NotYetError(f"{error}; expected {expected}, got {look()}") from None

    def requests(self, name: str) -> Object:
        """Requests of the first container in a Deployment's template."""
        found = self.get(DEPLOYMENTS, name)["spec"]["template"]["spec"]["containers"][0]
        requests: Object = found["resources"]["requests"]
        return requests

    def replicas(self, name: str) -> int:
        """Desired replicas of a Deployment."""
        return int(self.get(DEPLOYMENTS, name)["spec"]["replicas"])

    def writers_of_replicas(self, name: str) -> set[tuple[str, str]]:
        """Managers that wrote a Deployment's replicas, with the subresource."""
        return {
            (each["manager"], each.get("subresource", ""))
            for each in self.get(DEPLOYMENTS, name)["metadata"]["managedFields"]
            if "f:replicas" in each["fieldsV1"].get("f:spec", {})
        }
