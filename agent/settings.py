"""Settings of an agent process: flags override environment variables, which override defaults.

``OPTIONS`` is the list of all settings. Errors name the environment variable.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.assignments import Assignment
from protocol import VERSION
from protocol.messages import ObjectName
from protocol.runtime.followed_file import SettingsError
from protocol.units import ComputeUnit, QuantityError
from protocol.versions import SPOKEN, ProtocolVersion

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory of a pod's service-account token, namespace and CA."""

OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "AGENT_MODE": ("sidecar", "sidecar (the VM of this pod) or node (every VM of NODE_NAME)"),
    "VM_NAMESPACE": ("", "sidecar: namespace of the VM (default: the pod's)"),
    "VM_NAME": ("", "sidecar: name of the VM"),
    "POD_NAMESPACE": ("", "namespace of this pod (default: the VM's; node: its service account's)"),
    "POD_NAME": ("", "sidecar: name of this pod"),
    "NODE_NAME": ("", "node: name of this node"),
    "SCHEDULER_URL": ("http://autoscaling-scheduler.kube-system.svc:10299", "URL of the scheduler for agents"),
    "SCHEDULER_TOKEN_FILE": ("", "token file for the scheduler (default: send no token)"),
    "SCHEDULER_CA_FILE": ("", "CA of the scheduler's certificate (default: the system's CAs)"),
    "SCHEDULER_PROTOCOL": (
        "v2.1",
        "protocol of the scheduler: v2.1, or v5.0 together with COMPUTE_UNIT",
    ),
    "COMPUTE_UNIT": ("", "v5.0: compute unit, CPU and memory: 250m,1Gi"),
    "SERVED_SCHEDULER_NAME": ("", "node: only VMs with this spec.schedulerName (default: all)"),
    "CGROUP_ROOT": ("", "node: the node's /sys/fs/cgroup, to scale opted-in pods (default: no pods)"),
    "RECLAIMER_SOCKET": ("", "node: socket of the reclaimer, to test a pod with less memory"),
    "METRICS_URL": ("http://10.255.255.254:9100/metrics", "the guest's node_exporter; node: with {pod_ip}"),
    "DATABASE_URL": ("http://10.255.255.254:25183/database", "status of the guest's database; node: with {pod_ip}"),
    "GUEST_CERTIFICATES": ("", "directory with tls.crt and tls.key of this agent, for a DATABASE_URL with https"),
    "MONITOR_URL": (
        "ws://10.255.255.254:10301/monitor",
        "the guest's monitor, if there is one; off: never connect",
    ),
    "KUBERNETES_API_URL": ("https://kubernetes.default.svc", "the Kubernetes API"),
    "KUBERNETES_TOKEN_FILE": (str(ACCOUNT / "token"), "token file for the API server (missing: send no token)"),
    "KUBERNETES_CA_FILE": (str(ACCOUNT / "ca.crt"), "CA of the API server's certificate"),
    "AGENT_LISTEN": ("0.0.0.0:9101", "address of /metrics /healthz /readyz /explain /database"),
    "EXPLAIN_TOKEN_FILE": ("", "file with the only token for /explain and /database (default: TokenReview)"),
    "AGENT_CONFIG": ("", "policy file (YAML), reloaded when it changes"),
}


NODE_DEFAULTS: Final[Mapping[str, str]] = {
    "METRICS_URL": "http://{pod_ip}:9100/metrics",
    "DATABASE_URL": "http://{pod_ip}:25183/database",
}
"""Defaults for AGENT_MODE=node, in which every guest has its own address."""

_URL: Final = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:[/?][!-~]*)?")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Validated settings. ``assignment`` is set for a sidecar, ``node`` for a node's agent.

    ``compute_unit`` is set if ``protocol`` does not transmit it. An empty ``scheduler_name`` selects all VMs.
    ``namespace`` is the agent pod's, empty if unknown. Pods are scaled if ``cgroup_root`` is set.
    """

    assignment: Assignment | None
    node: str | None
    scheduler_url: str
    scheduler_token: Path | None
    scheduler_ca: Path | None
    protocol: ProtocolVersion
    compute_unit: ComputeUnit | None
    scheduler_name: str
    metrics_url: str
    database_url: str
    guest_certificates: Path | None
    monitor_url: str | None
    api_url: str
    api_token: Path | None
    api_ca: Path | None
    host: str
    port: int
    policy_file: Path | None
    namespace: str
    explain_token: Path | None
    cgroup_root: Path | None
    reclaimer: Path | None


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> AgentSettings:
    """Read the settings. Raises ``SettingsError``; ``--help`` and bad flags exit as in argparse."""
    # Empty counts as unset, because manifests often pass empty variables.
    settings = {
        name: value or environment.get(name, "") or OPTIONS[name][0] for name, value in _flags(arguments).items()
    }
    host, port = _listen(settings["AGENT_LISTEN"])
    assignment, node = _served(settings)
    protocol, unit = _protocol_and_unit(settings)
    return AgentSettings(
        assignment=assignment,
        node=node,
        scheduler_url=_url("SCHEDULER_URL", settings),
        scheduler_token=_path(settings["SCHEDULER_TOKEN_FILE"]),
        scheduler_ca=_path(settings["SCHEDULER_CA_FILE"]),
        protocol=protocol,
        compute_unit=unit,
        scheduler_name=settings["SERVED_SCHEDULER_NAME"],
        metrics_url=_metrics(settings),
        database_url=_guest_url("DATABASE_URL", settings),
        guest_certificates=_path(settings["GUEST_CERTIFICATES"]),
        monitor_url=_monitor(settings),
        api_url=_url("KUBERNETES_API_URL", settings),
        api_token=_optional_path("KUBERNETES_TOKEN_FILE", settings),
        api_ca=_optional_path("KUBERNETES_CA_FILE", settings),
        host=host,
        port=port,
        policy_file=_path(settings["AGENT_CONFIG"]),
        namespace=assignment.pod.namespace if assignment else settings["POD_NAMESPACE"] or _own_namespace(),
        explain_token=_path(settings["EXPLAIN_TOKEN_FILE"]),
        cgroup_root=_node_path("CGROUP_ROOT", settings),
        reclaimer=_node_path("RECLAIMER_SOCKET", settings),
    )


def _flags(arguments: Sequence[str]) -> dict[str, str | None]:
    parser = argparse.ArgumentParser(
        prog="autoscaler-agent",
        description="Watches the load of postgres VMs, requests permits from the scheduler, and resizes the VMs. "
        "Every flag can be set as an environment variable of the same name.",
    )
    for name, (default, text) in OPTIONS.items():
        suffix = f" (default: {default})" if default else ""
        parser.add_argument(f"--{name.lower().replace('_', '-')}", dest=name, metavar=name, help=f"{text}{suffix}")
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    return {name: value for name, value in vars(parser.parse_args(arguments)).items() if name in OPTIONS}


def _protocol_and_unit(settings: Mapping[str, str]) -> tuple[ProtocolVersion, ComputeUnit | None]:
    """The protocol version, and the agent's own compute unit if that version does not transmit one."""
    name, unit = settings["SCHEDULER_PROTOCOL"], settings["COMPUTE_UNIT"]
    if name not in SPOKEN:
        raise SettingsError(f"SCHEDULER_PROTOCOL: expected {' or '.join(SPOKEN)}, got {name!r}")
    if SPOKEN[name] is not ProtocolVersion.V5_0:
        # It could differ from the scheduler's unit.
        if unit:
            raise SettingsError("COMPUTE_UNIT: only with SCHEDULER_PROTOCOL=v5.0; otherwise the scheduler sets it")
        return SPOKEN[name], None
    cpu, _, mem = unit.partition(",")
    try:
        return SPOKEN[name], ComputeUnit.parse(cpu, mem)
    except (QuantityError, ValueError) as error:
        raise SettingsError(f"COMPUTE_UNIT: expected CPU and memory like 250m,1Gi: {error}") from None


def _served(settings: Mapping[str, str]) -> tuple[Assignment | None, str | None]:
    match settings["AGENT_MODE"]:
        case "sidecar":
            vm_namespace = settings["VM_NAMESPACE"] or settings["POD_NAMESPACE"]
            needed = {"VM_NAMESPACE": vm_namespace, "VM_NAME": settings["VM_NAME"], "POD_NAME": settings["POD_NAME"]}
            _require(needed)
            for name in ("METRICS_URL", "DATABASE_URL", "MONITOR_URL"):
                # A sidecar reaches its guest without the pod's address.
                if "{pod_ip}" in settings[name]:
                    raise SettingsError(f"{name}: {{pod_ip}} needs AGENT_MODE=node")
            pod = ObjectName(settings["POD_NAMESPACE"] or vm_namespace, settings["POD_NAME"])
            return Assignment(ObjectName(vm_namespace, settings["VM_NAME"]), pod), None
        case "node":
            _require({"NODE_NAME": settings["NODE_NAME"]})
            return None, settings["NODE_NAME"]
        case mode:
            raise SettingsError(f"AGENT_MODE: expected sidecar or node, got {mode!r}")


def _require(values: Mapping[str, str]) -> None:
    missing = [name for name, value in values.items() if not value]
    if missing:
        raise SettingsError(f"{missing[0]}: expected a value, it is not set")


def _url(name: str, settings: Mapping[str, str]) -> str:
    if _URL.fullmatch(settings[name].replace("{pod_ip}", "address")) is None:
        raise SettingsError(f"{name}: expected http://HOST… or https://HOST…, got {settings[name]!r}")
    return settings[name]


def _guest_url(name: str, settings: Mapping[str, str]) -> str:
    is_default = settings[name] == OPTIONS[name][0]
    return NODE_DEFAULTS[name] if is_default and settings["AGENT_MODE"] == "node" else _url(name, settings)


def _metrics(settings: Mapping[str, str]) -> str:
    url = _guest_url("METRICS_URL", settings)
    # No HTTPS, because the agent could not verify a guest's certificate.
    if not url.startswith("http://"):
        raise SettingsError(f"METRICS_URL: expected http://HOST…, got {url!r}")
    return url


def _monitor(settings: Mapping[str, str]) -> str | None:
    url = settings["MONITOR_URL"]
    is_default = url == OPTIONS["MONITOR_URL"][0]
    # The default address is the guest's address in a sidecar.
    if url == "off" or (is_default and settings["AGENT_MODE"] == "node"):
        return None
    if settings["AGENT_MODE"] == "node" and "{pod_ip}" not in url:
        raise SettingsError("MONITOR_URL: with AGENT_MODE=node, expected {pod_ip} in it, or off")
    if not url.startswith("ws://") or _URL.fullmatch(f"http{url[2:]}".replace("{pod_ip}", "address")) is None:
        raise SettingsError(f"MONITOR_URL: expected ws://HOST… or off, got {url!r}")
    return url


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _node_path(name: str, settings: Mapping[str, str]) -> Path | None:
    """A path that is only allowed for a node's agent."""
    if settings[name] and settings["AGENT_MODE"] != "node":
        raise SettingsError(f"{name}: only with AGENT_MODE=node")
    return _path(settings[name])


def _optional_path(name: str, settings: Mapping[str, str]) -> Path | None:
    """The path, or None if the default file does not exist."""
    path = Path(settings[name])
    return None if settings[name] == OPTIONS[name][0] and not path.exists() else path


def _own_namespace() -> str:
    try:
        # The kubelet mounts the namespace next to the token.
        return (ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return ""


def _listen(text: str) -> tuple[str, int]:
    # Split at the last colon, because an IPv6 address contains colons.
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"AGENT_LISTEN: expected HOST:PORT, got {text!r}")
    return host.strip("[]") or "0.0.0.0", int(port)
