"""A namespace with VMs whose pods are like those of NeonVM's own controller (v0.49.1), and a stand-in for the guest.

The guest is a page of metrics where NeonVM's guest is: at an address of the pod's own.
"""

from __future__ import annotations

import json
from typing import Any, Final

from deploy.local.kubernetes.plan.cluster_plan import BUSYBOX_IMAGE
from protocol.names import ANNOTATION_BOUNDS, LABEL_ENABLED, VM_GROUP, VM_KIND, VM_VERSION
from tests.conformance.cluster import done
from tests.deploy.manifests import ROOT, documents
from tests.kubernetes.real_kubernetes import eventually
from tests.kubernetes.scheduling.books import VMS, Obj
from tests.kubernetes.scheduling.stage import Stage
from tests.scheduler_plugin.injector.pods import original

GUEST: Final = "169.254.254.254"
PAGE: Final = "tests/agent/adapters/node_exporter.txt"


def small_vm(stage: Stage, name: str) -> Obj:
    """A VM of half a CPU and 512Mi, with its guest of that size."""
    guest = {
        "cpus": {"min": "500m", "max": 2, "use": "500m"},
        "memorySlotSize": "128Mi",
        "memorySlots": {"min": 4, "max": 16, "use": 4},
        "rootDisk": {"image": "example.invalid/image"},
    }
    labels = {LABEL_ENABLED: "true", "autoscaling.neon.tech/auto-migration-enabled": "false"}
    body = {"apiVersion": f"{VM_GROUP}/{VM_VERSION}", "kind": VM_KIND, "metadata": {"name": name, "labels": labels}}
    done(
        stage.http.post(
            stage.path(VMS), json={**body, "spec": {"schedulerName": "autoscale-scheduler", "guest": guest}}
        )
    )
    status = {"phase": "Running", "cpus": "500m", "memorySize": "512Mi"}
    return stage.patch(f"{stage.path(VMS, name)}/status", {"status": status})


def want(stage: Stage, name: str, cpu: str, mem: str) -> None:
    """From now on the VM's agent is to bring it to that size."""
    size = {"cpu": cpu, "mem": mem}
    bounds = json.dumps({"min": size, "max": size})
    stage.patch(stage.path(VMS, name), {"metadata": {"annotations": {ANNOTATION_BOUNDS: bounds}}})


def prepare(stage: Stage) -> None:
    """Create the objects of ``agent-sidecar.yaml`` in a namespace with VMs, and the guests' page."""
    for each in documents("deploy/kubernetes/agent-sidecar.yaml"):
        if each["metadata"]["name"] == "autoscaling-agent-sidecar":
            continue
        made = {**each, "metadata": {**each["metadata"], "namespace": stage.name}}
        if each["kind"] == "RoleBinding":
            made["subjects"] = [{**subject, "namespace": stage.name} for subject in each["subjects"]]
        stage.programs.cluster.apply(made)
    page = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "guest", "namespace": stage.name}}
    stage.programs.cluster.apply({**page, "data": {"metrics": (ROOT / PAGE).read_text()}})
    trusted = stage.path("configmaps", "autoscaling-ca")
    eventually(lambda: "data" in done(stage.http.get(trusted)), "the authorities are in the namespace", 40.0)


def runner_pod(stage: Stage, vm: Obj, **spec: Any) -> Obj:
    """The pod of ``vm``, not made yet. ``spec`` adds to its spec."""
    name = vm["metadata"]["name"]
    found = original(**{"vm.neon.tech/name": name})
    owner = {key: vm[key] for key in ("apiVersion", "kind")} | {key: vm["metadata"][key] for key in ("name", "uid")}
    found["metadata"] |= {"name": name, "namespace": stage.name, "ownerReferences": [{**owner, "controller": True}]}
    at = {"image": BUSYBOX_IMAGE, "imagePullPolicy": "Never"}
    found["spec"]["initContainers"] = [
        {
            **at,
            "name": "init",
            "command": ["ip", "address", "add", f"{GUEST}/32", "dev", "lo"],
            "securityContext": {"privileged": True},
        }
    ]
    found["spec"]["containers"][0] |= {
        **at,
        "command": ["httpd", "-f", "-p", "9100", "-h", "/guest"],
        "volumeMounts": [{"name": "guest", "mountPath": "/guest"}],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    }
    found["spec"]["volumes"] = [{"name": "guest", "configMap": {"name": "guest"}}]
    found["spec"] |= {"schedulerName": "autoscale-scheduler", "terminationGracePeriodSeconds": 0, **spec}
    return found
