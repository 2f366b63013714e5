"""Objects of the original's installation, as its manifests have them, and VMs as its users write them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Final

from tests import plain_yaml
from tests.deploy.manifests import documents
from tests.kubernetes.failing.fleet import Obj

ACCOUNTS: Final = (
    ("kube-system", "autoscaler-agent"),
    ("kube-system", "autoscale-scheduler"),
    ("neonvm-system", "neonvm-controller"),
)
_NAD: Final = "k8s.cni.cncf.io"


def _object(kind: str, version: str, name: str, namespace: str = "", **more: Any) -> Obj:
    where = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **where}, **more}


READ: Final = (
    (_NAD, "network-attachment-definitions", "NetworkAttachmentDefinition"),
    ("cert-manager.io", "certificates", "Certificate"),
    ("cert-manager.io", "certificaterequests", "CertificateRequest"),
)
"""Kinds of others that its controller reads, by group, plural and kind."""


def _definition(group: str, plural: str, kind: str) -> Obj:
    """A kind whose objects may hold anything."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": schema}]
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": versions}
    return _object("CustomResourceDefinition", "apiextensions.k8s.io/v1", f"{plural}.{group}", spec=spec)


def installation(programs: Path) -> list[Obj]:
    """Accounts with wide rights, and what its controller reads at its start; and our agents' and injector's rights."""
    rights = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    accounts = [_object("ServiceAccount", "v1", name, namespace) for namespace, name in ACCOUNTS]
    subjects = [{"kind": "ServiceAccount", "namespace": namespace, "name": name} for namespace, name in ACCOUNTS]
    ours = [
        each
        for each in documents("deploy/kubernetes/agent-daemonset.yaml", "deploy/kubernetes/injector.yaml")
        if each["kind"] in {"Secret", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    ]
    pools = plain_yaml.load((programs / "vm.neon.tech_ippools.yaml").read_text())
    return [
        _object("Namespace", "v1", "neonvm-system"),
        *accounts,
        _object(
            "ClusterRoleBinding", "rbac.authorization.k8s.io/v1", "the-original", roleRef=rights, subjects=subjects
        ),
        *(_definition(*each) for each in READ),
        pools,
        *ours,
    ]


def network() -> Obj:
    """The range of addresses on the overlay network."""
    config = (
        '{"ipam": {"network_name": "neonvm", "ipRanges": [{"range": "10.101.0.0/16", "range_start": "10.101.128.0"}]}}'
    )
    return _object(
        "NetworkAttachmentDefinition", f"{_NAD}/v1", "overlay-ipam", "neonvm-system", spec={"config": config}
    )


def webhooks(programs: Path, address: str, authority: bytes) -> list[Obj]:
    """The controller's own webhooks, asked at ``address``."""
    found = list(plain_yaml.load_all((programs / "manifests.yaml").read_text()))
    for each in filter(None, found):
        each["metadata"]["name"] = f"neonvm-{each['metadata']['name']}"
        for hook in each["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            bundle = base64.b64encode(authority).decode()
            hook["clientConfig"] = {"url": f"https://{address}:9443{path}", "caBundle": bundle}
    return [each for each in found if each]


def vm(
    name: str,
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    scheduler: str = "autoscale-scheduler",
) -> Obj:
    """A VM of 0.5 to 4 vCPUs and 1Gi to 8Gi, that is autoscaled."""
    guest = {
        "cpus": {"min": "500m", "max": 4, "use": 1},
        "memorySlotSize": "1Gi",
        "memorySlots": {"min": 1, "max": 8, "use": 2},
        "rootDisk": {"image": "postgres"},
        "ports": [{"name": "postgres", "port": 5432}, {"name": "host-metrics", "port": 9100}],
    }
    metadata: Obj = {"name": name, "labels": {"autoscaling.neon.tech/enabled": "true", **(labels or {})}}
    if annotations:
        metadata["annotations"] = annotations
    spec = {
        "schedulerName": scheduler,
        "cpuScalingMode": "SysfsScaling",
        "enableSSH": False,
        "restartPolicy": "Always",
        "guest": guest,
        "extraNetwork": {"enable": True},
    }
    return {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "metadata": metadata, "spec": spec}
