"""What the programs that run VMs try, and the expander."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.resources import IP_ADDRESSES, NODES, PODS, VIRTUAL_MACHINES
from tests.kubernetes.attacks.attempt import RBAC, Attempt, changed, noted, patches, resources, use
from tests.kubernetes.attacks.world import (
    CLOSED,
    CONTROLLER,
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
    pod,
    runner,
)

_RUNNERS: Final = "policy neonvm-controller-pods"
_MACHINES: Final = "policy neonvm-controller-vms"
_ADDRESSES: Final = "policy neonvm-controller-addresses"


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


def _flat_for_all(name: str) -> Obj:
    """Another container with the folder of all taps."""
    made = runner(changed(MINE, {"spec": {"extraNetwork": {"enable": True}}}), name)
    made["spec"]["initContainers"][0]["volumeMounts"].append({"name": "flat", "mountPath": "/all"})
    return made


_TOKEN: Final[Obj] = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
_SECRET: Final[Obj] = {"projected": {"sources": [{"secret": {"name": "root"}}]}}

BY_CONTROLLER: Final = (
    Attempt(CONTROLLER, "makes a VM's pod", "", "create", PODS, "mine-2", runner(MINE, "mine-2")),
    Attempt(CONTROLLER, "makes a privileged pod", _RUNNERS, "create", PODS, "x", _privileged("x")),
    Attempt(
        CONTROLLER, "makes a pod in its node's network", _RUNNERS, "create", PODS, "x",
        _evil("x", {"hostNetwork": True}),
    ),
    Attempt(
        CONTROLLER, "mounts the node's files into a pod", _RUNNERS, "create", PODS, "x",
        _evil("x", {"volumes": [*runner(MINE, "x")["spec"]["volumes"], {"name": "root", "hostPath": {"path": "/"}}]}),
    ),
    Attempt(
        CONTROLLER, "makes a pod beside the cluster's own", _RUNNERS, "create", PODS, "x",
        changed(runner(MINE, "x"), {"metadata": {"namespace": SYSTEM}}), namespace=SYSTEM,
    ),
    Attempt(
        CONTROLLER, "makes a pod in a namespace that is closed to us", _RUNNERS, "create", PODS, "x",
        changed(runner(MINE, "x"), {"metadata": {"namespace": CLOSED}}), namespace=CLOSED,
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
        CONTROLLER, "makes a pod with the token of another account", _RUNNERS, "create", PODS, "x",
        _with_volume("x", _TOKEN, serviceAccountName="default"),
    ),
    Attempt(
        CONTROLLER, "mounts a Secret into a pod", _RUNNERS, "create", PODS, "x",
        _with_volume("x", {"secret": {"secretName": "root"}}),
    ),
    Attempt(CONTROLLER, "projects a Secret into a pod", _RUNNERS, "create", PODS, "x", _with_volume("x", _SECRET)),
    Attempt(
        CONTROLLER, "gives a pod a Secret as its environment", _RUNNERS, "create", PODS, "x",
        _reading("x", {"envFrom": [{"secretRef": {"name": "root"}}]}),
    ),
    Attempt(
        CONTROLLER, "gives a pod a Secret's key", _RUNNERS, "create", PODS, "x",
        _reading("x", {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "root", "key": "a"}}}]}),
    ),
    Attempt(
        CONTROLLER, "gives a container all taps of the node", _RUNNERS, "create", PODS, "x", _flat_for_all("x"),
    ),
    Attempt(CONTROLLER, "makes a pod of no VM", _RUNNERS, "create", PODS, "x", pod("x")),
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
    Attempt(CONTROLLER, "reads secrets", RBAC, "get", SECRETS, ""),
    *patches(NODES, "node-a", NETWORK, {"labels its node": ({"metadata": {"labels": {"a": "b"}}}, RBAC)}),
    *patches(VIRTUAL_MACHINES, "mine", NETWORK, {"resizes a VM": (use(1, 1), RBAC)}),
    Attempt(EXPANDER, "reads pods", RBAC, "get", PODS, ""),
    *patches(NODES, "node-a", EXPANDER, {"labels a node": ({"metadata": {"labels": {"a": "b"}}}, RBAC)}),
)  # fmt: skip
