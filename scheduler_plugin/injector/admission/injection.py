"""Decides which pods get the agent, and builds the JSON Patch that adds it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from protocol.kubernetes.objects import Json, JsonObject, child, items, labels_of, text
from protocol.names import (
    AGENT_CONTAINER,
    LABEL_ENABLED,
    LABEL_INJECT,
    LABEL_VM_NAME,
    RUNNER_COMMAND,
    RUNNER_CONTAINER,
    TOKEN_AUDIENCE,
)
from scheduler_plugin.injector import texts

METRICS_PORT: Final = 9100
MONITOR_PORT: Final = 10301
AGENT_PORT: Final = 9101
USER: Final = 65532
IDENTITY: Final = "autoscaling-agent-identity"
API_ACCESS: Final = "autoscaling-agent-api-access"
IDENTITY_FOLDER: Final = "/var/run/autoscale"
ACCOUNT_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
IN_OUR_POD: Final = "127.0.0.1"
"""Our runner forwards the ports that an agent needs to the guest, even if the VM does not declare them."""

IN_NEONVMS_POD: Final = "169.254.254.254"
"""The guest's address in a NeonVM pod, whose runner forwards only ports that the VM declares."""

DAEMON_PORTS: Final = {IN_OUR_POD: 25184, IN_NEONVMS_POD: 25183}
"""Port of the daemon in the guest. In our pods 25183 is the runner's port for the controller."""

DEFAULT_ACCOUNTS: Final = frozenset({"", "default"})


SECURITY: Final[Json] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]


def _resources() -> dict[str, Any]:
    return {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": "96Mi"}}


class PullSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An image pull Secret."""

    name: Name


class InjectedAgentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Settings of injected agents.

    ``service_account`` is for pods that have none of their own. ``env`` adds environment variables, which set the
    agent's settings.
    """

    image: str
    scheduler_url: str
    service_account: Name = "vm-agent"
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    resources: dict[str, Any] = msgspec.field(default_factory=_resources)
    env: dict[str, str] = {}
    security_context: dict[str, Any] = msgspec.field(default_factory=lambda: dict(SECURITY))
    image_pull_secrets: list[PullSecret] = []


class AgentTemplate(NamedTuple):
    """Settings of all agents. ``authorities`` is the name of the ConfigMap with the CA bundle in each namespace."""

    agent: InjectedAgentSettings
    authorities: str


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The pod is not changed. ``outcome`` is the label of the metric, ``why`` a warning for its creator, or empty."""

    outcome: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """The pod is refused because of ``why``."""

    why: str


NO_VM: Final = Unchanged("no_vm")
NOT_ENABLED: Final = Unchanged("not_enabled")
OPTED_OUT: Final = Unchanged("opted_out")
HAS_AGENT: Final = Unchanged("has_agent")


def judge(pod: Json, template: AgentTemplate) -> Unchanged | RefusedPod | list[Json]:
    """The JSON Patch (RFC 6902) that adds the agent to a new pod, or why the pod is not changed or is refused."""
    spec, labels = child(pod, "spec"), labels_of(pod)
    runners = [container for container in items(spec, "containers") if text(container, "name") == RUNNER_CONTAINER]
    # VM pods of our controller and of NeonVM have both.
    if not labels.get(LABEL_VM_NAME) or not runners:
        return NO_VM
    if (unchanged := _reason_to_skip(spec, labels)) is not None:
        return unchanged
    # These volumes have tokens, which other containers could mount by name.
    if taken := _reserved_names(spec):
        return RefusedPod(texts.VOLUMES_TAKEN.format(names=", ".join(taken)))
    account, own = text(spec, "serviceAccountName"), template.agent.service_account
    # The agent would get this account's tokens, and anyone who may create VMs could choose the account.
    if account not in {*DEFAULT_ACCOUNTS, own}:
        return Unchanged("own_account", texts.OWN_ACCOUNT.format(account=account, own=own))
    # Without labels and annotations, because NeonVM's controller removes those that the VM does not have.
    return [
        *_appended(spec, "initContainers", [_agent(labels[LABEL_VM_NAME], runners[0], template.agent)]),
        *_appended(spec, "volumes", _volumes(template)),
        *_appended(spec, "imagePullSecrets", _missing_secrets(spec, template)),
        {"op": "add", "path": "/spec/serviceAccountName", "value": own},
    ]


def _missing_secrets(spec: Json, template: AgentTemplate) -> list[Json]:
    named = {text(reference, "name") for reference in items(spec, "imagePullSecrets")}
    return [{"name": secret.name} for secret in template.agent.image_pull_secrets if secret.name not in named]


def _reason_to_skip(spec: Json, labels: Mapping[str, str]) -> Unchanged | None:
    if labels.get(LABEL_ENABLED) != "true":
        return NOT_ENABLED
    if labels.get(LABEL_INJECT) == "false":
        return OPTED_OUT
    # The API server may call again after other webhooks; that must change nothing.
    has_agent = any(text(container, "name") == AGENT_CONTAINER for container in _containers(spec))
    return HAS_AGENT if has_agent else None


def _containers(spec: Json) -> list[Json]:
    return [container for kind in _KINDS for container in items(spec, kind)]


def _reserved_names(spec: Json) -> list[str]:
    # Mounts count even without a volume, because the agent would add the volume.
    mentions = [*items(spec, "volumes")]
    for container in _containers(spec):
        mentions += [*items(container, "volumeMounts"), *items(container, "volumeDevices")]
    return sorted({text(mention, "name") for mention in mentions} & {IDENTITY, API_ACCESS})


_KINDS: Final = ("containers", "initContainers", "ephemeralContainers")


def _appended(spec: Json, name: str, added: list[Json]) -> list[Json]:
    if not added:
        return []
    # JSON Patch cannot append to a missing list.
    if not items(spec, name):
        return [{"op": "add", "path": f"/spec/{name}", "value": added}]
    return [{"op": "add", "path": f"/spec/{name}/-", "value": element} for element in added]


def _agent(vm: str, runner: Json, settings: InjectedAgentSettings) -> Json:
    # The guest's address differs between the two kinds of pods.
    guest = IN_OUR_POD if runner.get("command") == [RUNNER_COMMAND] else IN_NEONVMS_POD
    values = {
        "AGENT_MODE": "sidecar",
        "VM_NAME": vm,
        "METRICS_URL": f"http://{guest}:{METRICS_PORT}/metrics",
        "DATABASE_URL": f"http://{guest}:{DAEMON_PORTS[guest]}/database",
        "MONITOR_URL": f"ws://{guest}:{MONITOR_PORT}/monitor",
        "SCHEDULER_URL": settings.scheduler_url,
        "SCHEDULER_TOKEN_FILE": f"{IDENTITY_FOLDER}/token",
        "SCHEDULER_CA_FILE": f"{IDENTITY_FOLDER}/ca.crt",
        # Last, so that the settings take precedence.
        **settings.env,
    }
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    variables: list[Json] = [{"name": name, "value": value} for name, value in values.items()]
    variables += [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    return {
        "name": AGENT_CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        # As a native sidecar it is restarted, and the pod ends with its guest.
        "restartPolicy": "Always",
        "env": variables,
        "ports": [{"name": "agent-metrics", "containerPort": AGENT_PORT, "protocol": "TCP"}],
        # No startup probe, because the guest would wait for the agent.
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": AGENT_PORT}, "initialDelaySeconds": 10},
        "resources": settings.resources,
        "securityContext": settings.security_context,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": IDENTITY, "mountPath": IDENTITY_FOLDER, "readOnly": True},
            {"name": API_ACCESS, "mountPath": ACCOUNT_FOLDER, "readOnly": True},
        ],
    }


def _volumes(template: AgentTemplate) -> list[Json]:
    """Volumes with token and CA for the scheduler, and for the API server, which VM pods lack.

    The scheduler's CA is optional, so that a VM starts without it; its agent waits for it.
    """
    trusted: Json = {"name": template.authorities, "optional": True, "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    token: Json = {"path": "token", "audience": TOKEN_AUDIENCE, "expirationSeconds": 3600}
    return [
        {"name": IDENTITY, "projected": {"sources": [{"serviceAccountToken": token}, {"configMap": trusted}]}},
        {"name": API_ACCESS, "projected": {"sources": _API_SOURCES}},
    ]


_API_SOURCES: Final[list[Json]] = [
    # As in Kubernetes' own projected volume.
    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
]


LEAST_KUBERNETES: Final = (1, 29)
_DIGITS: Final = re.compile(r"\d+")


def no_native_sidecars(version: JsonObject) -> str:
    """The reason why no agent can be injected, from the API server's ``/version``; empty if agents can be injected.

    Before Kubernetes 1.29 there are no init containers with ``restartPolicy: Always``, so the guest would wait for the
    end of the agent.
    """
    # Managed clusters report minor versions such as ``29+``.
    matches = [_DIGITS.match(text(version, part)) for part in ("major", "minor")]
    numbers = tuple(int(match[0]) for match in matches if match is not None)
    if len(numbers) == len(matches) and numbers >= LEAST_KUBERNETES:
        return ""
    least = ".".join(map(str, LEAST_KUBERNETES))
    return texts.OLD_KUBERNETES.format(least=least, version=text(version, "gitVersion") or texts.UNNAMED_VERSION)
