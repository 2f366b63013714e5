"""One valid example of each thing that a program of this project reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import yaml

from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_CONFIG, ANNOTATION_PERMIT
from tests.scheduler_plugin.certificates import pair
from tests.scheduler_plugin.expander.questions import container, field, machine, option, pod, question
from tests.scheduler_plugin.objects import Obj, node, owner_of, plain_pod, postgres_pod, token_of, vm, vm_pod

ROOT: Final = Path(__file__).parents[2]

TERM: Final[Obj] = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}
RAISED: Final[Obj] = {'k:{"name":"neonvm-runner"}': {"f:resources": {"f:requests": {"f:cpu": {}, "f:memory": {}}}}}
POD_TERM: Final[Obj] = {
    "labelSelector": {"matchLabels": {"app": "db"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]},
    "topologyKey": "zone",
    "namespaces": ["default"],
}


def whole_vm(name: str = "db") -> Obj:
    found = vm(name)
    found["metadata"] |= {
        "resourceVersion": "7",
        "annotations": {
            ANNOTATION_BOUNDS: '{"min":{"cpu":1,"mem":"1Gi"},"max":{"cpu":"4","mem":"8Gi"}}',
            ANNOTATION_PERMIT: '{"vCPUs":"750m","mem":"4Gi"}',
            ANNOTATION_CONFIG: '{"cpu":{"target":0.7},"smoothing":{"cpu":[{"hold":{"window":"30s"}}]}}',
        },
    }
    found["status"] |= {"cpus": "1", "memorySize": "4Gi", "node": "n1", "podIP": "10.0.0.7"}
    found["status"]["machine"] = {"maxCpus": "2", "minMemory": "1Gi", "maxMemory": "6Gi"}
    return found


def whole_pod(name: str = "db") -> Obj:
    found = vm_pod(name, "n1")
    found["metadata"] |= {
        "resourceVersion": "7",
        "ownerReferences": [
            {"kind": "VirtualMachine", "name": name, "uid": f"vm-{name}", "controller": True},
            {"kind": "VirtualMachineMigration", "name": "m", "uid": "u-m", "controller": False},
        ],
        "annotations": {"vm.neon.tech/usage": '{"cpu":"1","memory":"4Gi"}'},
        "generation": 3,
        "managedFields": [
            {
                "manager": "autoscale-scheduler",
                "subresource": "resize",
                "fieldsV1": {"f:spec": {"f:containers": RAISED}},
            }
        ],
    }
    found["metadata"]["labels"]["autoscaling.neon.tech/enabled"] = "true"
    found["spec"] |= {
        "nodeSelector": {"zone": "a"},
        "overhead": {"cpu": "10m", "memory": "1Mi"},
        "initContainers": [{"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "10m"}}}],
        "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": TERM}],
            },
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [POD_TERM]},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [POD_TERM]},
        },
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    }
    found["spec"]["containers"][0]["ports"] = [{"hostPort": 80, "containerPort": 80, "protocol": "TCP"}]
    found["status"] |= {
        "podIP": "10.0.0.7",
        "qosClass": "Burstable",
        "containerStatuses": [
            {"name": "neonvm-runner", "allocatedResources": {"cpu": "1"}, "resources": {"requests": {}}}
        ],
        "conditions": [
            {
                "type": "PodResizePending",
                "status": "True",
                "reason": "Infeasible",
                "message": "m",
                "observedGeneration": 3,
            }
        ],
    }
    return found


def growing_pod() -> Obj:
    """The same pod, without an objection of its kubelet to the requests."""
    found = whole_pod("db")
    found["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return found


def whole_postgres() -> Obj:
    """A pod whose postgres is resized in place, which its kubelet has put off."""
    found = postgres_pod("pg", "2", "4Gi", "n1")
    found["metadata"] |= {"resourceVersion": "7", "ownerReferences": [owner_of("pg", "u", "StatefulSet")]}
    found["status"]["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]
    return found


_TARGET: Final[Obj] = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "pg"}
_METRIC: Final[Obj] = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}
_META: Final[Obj] = {"namespace": "default", "name": "pg", "annotations": {"cnpg.io/reconcilePodSpec": "enabled"}}
CONFLICTS: Final = (
    {"metadata": _META, "spec": {"scaleTargetRef": _TARGET, "metrics": [_METRIC]}},
    {"metadata": _META, "spec": {"targetRef": _TARGET, "updatePolicy": {"updateMode": "Auto"}}},
    {"metadata": _META, "spec": {"resourcesUpdateStrategy": "inPlace"}},
)


def whole_node() -> Obj:
    found = node("n1")
    found["metadata"] |= {"resourceVersion": "7", "labels": {"zone": "a", "node.kubernetes.io/instance-type": "m5"}}
    found["spec"]["taints"] = [{"key": "a", "value": "b", "effect": "NoSchedule"}]
    found["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    found["status"]["allocatable"]["nvidia.com/gpu"] = "1"
    return found


MIGRATION: Final[Obj] = {
    "metadata": {"namespace": "default", "name": "m", "uid": "u-m", "resourceVersion": "7",
                 "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["vm.neon.tech/finalizer"]},
    "spec": {"vmName": "db", "nodeSelector": {"zone": "a"}},
    "status": {"phase": "Running", "sourcePodName": "a", "targetPodName": "b", "sourceNode": "n1", "targetNode": "n2",
               "info": {"status": "active", "totalTimeMs": 5, "downtimeMs": 7,
                        "ram": {"transferred": 1, "dirtyPagesRate": 10, "pageSize": 4096}},
               "conditions": [{"type": "Available", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
}  # fmt: skip
VOLUME: Final[Obj] = {
    "metadata": {"name": "pv", "resourceVersion": "7"},
    "spec": {
        "claimRef": {"namespace": "default", "name": "c"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [TERM]}},
    },
}
REVIEW: Final[Obj] = {"status": token_of(vm_pod("db"), node="n1")}

AGENT: Final[Obj] = {
    "pod": {"namespace": "default", "name": "db-pod"},
    "resources": {"vCPUs": 2, "mem": 4},
    "lastPermit": {"vCPUs": 1, "mem": 2},
    "computeUnit": {"vCPUs": "250m", "mem": "1Gi"},
    "metrics": {"loadAvg1M": 0.5, "loadAvg5M": 0.4, "memoryUsageBytes": 1.0},
    "sequence": 7,
}
ANSWER: Final[Obj] = {
    "permit": {"vCPUs": 2, "mem": 4},
    "migrate": {},
    "computeUnit": {"vCPUs": "250m", "mem": 1},
    "resourceUnit": {"vCPUs": 1, "mem": 1},
}
BATCH: Final[list[Obj]] = [{"protoVersion": 4, **AGENT}, {"protoVersion": 7, **AGENT}]
ANSWERS: Final[list[Obj]] = [{"status": 200, **ANSWER}, {"status": 503, "error": "not ready", "retryAfter": 1}]

FILTER: Final[Obj] = {"Pod": plain_pod("p"), "Nodes": {"items": [whole_node()]}, "NodeNames": None}
FILTER_NAMES: Final[Obj] = {"Pod": whole_pod(), "Nodes": None, "NodeNames": ["n1", "n2"]}
BIND: Final[Obj] = {"PodName": "p", "PodNamespace": "default", "PodUID": "pod-p", "Node": "n1"}
PREEMPT: Final[Obj] = {
    "Pod": whole_pod(),
    "NodeNameToVictims": {"n1": {"Pods": [{"metadata": {"uid": "pod-p"}}], "NumPDBViolations": 0}},
    "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "pod-p"}], "NumPDBViolations": 0}},
}

RANKING: Final[Obj] = {
    "nodePrices": {"m5": 0.1},
    "suppressOver": 9,
    "preferredSizes": [{"vCPUs": 1, "nodes": 2}, {"vCPUs": 32}],
    "newGroupFactor": 2,
}
QEMU: Final[Obj] = {
    "status": "active",
    "total-time": 5,
    "downtime": 7,
    "ram": {"total": 1, "transferred": 1, "remaining": 1, "dirty-pages-rate": 10, "page-size": 4096},
}
QUESTION: Final = question(
    [option("small", 1, [pod("p", container(cpu="1500m", memory="1Gi"))]), option("large", 1, [])],
    {"small": machine("m-2", "2", "8Gi"), "large": machine("m-8", "8", "32Gi", gpus=1)},
)
PROTOBUF: Final = b"k8s\x00" + field(1, field(1, "v1") + field(2, "DeleteOptions")) + field(2, field(1, 5))

MONITOR: Final[tuple[Obj, ...]] = (
    {"type": "UpscaleRequest", "id": 1},
    {"type": "DownscaleResult", "id": 2, "Ok": False, "Status": "in use"},
    {
        "type": "LoadReport",
        "id": 3,
        "cause": "cpu",
        "span": 0.06,
        "cpuBusy": 0.98,
        "cpuStall": 0.9,
        "runnable": 5,
        "processes": 12,
        "newProcesses": 4,
    },
    {"type": "InternalError", "id": 4, "error": "cgroup"},
)
POLICY: Final = b"""\
cpu: {target: 0.7, pressureDeadband: 0.2, reach: 2}
memory: {target: 0.8, kernelAllowance: 64Mi, pressureStep: 0.5, killHold: 5m}
smoothing: {cpu: [hold: {window: 30s}, sustain: {over: 3}], memory: default, maxGap: 1500ms}
timing: {tick: 10, tickJitter: 1s, stale: 1m30s}
"""
SETTINGS: Final = b"""\
schedulerName: autoscale-scheduler
nodeDefaults:
  computeUnit: {vCPUs: 250m, mem: 1Gi}
  cpu: {watermark: 0.9, system: 500m}
  memory: {watermark: 0.9, system: 1Gi}
nodeOverrides: [{nodes: [n1], cpu: {watermark: 0.5}}]
agents: {nodeAgents: ["kube-system:agent"]}
migration: {cooldownSeconds: 60}
"""
INJECTOR: Final = b"""\
agent: {image: i, schedulerUrl: "https://s:1", env: {A: b}, resources: {limits: {memory: 1Mi}}}
certificates: {life: 90d, authorityLife: 300d}
lease: {durationSeconds: 20, renewSeconds: 4}
"""
ADMITTED: Final[Obj] = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "u", "operation": "CREATE", "namespace": "default", "object": whole_pod()},
}
ADMISSION: Final = json.dumps(ADMITTED).encode()
CERTIFICATES: Final = pair("one")[0] + pair("two")[0]
EXPANDER: Final = (
    b"listen: 127.0.0.1:1\ninsecure: true\nclusterNodes: 3\nranking: {suppressOver: 9}\nfailures: {grace: 7}\n"
)
KUBECONFIG: Final = yaml.safe_dump(
    {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [
            {
                "name": "c",
                "cluster": {"server": "https://a", "certificate-authority-data": "eA==", "proxy-url": "http://p:1"},
            }
        ],
        "users": [{"name": "u", "user": {"exec": {"command": "./p", "apiVersion": "v1", "args": ["a"]}, "as": "b"}}],
    }
).encode()
CREDENTIAL: Final = {"status": {"token": "t"}}
EXPOSITION: Final = (ROOT / "tests/agent/adapters/node_exporter.txt").read_bytes()[:2500] + (
    b'host_load1{collector="load",host="pg"} 0.5 1700000000000\n'
    b'host_cpu_seconds_total{collector="cpu",cpu="0",mode="io_wait"} 3 1700000000000\n'
)
