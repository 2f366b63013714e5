"""A namespace with VMs whose pods are like those of NeonVM's own controller (v0.49.1), and a stand-in for the guest.

The guest is a page of metrics of a database whose memory is nearly full, where NeonVM's guest is: at an address of the
pod's own.
"""

from __future__ import annotations

import re
from typing import Any, Final

from deploy.local.kubernetes.plan.image_names import BUSYBOX_IMAGE
from tests.deploy.manifests import ROOT, documents
from tests.kubernetes.scheduling.books import Obj
from tests.kubernetes.scheduling.stage import Stage
from tests.scheduler_plugin.injector.pods import original

GUEST: Final = "169.254.254.254"
FULL: Final = {"MemTotal": 2 * 1024**3, "MemAvailable": 64 * 1024**2, "MemFree": 32 * 1024**2}


def metrics() -> str:
    """What node_exporter says in a guest of 2 GiB of which little is left."""
    text = (ROOT / "tests/agent/adapters/node_exporter.txt").read_text()
    for name, amount in FULL.items():
        text = re.sub(rf"(?m)^node_memory_{name}_bytes .*$", f"node_memory_{name}_bytes {amount}", text)
    return text


def prepare(stage: Stage) -> None:
    """What ``agent-sidecar.yaml`` makes in a namespace with VMs, and the guests' page."""
    for each in documents("deploy/kubernetes/agent-sidecar.yaml"):
        if each["metadata"]["name"] == "autoscaling-agent-sidecar":
            continue
        made = {**each, "metadata": {**each["metadata"], "namespace": stage.name}}
        if each["kind"] == "RoleBinding":
            made["subjects"] = [{**subject, "namespace": stage.name} for subject in each["subjects"]]
        stage.programs.cluster.apply(made)
    page = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "guest", "namespace": stage.name}}
    stage.programs.cluster.apply({**page, "data": {"metrics": metrics()}})


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
