"""The runner pod as a real cluster needs it: what the plain pod of a VM gets beside its place and its owners (pure).

Nothing in the pod has a privilege: the guest's devices come from device plugins of the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from deploy.neonvm.addressing import GUEST_DAEMON_PORT, METRICS_PORT, MONITOR_PORT
from deploy.neonvm.objects.init_containers import IMAGES, init_container, own_resources
from deploy.neonvm.objects.owners import migration_of
from deploy.neonvm.objects.pods import is_runner, runner_of
from deploy.neonvm.objects.target_pod import DISK
from deploy.neonvm.objects.vm_spec import own_ports, password_secret
from protocol.guest.sleep import ignored_networks
from protocol.kubernetes.objects import Json, annotations_of, child, flag, items, labels_of, name_of, text, whole
from protocol.names import (
    ANNOTATION_SLEEP_IGNORES,
    LABEL_ENABLED,
    PASSWORD_KEY,
    RUNNER_AUDIENCE,
    RUNNER_AUTHORITIES,
    RUNNER_COMMAND,
    RUNNER_IGNORES,
)

# "nonroot" of distroless images.
USER: Final = 65532
FLAT_RESOURCE: Final = "autoscaling.neon.tech/flat-network"
"""What a pod on the flat network takes one of: ``neonvm-network`` offers it on its node."""
FLAT_FOLDER: Final = "/run/autoscale/flat"
"""On the node: where that program hands over taps."""
FLAT_MOUNT: Final = "/run/flat"
"""In the pod: the folder with its own socket of that program."""

# Seconds until a pod of a lost node goes; Kubernetes' own default is five minutes.
_LOST: Final = 30
_SECRET: Final = "postgres"  # noqa: S105 - a volume
# Seconds before the first readiness probe.
_FIRST_LOOK: Final = 2


@dataclass(frozen=True, slots=True)
class RunnerForm:
    """``image`` is the runner's. ``guest_resource`` is what pods ask of the node's device plugin, empty for nothing.

    ``sidecar`` is the part of a pod (``containers``, ``volumes``) with which a VM that lets itself be resized runs its
    agent. It becomes a native sidecar, which does not keep the pod running once the guest has ended. A VM that names an
    account of its own has none: the agent's rights are its own account's. ``authorities``, in PEM, are those whose
    clients the pod lets in. ``pod_security`` is the security context of the pod. ``pull_secrets`` are the names of
    Secrets for the images that are ours; a VM adds those for its own.
    """

    image: str
    guest_resource: str = ""
    sidecar: Json | None = None
    authorities: str = ""
    pod_security: Json = field(default_factory=lambda: POD_SECURITY)
    pull_secrets: Sequence[str] = ()

    def __call__(self, vm: Json, pod: Json) -> Json:
        """The pod of ``vm``, made from the plain one."""
        spec = child(pod, "spec")
        agents = self._agents(vm)
        volumes = _volumes(vm)
        if agents:
            # The agent's identity for the API server: the runner beside it gets none.
            identity: Json = {"name": _IDENTITY, "projected": {"sources": _API_ACCESS}}
            volumes += [*items(self.sidecar or {}, "volumes"), identity]
        own_containers = [init_container(container) for container in items(vm, "spec", "extraInitContainers")]
        pod_spec: Json = {
            **spec,
            # The runner gets no rights at the API server; the agent's token is mounted into the agent alone.
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [*items(spec, "tolerations"), *_TOLERATIONS],
            "terminationGracePeriodSeconds": whole(vm, "spec", "terminationGracePeriodSeconds")
            or spec.get("terminationGracePeriodSeconds"),
            "securityContext": self.pod_security,
            # The disk is copied before the VM's own init containers run. Native sidecars start last.
            "initContainers": [_disk_copier(vm), *own_containers, *agents],
            "containers": [
                self._runner(vm, pod, container) if is_runner(container) else container
                for container in items(spec, "containers")
            ],
            "volumes": volumes,
        }
        if name := text(vm, "spec", "serviceAccountName") or (self._account if agents else ""):
            pod_spec["serviceAccountName"] = name
        own_secrets = items(vm, "spec", "imagePullSecrets")
        own_names = {text(secret, "name") for secret in own_secrets}
        added: list[Json] = [{"name": name} for name in self.pull_secrets if name not in own_names]
        if own_secrets or added:
            pod_spec["imagePullSecrets"] = [*own_secrets, *added]
        return {**pod, "spec": pod_spec}

    @property
    def _account(self) -> str:
        return text(self.sidecar or {}, "serviceAccountName")

    def _agents(self, vm: Json) -> list[Json]:
        if self.sidecar is None or labels_of(vm).get(LABEL_ENABLED) != "true":
            return []
        # A pod has one account: the agent would get the rights of the VM's.
        if text(vm, "spec", "serviceAccountName") not in {"", self._account}:
            return []
        return [_agent(container) for container in items(self.sidecar, "containers")]

    def _runner(self, vm: Json, pod: Json, plain: Json) -> Json:
        spec = child(vm, "spec")
        api, qmp = own_ports(spec)
        runner_ports = [{"name": "runner", "containerPort": api}, {"name": "qmp", "containerPort": qmp}]
        return {
            **plain,
            # The runner's image has QEMU and the guest's kernel; the VM's own image only brings its disk.
            "image": text(spec, "runnerImage") or self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": [RUNNER_COMMAND],
            # The authorities stand in the pod itself, whose environment nobody can change once it runs.
            "env": [*_environment(vm, pod), {"name": RUNNER_AUTHORITIES, "value": self.authorities}],
            "ports": [*runner_ports, *items(plain, "ports")],
            "resources": self._resources(vm),
            "readinessProbe": {
                "httpGet": {"path": "/ready", "port": api, "scheme": "HTTPS"},
                "initialDelaySeconds": _FIRST_LOOK,
                "periodSeconds": 5,
                "timeoutSeconds": 5,
            },
            "securityContext": _CONTAINER_SECURITY,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                {"name": IMAGES, "mountPath": "/vm/images"},
                {"name": "run", "mountPath": "/run/neonvm"},
                {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - in the pod
                {"name": _SECRET, "mountPath": "/run/password", "readOnly": True},
                {"name": _RUNNER_IDENTITY, "mountPath": "/run/identity", "readOnly": True},
            ],
        }

    def _resources(self, vm: Json) -> Json:
        wanted = own_resources(child(vm, "spec", "podResources"))
        # `FLAT_RESOURCE` brings the socket at which the node's network program hands over the tap.
        taken = [FLAT_RESOURCE] if is_on_flat_network(vm) else []
        if self.guest_resource and child(vm, "spec").get("enableAcceleration") is not False:
            # It brings /dev/kvm, on nodes that have it.
            taken.append(self.guest_resource)
        # For extended resources the request defaults to the limit.
        return {**wanted, "limits": {**child(wanted, "limits"), **dict.fromkeys(taken, "1")}} if taken else wanted


def is_open(pod: Json) -> bool:
    """Return True if the ports of a VM's pod let everyone in: only a pod of ours names whom it lets in."""
    return not any(text(variable, "name") == RUNNER_AUTHORITIES for variable in items(runner_of(pod), "env"))


def is_on_flat_network(vm: Json) -> bool:
    """Return True if the VM has an address of its own, which stays with it when it moves."""
    return flag(vm, "spec", "extraNetwork", "enable")


_TOLERATIONS: Final[list[Json]] = [
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _LOST}
    for what in ("not-ready", "unreachable")
]
POD_SECURITY: Final[Json] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER_SECURITY: Final[Json] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


_RUNNER_IDENTITY: Final = "runner-identity"
# A token for nothing else: it proves to the controller which pod it speaks with.
_OF_THIS_POD: Final[Json] = {
    "serviceAccountToken": {"path": "token", "audience": RUNNER_AUDIENCE, "expirationSeconds": 3600}
}
_IDENTITY: Final = "kube-api-access"
_API_ACCESS: Final[list[Json]] = [
    # As in the volume that Kubernetes itself would project.
    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
]
_GUEST_AT: Final = {
    "METRICS_URL": f"http://127.0.0.1:{METRICS_PORT}/metrics",
    "DATABASE_URL": f"http://127.0.0.1:{GUEST_DAEMON_PORT}/database",
    "MONITOR_URL": f"ws://127.0.0.1:{MONITOR_PORT}/monitor",
}


def _agent(plain: Json) -> Json:
    """A sidecar that finds the guest at the pod's own ports, and has an identity for the API server."""
    # These point at the pod itself, and replace what the chart sets for them.
    variables = [variable for variable in items(plain, "env") if text(variable, "name") not in _GUEST_AT]
    mount: Json = {"name": _IDENTITY, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
    return {
        **plain,
        # This makes an init container a native sidecar.
        "restartPolicy": "Always",
        "env": [*variables, *({"name": name, "value": value} for name, value in _GUEST_AT.items())],
        "volumeMounts": [*items(plain, "volumeMounts"), mount],
    }


def _disk_copier(vm: Json) -> Json:
    disk = child(vm, "spec", "guest", "rootDisk")
    return {
        "name": DISK,
        "image": text(disk, "image"),
        "imagePullPolicy": text(disk, "imagePullPolicy") or "IfNotPresent",
        "command": ["sh", "-c", "cp /disk.qcow2 /vm/images/rootdisk.qcow2"],
        "securityContext": _CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": IMAGES, "mountPath": "/vm/images"}],
    }


def _environment(vm: Json, pod: Json) -> list[Json]:
    # The uid is known only once the API server has made the pod.
    fields = {"K8S_POD_NAME": "metadata.name", "POD_UID": "metadata.uid"}
    # A tenant writes the annotation: pass on networks, not its text.
    ignores = ",".join(map(str, ignored_networks(annotations_of(vm).get(ANNOTATION_SLEEP_IGNORES, ""))))
    plain = {
        "VM_NAMESPACE": name_of(vm).namespace,
        "VM_NAME": name_of(vm).name,
        "AUTOSCALE_CACHE": "/run/neonvm/cache",
        **({RUNNER_IGNORES: ignores} if ignores else {}),
        # A pod that belongs to a migration is its target.
        **({"RECEIVE_MIGRATION": "true"} if migration_of(pod) else {}),
    }
    from_fields: list[Json] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]
    from_values: list[Json] = [{"name": name, "value": value} for name, value in plain.items()]
    return [*from_fields, *from_values]


def _password_of(vm: Json) -> Json:
    """A pod without the Secret starts anyway; the kubelet mounts one that is made later."""
    items = [{"key": PASSWORD_KEY, "path": PASSWORD_KEY}]
    return {"secretName": password_secret(vm).name, "optional": True, "items": items, "defaultMode": 0o440}


def _volumes(vm: Json) -> list[Json]:
    return [
        {"name": IMAGES, "emptyDir": {}},
        # In memory: keys of migrations are written here.
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        {"name": _SECRET, "secret": _password_of(vm)},
        {"name": _RUNNER_IDENTITY, "projected": {"sources": [_OF_THIS_POD]}},
    ]
