"""A cluster in which everything is in order, from the manifests that we ship, as facts."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from prometheus_client.samples import Sample

from protocol.kubernetes.timestamps import micro_timestamp, timestamp
from protocol.runtime.certificates.issuing import CertificateForm, CertifiedKey, common_name, new_key
from scripts.autoscale.check.facts import ApiServerFacts, CheckFacts, Observed, Served
from scripts.autoscale.check.gathering.gather import shipped
from scripts.autoscale.check.installed_programs import PROGRAMS
from scripts.autoscale.check.judges.access import command_rights, install_rights, needed_rights
from tests import plain_yaml
from tests.deploy.manifests import ROOT

NOW: Final = 1_800_000_000.0
NAMESPACE: Final = "autoscale-system"
RELEASE: Final = "0.2.0"
NODES: Final = ("node-1", "node-2")
LEASE: Final = f"--lease={NAMESPACE}/autoscaling-scheduler"
LED: Final = ("autoscaling-scheduler", "autoscaling-scheduler-extender")
"""The Services that lead to the scheduler that leads."""
HOOK: Final = "autoscaling-injector.neon.tech"

Obj = dict[str, Any]


def stamp(seconds_ago: float) -> str:
    return timestamp(NOW - seconds_ago)


@dataclass(frozen=True)
class Authority:
    """Signs certificates of a test."""

    own: CertifiedKey

    @classmethod
    def make(cls, name: str = "authority") -> Authority:
        return cls(_form(name, (-1.0, 364.0)).self_signed(new_key()))

    def intermediate(self) -> Authority:
        """One that this one has signed."""
        return Authority(_form("intermediate", (-1.0, 364.0)).certified(self.own))

    def leaf(self, days: tuple[float, float] = (-1.0, 29.0), name: str = "scheduler") -> x509.Certificate:
        """Valid from and to, in days from now."""
        return _form(name, days).certified(self.own).certificate

    @property
    def certificate(self) -> x509.Certificate:
        return self.own.certificate


def _form(name: str, days: tuple[float, float]) -> CertificateForm:
    begin, end = (datetime.fromtimestamp(NOW, UTC) + timedelta(days=day) for day in days)
    return CertificateForm(common_name(name), begin, end)


def pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def encoded(*certificates: x509.Certificate) -> str:
    return base64.b64encode(pem(*certificates)).decode()


@cache
def authority() -> Authority:
    return Authority.make()


@cache
def leaf() -> x509.Certificate:
    return authority().leaf()


def secret(name: str, **data: str) -> Obj:
    """Keys are spelt with underscores for dots."""
    return {
        "metadata": {"namespace": NAMESPACE, "name": name},
        "data": {key.replace("_", "."): value for key, value in data.items()},
    }


def lease(name: str, holder: str, *, ago: float = 1.0, ahead: float = 0.0) -> Obj:
    fields: Obj = {"f:spec": {"f:renewTime": {}}}
    return {
        "metadata": {"namespace": NAMESPACE, "name": name, "managedFields": [{"time": stamp(ago), "fieldsV1": fields}]},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 9, "renewTime": micro_timestamp(NOW - ago + ahead)},
    }


def workloads() -> list[Obj]:
    """Our shipped workloads, all of them ready."""
    found = copied(_shipped("Deployment", "DaemonSet"))
    for each in found:
        each["metadata"]["namespace"] = NAMESPACE
        if each["metadata"]["name"] == "autoscaling-scheduler":
            each["spec"]["template"]["spec"]["containers"][0]["args"] += [
                LEASE,
                *(f"--leader-endpoints={name}" for name in LED),
            ]
        if each["metadata"]["name"] == "autoscaling-agent":
            serves_pods = {"name": "CGROUP_ROOT", "value": "/sys/fs/cgroup"}
            each["spec"]["template"]["spec"]["containers"][0].setdefault("env", []).append(serves_pods)
        count = each["spec"].get("replicas", len(NODES))
        each["status"] = (
            {"replicas": count, "readyReplicas": count}
            if each["kind"] == "Deployment"
            else {"desiredNumberScheduled": count, "numberReady": count}
        )
    return found


def pods() -> list[Obj]:
    """Those of the workloads."""
    return [pod_of(each, number) for each in workloads() for number in range(each["spec"].get("replicas", len(NODES)))]


def pod_of(workload: Obj, number: int = 0) -> Obj:
    (template,) = copied(msgspec.json.encode([workload["spec"]["template"]]))
    name = workload["metadata"]["name"]
    for container in template["spec"]["containers"]:
        if container["name"] != "kube-scheduler":
            container["image"] = container["image"].rpartition(":")[0] + ":0.2.0"
    states = [
        {"name": each["name"], "ready": True, "state": {"running": {"startedAt": stamp(60.0)}}}
        for each in template["spec"]["containers"]
    ]
    return {
        "metadata": {**template["metadata"], "namespace": NAMESPACE, "name": f"{name}-{number}"},
        "spec": {**template["spec"], "nodeName": NODES[number % 2]},
        "status": {"phase": "Running", "containerStatuses": states},
    }


def config_maps() -> list[Obj]:
    found = copied(_shipped("ConfigMap"))
    for each in found:
        each["metadata"] |= {"namespace": NAMESPACE, "managedFields": [{"time": stamp(120.0)}]}
    return found


def definitions() -> list[Obj]:
    return [_established(each) for each in copied(_shipped_definitions())]


@cache
def _shipped_definitions() -> bytes:
    files = sorted((ROOT / "deploy" / "kubernetes" / "crds").glob("*.yaml"))
    return msgspec.json.encode([plain_yaml.load(path.read_text()) for path in files])


@cache
def _shipped(*kinds: str) -> bytes:
    return msgspec.json.encode([each for each in shipped() if each["kind"] in kinds])


def copied(encoded_objects: bytes) -> list[Obj]:
    """Objects that a test may change."""
    found: list[Obj] = msgspec.json.decode(encoded_objects)
    return found


def _established(definition: Obj) -> Obj:
    definition["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
    return definition


def node(name: str) -> Obj:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
        "status": {
            "allocatable": {
                "cpu": "8",
                "autoscaling.neon.tech/guest-devices": "1k",
                "autoscaling.neon.tech/flat-network": "1k",
            },
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.36.2"},
        },
    }


def database_pod() -> Obj:
    """A Guaranteed pod with postgres that has opted in."""
    size = {"cpu": "1", "memory": "1Gi"}
    return {
        "metadata": {
            "namespace": "default",
            "name": "pg-1",
            "generation": 2,
            "labels": {"autoscaling.neon.tech/enabled": "true"},
            "annotations": {
                "autoscaling.neon.tech/bounds": '{"max": {"cpu": 4, "mem": "8Gi"}}',
                "autoscaling.neon.tech/first-requests": '{"cpu": "1", "mem": "2Gi"}',
            },
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "postgres", "resources": {"requests": size, "limits": size}}],
        },
        "status": {"phase": "Running", "qosClass": "Guaranteed"},
    }


def vm(name: str = "db") -> Obj:
    guest = {
        "cpus": {"min": "500m", "max": 4, "use": 1},
        "memorySlots": {"min": 1, "max": 8, "use": 2},
        "memorySlotSize": "1Gi",
    }
    return {
        "metadata": {
            "namespace": "default",
            "name": name,
            "labels": {"autoscaling.neon.tech/enabled": "true"},
            "annotations": {
                "autoscaling.neon.tech/permit": '{"vCPUs":"1","mem":"2Gi"}',
                "autoscaling.neon.tech/config": '{"sleep":{"after":"15m"}}',
            },
        },
        "spec": {"guest": guest, "extraNetwork": {"enable": True}},
        "status": {
            "phase": "Running",
            "podName": f"{name}-x",
            "node": "node-1",
            "cpus": 1,
            "memorySize": "2Gi",
            "extraNetIP": "10.111.0.1",
            "conditions": [{"type": "Accelerated", "status": "True", "message": "KVM: a guest boots on /dev/kvm"}],
        },
    }


def webhook() -> Obj:
    client = {
        "service": {"namespace": NAMESPACE, "name": "autoscaling-injector"},
        "caBundle": encoded(authority().certificate),
    }
    return {"metadata": {"name": "autoscaling-injector"}, "webhooks": [{"name": HOOK, "clientConfig": client}]}


def page(*, leads: bool = True, **more: float) -> Observed[Sequence[Sample]]:
    """The metrics of a scheduler; ``more`` are further values by the end of their names."""
    calls = [
        Sample("autoscale_scheduler_extender_calls_total", {"verb": verb, "outcome": outcome}, count)
        for verb, outcome, count in (("filter", "done", 40.0), ("filter", "error", 1.0), ("bind", "done", 12.0))
    ]
    found = {"ready": 1.0, "leading": float(leads), "settings_refused": 0.0, "rival_permit_writes_total": 0.0}
    found |= {"pod_requests_followed": 0.0, **more}
    return Observed([*calls, *(Sample(f"autoscale_scheduler_{name}", {}, value) for name, value in found.items())])


def leases() -> list[Obj]:
    known = {each["metadata"]["name"] for each in workloads()}
    return [lease(name, f"{each.name}-0-1a2b3c4d") for each in PROGRAMS for name in each.leases if each.name in known]


def endpoint_slices() -> list[Obj]:
    target = {"kind": "Pod", "name": "autoscaling-scheduler-0"}
    about = ({"namespace": NAMESPACE, "name": name} for name in LED)
    return [{"metadata": each, "endpoints": [{"addresses": ["10.0.0.1"], "targetRef": target}]} for each in about]


def accounts() -> Mapping[str, Any]:
    return {
        account: dict.fromkeys(rights, True)
        for account, rights in needed_rights(shipped(), NAMESPACE).items()
        if account.startswith(NAMESPACE)
    }


def secrets() -> list[Obj]:
    ca = encoded(authority().certificate)
    return [
        secret("autoscaling-certificates", **{"1_crt": ca}),
        secret("autoscaling-certificates-scheduler", tls_crt=encoded(leaf()), tls_key="", ca_crt=ca),
        *runner_secrets(),
    ]


@cache
def runner_authority() -> Authority:
    return Authority.make("neonvm-runners")


def runner_secrets(days: tuple[float, float] = (-1.0, 89.0), signer: Authority | None = None) -> list[Obj]:
    """The Secrets of runner pods, if the controller's certificate has this age and is signed by ``signer``."""
    ca = encoded(runner_authority().certificate)
    made = (signer or runner_authority()).leaf(days, "neonvm-controller")
    return [
        secret("neonvm-runners", **{"2_crt": ca}),
        secret("neonvm-runners-controller", tls_crt=encoded(made), tls_key="", ca_crt=ca),
    ]


def good() -> CheckFacts:
    """Everything in order; rebuilt for each test, so that it may change the result."""
    every = workloads()
    own = [*install_rights(NAMESPACE, makes_namespace=False), *command_rights(NAMESPACE)]
    return CheckFacts(
        NAMESPACE,
        NOW,
        Observed(ApiServerFacts("v1.36.2", 0.1, 0.6)),
        RELEASE,
        namespaces=Observed([{"metadata": {"name": NAMESPACE}}]),
        api_services=Observed([{"metadata": {"name": "kubernetes"}, "spec": {"clusterIP": "10.96.0.1"}}]),
        nodes=Observed([node(name) for name in NODES]),
        node_leases=Observed([lease(name, name, ago=4.0) for name in NODES]),
        deployments=Observed([each for each in every if each["kind"] == "Deployment"]),
        daemon_sets=Observed([each for each in every if each["kind"] == "DaemonSet"]),
        pods=Observed(pods()),
        config_maps=Observed(config_maps()),
        secrets=Observed(secrets()),
        leases=Observed(leases()),
        endpoint_slices=Observed(endpoint_slices()),
        crds=Observed(definitions()),
        webhooks=Observed([webhook()]),
        vms=Observed([vm()]),
        migrations=Observed([]),
        vm_pods=Observed([]),
        database_pods=Observed([database_pod()]),
        core_api=Observed({"resources": [{"name": "pods"}, {"name": "pods/resize"}]}),
        kubelets={"node-1": Observed({"kubeletconfig": {"cpuManagerPolicy": "none"}})},
        network_policies=Observed([]),
        waiting_pods=Observed([]),
        own_rights=Observed(dict.fromkeys(own, True)),
        account_rights=Observed(accounts()),
        admission={each["metadata"]["name"]: Observed("") for each in every},
        admission_namespace=NAMESPACE,
        injection=Observed(""),
        metrics={"autoscaling-scheduler-0": page()},
        ledger=Observed({"ready": True, "nodes": [], "unreadable": []}),
        agents=Observed({"default/db": {"scheduler_answered_seconds": 3.0}}),
        served={"autoscaling-scheduler:10299": Observed(Served(pem(leaf())))},
        reviews={HOOK: Observed("")},
    )


def named(objects: Sequence[Obj], name: str) -> Obj:
    """The object of that name."""
    return next(each for each in objects if each["metadata"]["name"] == name)
