"""What the programs that run VMs try, and the expander."""

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
    "takes a port of the node": _init(_X, ports=[{"containerPort": 80, "hostPort": 80}]),
    "runs a container as root": _secured(_X, runAsUser=0),
    "lets a container run as root": _secured(_X, runAsNonRoot=False),
    "makes a pod that may run as root": _evil(_X, {"securityContext": {"runAsNonRoot": None}}),
    "runs a container without seccomp": _secured(_X, seccompProfile={"type": "Unconfined"}),
    "makes a pod without seccomp": _evil(_X, {"securityContext": {"seccompProfile": None}}),
    "gives a container the type of super-privileged ones": _secured(_X, seLinuxOptions={"type": "spc_t"}),
    "runs a container without AppArmor": _secured(_X, appArmorProfile={"type": "Unconfined"}),
    "shows a container all of /proc": changed(_secured(_X, procMount="Unmasked"), {"spec": {"hostUsers": False}}),
    "lets a container gain privileges": _secured(_X, allowPrivilegeEscalation=None),
    "leaves a container its capabilities": _secured(_X, capabilities=None),
    "has the node probe another host": _init(_X, restartPolicy="Always", startupProbe=_PROBE),
    "has the node call another host": _init(_X, restartPolicy="Always", lifecycle={"postStart": _PROBE}),
    "gives a pod a ConfigMap as its environment": _init(_X, envFrom=[{"configMapRef": {"name": "root"}}]),
    "gives a pod a ConfigMap's key": _init(
        _X, env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "root", "key": "a"}}}]
    ),
    "mounts a ConfigMap into a pod": _with_volume(_X, {"configMap": {"name": "root"}}),
    "projects a ConfigMap into a pod": _with_volume(_X, _CONFIG),
    "mounts a claim into a pod": _with_volume(_X, {"persistentVolumeClaim": {"claimName": "data"}}),
    "mounts the agent's token beside the agent": _token_beside(_X),
    "labels a pod as another VM's": _named(_X, labels={"vm.neon.tech/name": "theirs"}),
    "names a pod like another's": _named("bank-0"),
    "makes a pod of two owners": _named(_X, ownerReferences=[*owner(VIRTUAL_MACHINES, "mine"), *_OTHER_OWNER]),
    "puts a pod into another network": _named(_X, annotations={"k8s.v1.cni.cncf.io/networks": "theirs"}),
}
"""A VM's pod with one thing that none has."""

BY_CONTROLLER: Final = (
    Attempt(CONTROLLER, "makes a VM's pod", "", "create", PODS, "mine-2", runner(MINE, "mine-2")),
    Attempt(CONTROLLER, "makes a privileged pod", _RUNNERS, "create", PODS, _X, _privileged(_X)),
    Attempt(
        CONTROLLER, "makes a pod in its node's network", _RUNNERS, "create", PODS, _X,
        _evil(_X, {"hostNetwork": True}),
    ),
    Attempt(
        CONTROLLER, "mounts the node's files into a pod", _RUNNERS, "create", PODS, _X,
        _evil(_X, {"volumes": [*runner(MINE, _X)["spec"]["volumes"], {"name": "root", "hostPath": {"path": "/"}}]}),
    ),
    Attempt(
        CONTROLLER, "makes a pod beside the cluster's own", _RUNNERS, "create", PODS, _X,
        changed(runner(MINE, _X), {"metadata": {"namespace": SYSTEM}}), namespace=SYSTEM,
    ),
    Attempt(
        CONTROLLER, "makes a pod in a namespace that is closed to us", _RUNNERS, "create", PODS, _X,
        changed(runner(MINE, _X), {"metadata": {"namespace": CLOSED}}), namespace=CLOSED,
    ),
    Attempt(
        CONTROLLER, "makes a VM's pod on the flat network", "", "create", PODS, "mine-3",
        runner(changed(MINE, {"spec": {"extraNetwork": {"enable": True}}}), "mine-3"),
    ),
    Attempt(
        CONTROLLER, "makes a VM's pod with its agent's token", "", "create", PODS, "mine-4",
        _with_volume("mine-4", _TOKEN, serviceAccountName="vm-agent"),
    ),
    Attempt(
        CONTROLLER, "makes a pod with the token of another account", _RUNNERS, "create", PODS, _X,
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
        CONTROLLER, "gives a VM's own container its password", _RUNNERS, "create", PODS, _X, _password_for_all(_X),
    ),
    Attempt(CONTROLLER, "projects a Secret into a pod", _RUNNERS, "create", PODS, _X, _with_volume(_X, _SECRET)),
    Attempt(
        CONTROLLER, "gives a pod a Secret as its environment", _RUNNERS, "create", PODS, _X,
        _reading(_X, {"envFrom": [{"secretRef": {"name": "root"}}]}),
    ),
    Attempt(
        CONTROLLER, "gives a pod a Secret's key", _RUNNERS, "create", PODS, _X,
        _reading(_X, {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "root", "key": "a"}}}]}),
    ),
    Attempt(
        CONTROLLER, "mounts the node's folder of taps", _RUNNERS, "create", PODS, _X, _with_volume(_X, _TAPS),
    ),
    Attempt(
        CONTROLLER, "takes all places of a node", "policy neonvm-places", "create", PODS, _X,
        _reading(_X, {"resources": {"limits": {FLAT_RESOURCE: "1000"}, "requests": {FLAT_RESOURCE: "1000"}}}),
    ),
    Attempt(
        CONTROLLER, "takes a place for another container", "policy neonvm-places", "create", PODS, _X,
        _init(_X, resources={"limits": {FLAT_RESOURCE: "1"}, "requests": {FLAT_RESOURCE: "1"}}),
    ),
    *(Attempt(CONTROLLER, what, _RUNNERS, "create", PODS, _X, body) for what, body in _EVIL.items()),
    Attempt(
        CONTROLLER, "makes a pod that displaces others", _PRIORITIES, "create", PODS, _X,
        _prioritized(_X, "system-node-critical"),
    ),
    Attempt(CONTROLLER, "makes a pod of no VM", _RUNNERS, "create", PODS, _X, pod(_X)),
    Attempt(CONTROLLER, "deletes another's pod", _RUNNERS, "delete", PODS, "web-2"),
    *patches(PODS, "theirs-1", CONTROLLER, {
        "says what a VM has": (noted("vm.neon.tech/usage"), ""),
        "notes something else on a VM's pod": (noted("example.com/note"), _RUNNERS),
        "lets a VM be resized on its pod": ({"metadata": {"labels": {"autoscaling.neon.tech/enabled": "true"}}}, ""),
        "labels a VM's pod": ({"metadata": {"labels": {"app": "bank"}}}, _RUNNERS),
    }),
    *patches(VIRTUAL_MACHINES, "theirs", CONTROLLER, {
        "holds a VM until its pod is gone": ({"metadata": {"finalizers": ["vm.neon.tech/finalizer"]}}, ""),
        "resizes a VM": (use(2, 2), _MACHINES),
        "writes a permit": (noted("autoscaling.neon.tech/permit"), _MACHINES),
    }),
    *patches(
        PODS, "mine-1", CONTROLLER,
        {"resizes the pod of a VM": (resources(runner(MINE), GUEST, requests=MORE), RBAC)}, subresource="resize",
    ),
    Attempt(CONTROLLER, "deletes a VM", RBAC, "delete", VIRTUAL_MACHINES, "theirs"),
    Attempt(CONTROLLER, "returns a VM's address", "", "delete", IP_ADDRESSES, VM_ADDRESS["metadata"]["name"]),
    Attempt(CONTROLLER, "takes a service's address", _ADDRESSES, "delete", IP_ADDRESSES, "10.96.77.7"),
    Attempt(
        CONTROLLER, "claims an address for a service", _ADDRESSES, "create", IP_ADDRESSES, "10.96.77.8",
        address("10.96.77.8", "services", "", {}),
    ),
    Attempt(
        CONTROLLER, "guards the ports of VMs' pods", "", "create", NETWORK_POLICIES, POLICY, new_policy(SYSTEM),
        namespace=ELSEWHERE,
    ),
    Attempt(
        CONTROLLER, "opens all pods of a namespace", _NETWORKS, "create", NETWORK_POLICIES, POLICY,
        changed(new_policy(SYSTEM), {"spec": _OPENS}),
    ),
    Attempt(
        CONTROLLER, "closes what VMs' pods may reach", _NETWORKS, "create", NETWORK_POLICIES, POLICY,
        changed(new_policy(SYSTEM), {"spec": {"policyTypes": ["Ingress", "Egress"]}}),
    ),
    Attempt(
        CONTROLLER, "makes a NetworkPolicy of another name", _NETWORKS, "create", NETWORK_POLICIES, "open",
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
