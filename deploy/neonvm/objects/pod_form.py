"""Builds the runner pod for a real cluster from a VM's plain pod (pure).

The pod is unprivileged: the guest's devices come from the node's device plugins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from deploy.neonvm.addressing import GUEST_DAEMON_PORT, METRICS_PORT, MONITOR_PORT
from deploy.neonvm.objects.init_containers import IMAGES, allowed_resources, init_container
from deploy.neonvm.objects.owners import migration_of
from deploy.neonvm.objects.pods import is_runner, runner_of
from deploy.neonvm.objects.target_pod import DISK
from deploy.neonvm.objects.vm_spec import password_secret, runner_ports
from protocol.guest.sleep import ignored_networks
from protocol.kubernetes.objects import Json, annotations_of, child, flag, integer, items, labels_of, name_of, text
from protocol.names import (
    ANNOTATION_SLEEP_IGNORES,
    LABEL_ENABLED,
    PASSWORD_KEY,
    RUNNER_AUDIENCE,
    RUNNER_AUTHORITIES,
    RUNNER_COMMAND,
    RUNNER_IGNORES,
    RUNNER_STORAGE,
)

# "nonroot" of distroless images.
USER: Final = 65532
FLAT_RESOURCE: Final = "autoscaling.neon.tech/flat-network"
"""Extended resource of ``neonvm-network``; each pod on the flat network requests one."""
FLAT_FOLDER: Final = "/run/autoscale/flat"
"""Folder on the node with the sockets at which ``neonvm-network`` hands out taps."""
FLAT_MOUNT: Final = "/run/flat"
"""Folder in the pod with its socket of ``neonvm-network``."""

# Seconds until a pod on a lost node is evicted; Kubernetes' default is five minutes.
_LOST_SECONDS: Final = 30
_PASSWORD_VOLUME: Final = "postgres"  # noqa: S105 - a volume
# Seconds before the first readiness probe.
_PROBE_DELAY: Final = 2


@dataclass(frozen=True, slots=True)
class RunnerForm:
    """Settings of runner pods. ``image`` is the runner's image. ``guest_resource`` is the extended resource that brings
    the guest's devices; empty if pods request none.

    ``sidecar`` is a partial pod spec (``containers``, ``volumes``, ``serviceAccountName``) with the agent, for VMs with
    autoscaling enabled. Its containers become native sidecars, which do not keep the pod running once the guest has
    ended. A VM with a service account of its own gets no agent, which needs the sidecar's account. ``authorities`` are
    the CAs (PEM) of the clients that the pod accepts. ``pod_security`` is the pod's security context. ``pull_secrets``
    are the names of Secrets for our own images; a VM may add others.
    """

    image: str
    guest_resource: str = ""
    sidecar: Json | None = None
    authorities: str = ""
    pod_security: Json = field(default_factory=lambda: POD_SECURITY)
    pull_secrets: Sequence[str] = ()

    def __call__(self, vm: Json, pod: Json) -> Json:
        """The pod of ``vm``, built from its plain ``pod``."""
        spec = child(pod, "spec")
        agents = self._agents(vm)
        volumes = _volumes(vm)
        if agents:
            # The agent's token for the API server; the runner gets none.
            identity: Json = {"name": _IDENTITY, "projected": {"sources": _API_ACCESS}}
            volumes += [*items(self.sidecar or {}, "volumes"), identity]
        own_containers = [init_container(container) for container in items(vm, "spec", "extraInitContainers")]
        pod_spec: Json = {
            **spec,
            # The runner has no access to the API server; the agent's token is mounted only into the agent.
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [*items(spec, "tolerations"), *_TOLERATIONS],
            "terminationGracePeriodSeconds": integer(vm, "spec", "terminationGracePeriodSeconds")
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
        # A pod has one service account, so the agent would run with the VM's.
        if text(vm, "spec", "serviceAccountName") not in {"", self._account}:
            return []
        return [_agent(container) for container in items(self.sidecar, "containers")]

    def _runner(self, vm: Json, pod: Json, plain: Json) -> Json:
        spec = child(vm, "spec")
        api, qmp = runner_ports(spec)
        ports = [{"name": "runner", "containerPort": api}, {"name": "qmp", "containerPort": qmp}]
        return {
            **plain,
            # The runner's image contains QEMU and the guest's kernel; the VM's own image contains only its disk.
            "image": text(spec, "runnerImage") or self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": [RUNNER_COMMAND],
            # In the environment, because that cannot be changed once the pod exists.
            "env": [*_environment(vm, pod), {"name": RUNNER_AUTHORITIES, "value": self.authorities}],
            "ports": [*ports, *items(plain, "ports")],
            "resources": self._resources(vm),
            "readinessProbe": {
                "httpGet": {"path": "/ready", "port": api, "scheme": "HTTPS"},
                "initialDelaySeconds": _PROBE_DELAY,
                "periodSeconds": 5,
                "timeoutSeconds": 5,
            },
            "securityContext": _CONTAINER_SECURITY,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                {"name": IMAGES, "mountPath": "/vm/images"},
                {"name": "run", "mountPath": "/run/neonvm"},
                {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - in the pod
                {"name": _PASSWORD_VOLUME, "mountPath": "/run/password", "readOnly": True},
                {"name": _RUNNER_IDENTITY, "mountPath": "/run/identity", "readOnly": True},
            ],
        }

    def _resources(self, vm: Json) -> Json:
        resources = allowed_resources(child(vm, "spec", "podResources"))
        # With `FLAT_RESOURCE` comes the socket at which `neonvm-network` hands out the tap.
        devices = [FLAT_RESOURCE] if is_on_flat_network(vm) else []
        if self.guest_resource and child(vm, "spec").get("enableAcceleration") is not False:
            # With it comes /dev/kvm, on nodes that have it.
            devices.append(self.guest_resource)
        # For extended resources the request defaults to the limit.
        limits = {**child(resources, "limits"), **dict.fromkeys(devices, "1")}
        return {**resources, "limits": limits} if devices else resources


def is_open(pod: Json) -> bool:
    """Return True if the ports of a VM's pod are not authenticated: only pods created by us have CAs for that."""
    return not any(text(variable, "name") == RUNNER_AUTHORITIES for variable in items(runner_of(pod), "env"))


def is_on_flat_network(vm: Json) -> bool:
    """Return True if the VM has an address on the flat network, which it keeps when it is migrated."""
    return flag(vm, "spec", "extraNetwork", "enable")


_TOLERATIONS: Final[list[Json]] = [
    {
        "key": f"node.kubernetes.io/{condition}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": _LOST_SECONDS,
    }
    for condition in ("not-ready", "unreachable")
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
# A token only for the controller's audience, which proves the pod's identity to it.
_POD_TOKEN: Final[Json] = {
    "serviceAccountToken": {"path": "token", "audience": RUNNER_AUDIENCE, "expirationSeconds": 3600}
}
_IDENTITY: Final = "kube-api-access"
_API_ACCESS: Final[list[Json]] = [
    # The same as Kubernetes would mount automatically.
    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
]
_GUEST_URLS: Final = {
    "METRICS_URL": f"http://127.0.0.1:{METRICS_PORT}/metrics",
    "DATABASE_URL": f"http://127.0.0.1:{GUEST_DAEMON_PORT}/database",
    "MONITOR_URL": f"ws://127.0.0.1:{MONITOR_PORT}/monitor",
}


def _agent(plain: Json) -> Json:
    """The agent's container as a sidecar, with the guest's URLs and a token for the API server."""
    # The guest's URLs are ports of the pod; they replace those set by the chart.
    variables = [variable for variable in items(plain, "env") if text(variable, "name") not in _GUEST_URLS]
    mount: Json = {"name": _IDENTITY, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
    return {
        **plain,
        # This makes an init container a native sidecar.
        "restartPolicy": "Always",
        "env": [*variables, *({"name": name, "value": value} for name, value in _GUEST_URLS.items())],
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
    # The API server assigns the uid when it creates the pod.
    fields = {"K8S_POD_NAME": "metadata.name", "POD_UID": "metadata.uid"}
    # A tenant writes the annotation, so pass on the parsed networks instead of its text.
    ignores = ",".join(map(str, ignored_networks(annotations_of(vm).get(ANNOTATION_SLEEP_IGNORES, ""))))
    plain = {
        "VM_NAMESPACE": name_of(vm).namespace,
        "VM_NAME": name_of(vm).name,
        "AUTOSCALE_CACHE": "/run/neonvm/cache",
        **({RUNNER_IGNORES: ignores} if ignores else {}),
        # A pod owned by a migration is its target.
        **({"RECEIVE_MIGRATION": "true"} if migration_of(pod) else {}),
    }
    from_fields: list[Json] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]
    from_values: list[Json] = [{"name": name, "value": value} for name, value in plain.items()]
    # Without a limit, the kubelet fills in what the node has.
    limit: Json = {"name": RUNNER_STORAGE, "valueFrom": {"resourceFieldRef": {"resource": "limits.ephemeral-storage"}}}
    return [*from_fields, limit, *from_values]


def _password_of(vm: Json) -> Json:
    """Volume source of the password. Optional: a pod starts without the Secret, and the kubelet mounts it later."""
    items = [{"key": PASSWORD_KEY, "path": PASSWORD_KEY}]
    return {"secretName": password_secret(vm).name, "optional": True, "items": items, "defaultMode": 0o440}


def _volumes(vm: Json) -> list[Json]:
    return [
        {"name": IMAGES, "emptyDir": {}},
        # In memory, because it contains the private keys of migrations.
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        {"name": _PASSWORD_VOLUME, "secret": _password_of(vm)},
        {"name": _RUNNER_IDENTITY, "projected": {"sources": [_POD_TOKEN]}},
    ]
