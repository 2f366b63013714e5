"""Attempts of the programs that run VMs, and of the expander."""

from __future__ import annotations

from typing import Final

from deploy.neonvm.objects.pod_form import FLAT_RESOURCE
from deploy.neonvm.objects.runner_policy import NAME as POLICY
from deploy.neonvm.objects.runner_policy import new_policy
from protocol.kubernetes.resources import IP_ADDRESSES, NETWORK_POLICIES, NODES, PODS, VIRTUAL_MACHINES
from tests.kubernetes.attacks.attempt import RBAC, Attempt, changed, noted, patches, resources, use
from tests.kubernetes.attacks.world import (
    CLOSED,
    CONTROLLER,
    ELSEWHERE,
    EXPANDER,
    GUEST,
    MINE,
    MORE,
    NETWORK,
    SECRETS,
    SYSTEM,
    VM_ADDRESS,
    Obj,
    address,
    owner,
    pod,
    runner,
)

_RUNNERS: Final = "policy neonvm-controller-pods"
_MACHINES: Final = "policy neonvm-controller-vms"
_ADDRESSES: Final = "policy neonvm-controller-addresses"
_NETWORKS: Final = "policy neonvm-controller-networks"
_X: Final = "mine-x"
_OPENS: Final[Obj] = {"podSelector": {"matchExpressions": None}, "ingress": [{}]}
"""Of a NetworkPolicy, that it lets everybody reach all pods of its namespace."""


def _evil(name: str, spec: Obj) -> Obj:
    return changed(runner(MINE, name), {"spec": spec})


def _privileged(name: str) -> Obj:
    made = runner(MINE, name)
    made["spec"]["initContainers"][0]["securityContext"] = {"privileged": True}
    return made


def _with_volume(name: str, source: Obj, **spec: object) -> Obj:
    return _evil(name, {"volumes": [*runner(MINE, name)["spec"]["volumes"], {"name": "more", **source}], **spec})


def _reading(name: str, part: Obj) -> Obj:
    made = runner(MINE, name)
    made["spec"]["containers"][0] |= part
    return made


def _init(name: str, **part: object) -> Obj:
    """The pod with one more init container, as a VM may have some."""
    made = runner(MINE, name)
    harmless = made["spec"]["initContainers"][0]
    made["spec"]["initContainers"].append({**harmless, "name": "more", "volumeMounts": [], **part})
    return made


def _secured(name: str, **security: object) -> Obj:
    safe = runner(MINE, name)["spec"]["initContainers"][0]["securityContext"]
    return _init(name, securityContext=changed(safe, security))


def _named(name: str, **metadata: object) -> Obj:
    return changed(runner(MINE, name), {"metadata": metadata})


def _prioritized(name: str, priority: str) -> Obj:
    return _evil(name, {"priorityClassName": priority})


def _token_beside(name: str) -> Obj:
    """The agent's token, in another container."""
    made = _with_volume(name, _TOKEN, serviceAccountName="vm-agent")
    mounts = made["spec"]["initContainers"][0]["volumeMounts"]
    made["spec"]["initContainers"][0]["volumeMounts"] = [*mounts, {"name": "more", "mountPath": "/more"}]
    return made


def _password_for_all(name: str) -> Obj:
    """A container of the VM's own with the password of its database."""
    made = runner(MINE, name)
    made["spec"]["initContainers"][0]["volumeMounts"].append({"name": "postgres", "mountPath": "/password"})
    return made


_TAPS: Final[Obj] = {"hostPath": {"path": "/run/autoscale/flat"}}
_PASSWORD: Final = [{"key": "password", "path": "password"}]
_TOKEN: Final[Obj] = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
_SECRET: Final[Obj] = {"projected": {"sources": [{"secret": {"name": "root"}}]}}
_CONFIG: Final[Obj] = {"projected": {"sources": [{"configMap": {"name": "root"}}]}}
_PROBE: Final[Obj] = {"httpGet": {"port": 80, "host": "169.254.169.254"}}
_OTHER_OWNER: Final = [{**each, "controller": False} for each in owner(VIRTUAL_MACHINES, "theirs")]
_PRIORITIES: Final = "policy neonvm-controller-priorities"
_EVIL: Final[dict[str, Obj]] = {
    "uses a host port": _init(_X, ports=[{"containerPort": 80, "hostPort": 80}]),
    "runs a container as root": _secured(_X, runAsUser=0),
    "lets a container run as root": _secured(_X, runAsNonRoot=False),
    "creates a pod that may run as root": _evil(_X, {"securityContext": {"runAsNonRoot": None}}),
    "runs a container without seccomp": _secured(_X, seccompProfile={"type": "Unconfined"}),
    "creates a pod without seccomp": _evil(_X, {"securityContext": {"seccompProfile": None}}),
    "sets the SELinux type of super-privileged containers": _secured(_X, seLinuxOptions={"type": "spc_t"}),
    "runs a container without AppArmor": _secured(_X, appArmorProfile={"type": "Unconfined"}),
    "unmasks /proc in a container": changed(_secured(_X, procMount="Unmasked"), {"spec": {"hostUsers": False}}),
    "lets a container gain privileges": _secured(_X, allowPrivilegeEscalation=None),
    "keeps a container's capabilities": _secured(_X, capabilities=None),
    "has the kubelet probe another host": _init(_X, restartPolicy="Always", startupProbe=_PROBE),
    "has a lifecycle hook call another host": _init(_X, restartPolicy="Always", lifecycle={"postStart": _PROBE}),
    "uses a ConfigMap as a pod's environment": _init(_X, envFrom=[{"configMapRef": {"name": "root"}}]),
    "uses a ConfigMap's key in a pod's environment": _init(
        _X, env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "root", "key": "a"}}}]
    ),
    "mounts a ConfigMap into a pod": _with_volume(_X, {"configMap": {"name": "root"}}),
    "projects a ConfigMap into a pod": _with_volume(_X, _CONFIG),
    "mounts a volume claim into a pod": _with_volume(_X, {"persistentVolumeClaim": {"claimName": "data"}}),
    "mounts the agent's token into another container": _token_beside(_X),
    "labels a pod as another VM's": _named(_X, labels={"vm.neon.tech/name": "theirs"}),
    "names a pod like another VM's": _named("bank-0"),
    "creates a pod with two owners": _named(_X, ownerReferences=[*owner(VIRTUAL_MACHINES, "mine"), *_OTHER_OWNER]),
    "attaches a pod to another network": _named(_X, annotations={"k8s.v1.cni.cncf.io/networks": "theirs"}),
}
"""A VM's pod with one thing that none has."""

BY_CONTROLLER: Final = (
    Attempt(CONTROLLER, "creates a VM's pod", "", "create", PODS, "mine-2", runner(MINE, "mine-2")),
    Attempt(CONTROLLER, "creates a privileged pod", _RUNNERS, "create", PODS, _X, _privileged(_X)),
    Attempt(
        CONTROLLER, "creates a pod with host network", _RUNNERS, "create", PODS, _X,
        _evil(_X, {"hostNetwork": True}),
    ),
    Attempt(
        CONTROLLER, "mounts a host path into a pod", _RUNNERS, "create", PODS, _X,
        _evil(_X, {"volumes": [*runner(MINE, _X)["spec"]["volumes"], {"name": "root", "hostPath": {"path": "/"}}]}),
    ),
    Attempt(
        CONTROLLER, "creates a pod in kube-system", _RUNNERS, "create", PODS, _X,
        changed(runner(MINE, _X), {"metadata": {"namespace": SYSTEM}}), namespace=SYSTEM,
    ),
    Attempt(
        CONTROLLER, "creates a pod in a namespace that is closed to us", _RUNNERS, "create", PODS, _X,
        changed(runner(MINE, _X), {"metadata": {"namespace": CLOSED}}), namespace=CLOSED,
    ),
    Attempt(
        CONTROLLER, "creates a VM's pod on the flat network", "", "create", PODS, "mine-3",
        runner(changed(MINE, {"spec": {"extraNetwork": {"enable": True}}}), "mine-3"),
    ),
    Attempt(
        CONTROLLER, "creates a VM's pod with its agent's token", "", "create", PODS, "mine-4",
        _with_volume("mine-4", _TOKEN, serviceAccountName="vm-agent"),
    ),
    Attempt(
        CONTROLLER, "creates a pod with another account's token", _RUNNERS, "create", PODS, _X,
        _with_volume(_X, _TOKEN, serviceAccountName="default"),
    ),
    Attempt(
        CONTROLLER, "mounts a Secret into a pod", _RUNNERS, "create", PODS, _X,
        _with_volume(_X, {"secret": {"secretName": "root"}}),
    ),
    Attempt(
        CONTROLLER, "mounts another database's password into a pod", _RUNNERS, "create", PODS, _X,
        _with_volume(_X, {"secret": {"secretName": "other.postgres-password", "items": _PASSWORD}}),
    ),
    Attempt(
        CONTROLLER, "mounts the password into the VM's own container", _RUNNERS, "create", PODS, _X,
        _password_for_all(_X),
    ),
    Attempt(CONTROLLER, "projects a Secret into a pod", _RUNNERS, "create", PODS, _X, _with_volume(_X, _SECRET)),
    Attempt(
        CONTROLLER, "uses a Secret as a pod's environment", _RUNNERS, "create", PODS, _X,
        _reading(_X, {"envFrom": [{"secretRef": {"name": "root"}}]}),
    ),
    Attempt(
        CONTROLLER, "uses a Secret's key in a pod's environment", _RUNNERS, "create", PODS, _X,
        _reading(_X, {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "root", "key": "a"}}}]}),
    ),
    Attempt(
        CONTROLLER, "mounts the node's directory of taps", _RUNNERS, "create", PODS, _X, _with_volume(_X, _TAPS),
    ),
    Attempt(
        CONTROLLER, "requests all flat-network units of a node", "policy neonvm-places", "create", PODS, _X,
        _reading(_X, {"resources": {"limits": {FLAT_RESOURCE: "1000"}, "requests": {FLAT_RESOURCE: "1000"}}}),
    ),
    Attempt(
        CONTROLLER, "requests a unit for another container", "policy neonvm-places", "create", PODS, _X,
        _init(_X, resources={"limits": {FLAT_RESOURCE: "1"}, "requests": {FLAT_RESOURCE: "1"}}),
    ),
    *(Attempt(CONTROLLER, what, _RUNNERS, "create", PODS, _X, body) for what, body in _EVIL.items()),
    Attempt(
        CONTROLLER, "creates a pod that preempts others", _PRIORITIES, "create", PODS, _X,
        _prioritized(_X, "system-node-critical"),
    ),
    Attempt(CONTROLLER, "creates a pod without a VM", _RUNNERS, "create", PODS, _X, pod(_X)),
    Attempt(CONTROLLER, "deletes a pod of another owner", _RUNNERS, "delete", PODS, "web-2"),
    *patches(PODS, "theirs-1", CONTROLLER, {
        "writes a VM's usage on its pod": (noted("vm.neon.tech/usage"), ""),
        "writes another annotation of a VM's pod": (noted("example.com/note"), _RUNNERS),
        "copies a VM's opt-in to its pod": ({"metadata": {"labels": {"autoscaling.neon.tech/enabled": "true"}}}, ""),
        "labels a VM's pod": ({"metadata": {"labels": {"app": "bank"}}}, _RUNNERS),
    }),
    *patches(VIRTUAL_MACHINES, "theirs", CONTROLLER, {
        "adds a VM's finalizer": ({"metadata": {"finalizers": ["vm.neon.tech/finalizer"]}}, ""),
        "resizes a VM": (use(2, 2), _MACHINES),
        "writes a permit": (noted("autoscaling.neon.tech/permit"), _MACHINES),
    }),
    *patches(
        PODS, "mine-1", CONTROLLER,
        {"resizes a VM's pod": (resources(runner(MINE), GUEST, requests=MORE), RBAC)}, subresource="resize",
    ),
    Attempt(CONTROLLER, "deletes a VM", RBAC, "delete", VIRTUAL_MACHINES, "theirs"),
    Attempt(CONTROLLER, "releases a VM's address", "", "delete", IP_ADDRESSES, VM_ADDRESS["metadata"]["name"]),
    Attempt(CONTROLLER, "releases a Service's address", _ADDRESSES, "delete", IP_ADDRESSES, "10.96.77.7"),
    Attempt(
        CONTROLLER, "allocates an address for a Service", _ADDRESSES, "create", IP_ADDRESSES, "10.96.77.8",
        address("10.96.77.8", "services", "", {}),
    ),
    Attempt(
        CONTROLLER, "creates a NetworkPolicy for ports of VM pods", "", "create", NETWORK_POLICIES, POLICY,
        new_policy(SYSTEM),
        namespace=ELSEWHERE,
    ),
    Attempt(
        CONTROLLER, "opens all pods of a namespace", _NETWORKS, "create", NETWORK_POLICIES, POLICY,
        changed(new_policy(SYSTEM), {"spec": _OPENS}),
    ),
    Attempt(
        CONTROLLER, "restricts what VM pods may reach", _NETWORKS, "create", NETWORK_POLICIES, POLICY,
        changed(new_policy(SYSTEM), {"spec": {"policyTypes": ["Ingress", "Egress"]}}),
    ),
    Attempt(
        CONTROLLER, "creates a NetworkPolicy with another name", _NETWORKS, "create", NETWORK_POLICIES, "open",
        changed(new_policy(SYSTEM), {"metadata": {"name": "open"}}),
    ),
    Attempt(CONTROLLER, "deletes a tenant's NetworkPolicy", RBAC, "delete", NETWORK_POLICIES, "deny-all"),
    *patches(NETWORK_POLICIES, "deny-all", CONTROLLER, {"opens a tenant's NetworkPolicy": ({"spec": _OPENS}, RBAC)}),
    Attempt(CONTROLLER, "reads secrets", RBAC, "get", SECRETS, ""),
    *patches(NODES, "node-a", NETWORK, {"labels its node": ({"metadata": {"labels": {"a": "b"}}}, RBAC)}),
    *patches(VIRTUAL_MACHINES, "mine", NETWORK, {"resizes a VM": (use(1, 1), RBAC)}),
    Attempt(EXPANDER, "reads pods", RBAC, "get", PODS, ""),
    *patches(NODES, "node-a", EXPANDER, {"labels a node": ({"metadata": {"labels": {"a": "b"}}}, RBAC)}),
)  # fmt: skip
