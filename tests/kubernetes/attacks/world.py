"""The cluster that is attacked: two nodes, VMs of theirs, and what belongs to others; and who attacks, with what token.

Objects are as an API server keeps them. What a controller would have filled in is written here, because none runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from deploy.neonvm.objects.pod_form import RunnerForm
from deploy.neonvm.objects.pods import runner_pod
from deploy.neonvm.objects.vm_spec import machine_of
from protocol.kubernetes.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    HORIZONTAL_AUTOSCALERS,
    IP_ADDRESSES,
    LEASES,
    MIGRATIONS,
    NETWORK_POLICIES,
    NODES,
    PERSISTENT_VOLUMES,
    PODS,
    VIRTUAL_MACHINES,
    VM_GROUPS,
    Resource,
)

Obj = dict[str, Any]

HOME: Final = "default"
ELSEWHERE: Final = "other"
SYSTEM: Final = "kube-system"
CLOSED: Final = "vault"
NAMESPACES: Final[dict[str, dict[str, str]]] = {
    ELSEWHERE: {},
    CLOSED: {"autoscaling.neon.tech/scheduling": "false"},
}
"""Those of others, with their labels."""

SECRETS: Final = Resource("", "v1", "secrets", "Secret")
PERSISTENT_VOLUME_CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)


@dataclass(frozen=True, slots=True)
class Who:
    """An identity. ``account`` is ``NAMESPACE:NAME`` of a service account, empty for an administrator.

    ``pod`` is the pod, in the account's namespace, that its token is bound to, and ``node`` that pod's node.
    """

    name: str
    account: str = ""
    pod: str = ""
    node: str = ""

    @property
    def username(self) -> str:
        """The user name that admission sees."""
        return f"system:serviceaccount:{self.account}" if self.account else "admin"

    @property
    def extra(self) -> dict[str, list[str]]:
        """The token's extra fields that admission sees."""
        found = {"pod-name": self.pod, "node-name": self.node}
        return {f"authentication.kubernetes.io/{key}": [value] for key, value in found.items() if value}


NODE_AGENT: Final = Who("per-node agent of node a", f"{SYSTEM}:autoscaling-agent", "agent-a", "node-a")
UNBOUND_AGENT: Final = Who("per-node agent with an unbound token", f"{SYSTEM}:autoscaling-agent")
SIDECAR: Final = Who("sidecar of VM mine", f"{HOME}:vm-agent", "mine-1", "node-a")
LEFT_BEHIND: Final = Who("sidecar of a pod that its VM has left", f"{HOME}:vm-agent", "moved-1", "node-a")
SCHEDULER: Final = Who("scheduler", f"{SYSTEM}:autoscaling-scheduler")
GROUPS: Final = Who("groups", f"{SYSTEM}:autoscaling-groups")
CONTROLLER: Final = Who("NeonVM controller", f"{SYSTEM}:neonvm-controller")
NETWORK: Final = Who("network program", f"{SYSTEM}:neonvm-network")
DASHBOARD: Final = Who("dashboard", f"{SYSTEM}:autoscaling-dashboard")
EXPANDER: Final = Who("expander", f"{SYSTEM}:autoscaling-expander")
INJECTOR: Final = Who("injector", f"{SYSTEM}:autoscaling-injector")
OPERATOR: Final = Who("another project's operator", f"{ELSEWHERE}:operator")
TENANT: Final = Who("a user with VMs in a namespace", f"{HOME}:tenant")
ADMIN: Final = Who("administrator")


ROOM: Final = {"cpu": "16", "memory": "64Gi", "pods": "110"}
"""What a node can give to pods."""

LITTLE: Final = {"cpu": "100m", "memory": "128Mi"}
"""What pods request that may be resized."""

MORE: Final = {"cpu": "2", "memory": "2Gi"}
"""What they are to request."""

GUEST: Final = "neonvm-runner"
"""The container of a guest."""


def vm(name: str, node: str, pod: str, namespace: str = HOME, enabled: str = "true", **metadata: Any) -> Obj:
    """A VM of 1 CPU and 2 GiB that runs, with a permit for 2 CPUs and 4 GiB."""
    guest = {
        "cpus": {"min": "250m", "max": 8, "use": 1},
        "memorySlotSize": "1Gi",
        "memorySlots": {"min": 1, "max": 16, "use": 2},
        "rootDisk": {"image": "postgres"},
    }
    return {
        "apiVersion": VIRTUAL_MACHINES.api_version,
        "kind": VIRTUAL_MACHINES.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"autoscaling.neon.tech/enabled": enabled},
            "annotations": {"autoscaling.neon.tech/permit": '{"vCPUs":2,"mem":"4Gi"}'},
            **metadata,
        },
        "spec": {"schedulerName": "autoscale-scheduler", "guest": guest, "podResources": {"requests": dict(LITTLE)}},
        "status": {"phase": "Running", "node": node, "podName": pod, "cpus": 1, "memorySize": "2Gi"},
    }


def owner(kind: Resource, name: str) -> list[Obj]:
    """The reference of a controller."""
    return [{"apiVersion": kind.api_version, "kind": kind.kind, "name": name, "uid": "u-1", "controller": True}]


def pod(name: str, node: str = "", namespace: str = HOME, account: str = "default", **spec: Any) -> Obj:
    """A pod of another's workload; without a node it waits for one."""
    placed = {"nodeName": node} if node else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "serviceAccountName": account,
            "schedulerName": "default-scheduler",
            "containers": [{"name": "main", "image": "other"}],
            **placed,
            **spec,
        },
        "status": {"phase": "Running" if node else "Pending"},
    }


def runner(of: Obj, name: str = "") -> Obj:
    """The pod of a VM as the controller makes it, and once a node runs it where no ``name`` is given."""
    made: Obj = RunnerForm("neonvm-runner")(of, runner_pod(of, name or of["status"]["podName"], machine_of(of).use))
    made["metadata"]["ownerReferences"] = owner(VIRTUAL_MACHINES, of["metadata"]["name"])
    if not name:
        made["spec"] |= {"nodeName": of["status"]["node"], "serviceAccountName": "vm-agent"}
        made["status"] = {"phase": "Running"}
    return made


BOUNDS: Final = '{"max": {"cpu": 4, "mem": "8Gi"}}'
"""What the owner of a pod with a postgres lets it have."""


def postgres(name: str, node: str = "node-a", bounds: str | None = BOUNDS, enabled: str = "true") -> Obj:
    """A postgres pod with 1 CPU, a limit 500m above that, and 2 GiB; with a second container."""
    size: Obj = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "1500m", "memory": "2Gi"}}
    made = pod(name, node, containers=[
        {"name": "postgres", "image": "postgres", "resources": size},
        {"name": "proxy", "image": "other", "resources": {"requests": dict(LITTLE)}},
    ])  # fmt: skip
    made["metadata"]["labels"] = {"autoscaling.neon.tech/enabled": enabled}
    made["metadata"]["annotations"] = {} if bounds is None else {"autoscaling.neon.tech/bounds": bounds}
    return made


def beside(of: Obj) -> Obj:
    """A VM's pod with a foreign container next to the guest's."""
    made = runner(of)
    made["spec"]["containers"].append({"name": "proxy", "image": "other", "resources": {"requests": dict(LITTLE)}})
    return made


def move(name: str, by: str = "") -> Obj:
    """A migration, of the scheduler or of a person."""
    labels = {"labels": {"autoscaling.neon.tech/created-by": by}} if by else {}
    annotations = {"annotations": {"autoscaling.neon.tech/target-node": "node-b"}} if by else {}
    return {
        "apiVersion": MIGRATIONS.api_version,
        "kind": MIGRATIONS.kind,
        "metadata": {"name": name, "namespace": HOME, **labels, **annotations},
        "spec": {"vmName": "mine", "completionTimeout": 300, "maxBandwidth": "1Gi"},
    }


def deployment(image: str = "web", cpu: str = "100m") -> Obj:
    """A Deployment that a group sizes."""
    containers = [{"name": "app", "image": image, "resources": {"requests": {"cpu": cpu}}}]
    return {
        "apiVersion": DEPLOYMENTS.api_version,
        "kind": DEPLOYMENTS.kind,
        "metadata": {"name": "web", "namespace": HOME},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}},
        },
    }


def named(kind: Resource, name: str, namespace: str = HOME, spec: Obj | None = None, **more: Any) -> Obj:
    """Any other object."""
    where = {"namespace": namespace} if kind.namespaced else {}
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, **where}, **more}
    return body | ({} if spec is None else {"spec": spec})


def address(ip: str, resource: str, group: str, labels: Obj) -> Obj:
    """An IPAddress object."""
    found = named(IP_ADDRESSES, ip, spec={"parentRef": {"group": group, "resource": resource, "name": "x"}})
    found["spec"]["parentRef"]["namespace"] = HOME
    found["metadata"]["labels"] = labels
    return found


def device_claim(name: str, of_pod: str = "") -> Obj:
    """A claim on devices: a person's, or the one that kube-scheduler made for an extended resource of a pod."""
    found = named(RESOURCE_CLAIMS, name, spec={"devices": {}})
    if of_pod:
        found["metadata"] |= {
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
            "ownerReferences": owner(PODS, of_pod),
        }
    return found


def hook(resource: str = "pods", authority: str = "") -> Obj:
    """A webhook about VMs' pods, or about other objects."""
    config: Obj = {"service": {"namespace": SYSTEM, "name": "autoscaling-injector", "path": "/mutate", "port": 10293}}
    return {
        "name": "pods.autoscaling.neon.tech",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "clientConfig": config | ({"caBundle": authority} if authority else {}),
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}],
        "objectSelector": {"matchLabels": {"no": "pod"}},
    }


def claimed_by(name: str) -> Obj:
    """The reference of a volume to its claim."""
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": HOME, "name": name, "uid": f"u-{name}"}


def volume(name: str, claim: str = "") -> Obj:
    """A volume, of a claim or free."""
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/data"}}
    return named(PERSISTENT_VOLUMES, name, spec=spec | ({"claimRef": claimed_by(claim)} if claim else {}))


MINE: Final = vm("mine", "node-a", "mine-1")
ASLEEP: Final = vm("asleep", "node-a", "asleep-1", enabled="false")
THEIRS: Final = vm("theirs", "node-b", "theirs-1")
MOVED: Final = vm("moved", "node-b", "moved-2")
MEMBER: Final = vm("shop-replica-0", "node-b", "shop-1", ownerReferences=owner(VM_GROUPS, "shop"))
FOREIGN: Final = vm("far", "node-a", "far-1", ELSEWHERE)
PG: Final = postgres("pg-1")
PG_OF_B: Final = postgres("pg-2", "node-b")
PG_FREE: Final = postgres("pg-3", enabled="false")
PG_UNBOUND: Final = postgres("pg-4", bounds=None)
CALLED_RUNNER: Final[Obj] = {"name": "neonvm-runner", "image": "other", "resources": {"requests": LITTLE}}
HPA: Final = {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "bank"}}
CLAIM: Final = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
VM_ADDRESS: Final = address(
    "10.111.0.7", "virtualmachines", "vm.neon.tech", {"autoscaling.neon.tech/flat-network-vm": "u-1"}
)
SERVICE_ADDRESS: Final = address("10.96.77.7", "services", "", {})

OBJECTS: Final[tuple[tuple[Resource, Obj], ...]] = (
    *((NODES, named(NODES, name, spec={}, status={"allocatable": ROOM})) for name in ("node-a", "node-b")),
    *((VIRTUAL_MACHINES, each) for each in (MINE, ASLEEP, THEIRS, MOVED, MEMBER, FOREIGN)),
    *((PODS, runner(each)) for each in (MINE, THEIRS)),
    (PODS, beside(MOVED)),
    (PODS, pod("moved-1", "node-a", account="vm-agent")),
    (PODS, pod("agent-a", "node-a", SYSTEM, "autoscaling-agent")),
    (PODS, pod("dns", "node-a", SYSTEM)),
    (PODS, pod("web-1", "node-b")),
    (PODS, pod("web-2", "node-b", containers=[CALLED_RUNNER])),
    *((PODS, each) for each in (PG, PG_OF_B, PG_FREE, PG_UNBOUND)),
    (PODS, pod("waiting")),
    (PODS, pod("ours", schedulerName="autoscale-scheduler")),
    (PODS, pod("unplaced", namespace=SYSTEM)),
    (PODS, pod("vault-0", "node-a", CLOSED)),
    (PODS, pod("vault-1", namespace=CLOSED)),
    *((MIGRATIONS, each) for each in (move("by-us", "autoscale-scheduler"), move("by-hand"))),
    (DEPLOYMENTS, deployment()),
    (HORIZONTAL_AUTOSCALERS, named(HORIZONTAL_AUTOSCALERS, "theirs", spec=HPA)),
    (ENDPOINT_SLICES, named(ENDPOINT_SLICES, "bank", addressType="IPv4", endpoints=[])),
    (PERSISTENT_VOLUME_CLAIMS, named(PERSISTENT_VOLUME_CLAIMS, "data", spec=CLAIM)),
    *((PERSISTENT_VOLUMES, each) for each in (volume("free"), volume("bound", "bank"))),
    (LEASES, named(LEASES, "kube-scheduler", SYSTEM, {"holderIdentity": "it"})),
    *((SECRETS, named(SECRETS, name, SYSTEM)) for name in ("autoscaling-certificates-scheduler", "bank")),
    *((WEBHOOKS, named(WEBHOOKS, name, webhooks=[hook()])) for name in ("theirs", "autoscaling-injector")),
    (CONFIG_MAPS, named(CONFIG_MAPS, "autoscaling-ca", data={"mine": "x"})),
    *((RESOURCE_CLAIMS, each) for each in (device_claim("gpus"), device_claim("web-1-gpu", "web-1"))),
    (IP_ADDRESSES, VM_ADDRESS),
    (IP_ADDRESSES, SERVICE_ADDRESS),
    (NETWORK_POLICIES, named(NETWORK_POLICIES, "deny-all", spec={"podSelector": {}, "policyTypes": ["Ingress"]})),
)  # fmt: skip
"""All of it, in the order in which it can be made."""
