"""Settings of an agent process: flags override environment variables, which override defaults.

The table ``OPTIONS`` is the only list of them; what is wrong is reported by the name of its variable.
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
"""Where the kubelet puts a pod's identity towards the API server."""

OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "AGENT_MODE": ("sidecar", "sidecar (the VM of this pod) or node (every VM of NODE_NAME)"),
    "VM_NAMESPACE": ("", "sidecar: namespace of the VM (default: that of the pod)"),
    "VM_NAME": ("", "sidecar: name of the VM"),
    "POD_NAMESPACE": ("", "namespace of this pod (default: that of the VM; node: that of its account)"),
    "POD_NAME": ("", "sidecar: name of this pod"),
    "NODE_NAME": ("", "node: name of this node"),
    "SCHEDULER_URL": ("http://autoscaling-scheduler.kube-system.svc:10299", "the scheduler's port for agents"),
    "SCHEDULER_TOKEN_FILE": ("", "token of this agent for the scheduler (none: send none)"),
    "SCHEDULER_CA_FILE": ("", "authority of the scheduler's certificate (https; none: the system's authorities)"),
    "SCHEDULER_PROTOCOL": (
        "v2.1",
        "what the scheduler understands: v2.1, or v5.0 with a COMPUTE_UNIT of the agent's own",
    ),
    "COMPUTE_UNIT": ("", "v5.0: the step in which VMs are sized, CPU and memory: 250m,1Gi"),
    "SERVED_SCHEDULER_NAME": ("", "node: only VMs with this spec.schedulerName (default: all)"),
    "CGROUP_ROOT": ("", "node: the node's /sys/fs/cgroup; pods that opted in are served with it (default: none are)"),
    "RECLAIMER_SOCKET": ("", "node: socket of the reclaimer, which tries less memory for a pod"),
    "METRICS_URL": ("http://10.255.255.254:9100/metrics", "the guest's node_exporter; node: by {pod_ip}"),
    "DATABASE_URL": ("http://10.255.255.254:25183/database", "what the guest says of its database; node: by {pod_ip}"),
    "GUEST_CERTIFICATES": ("", "folder with tls.crt and tls.key of this agent, for a DATABASE_URL with https"),
    "MONITOR_URL": (
        "ws://10.255.255.254:10301/monitor",
        "the guest's monitor, used if it answers; off: never",
    ),
    "KUBERNETES_API_URL": ("https://kubernetes.default.svc", "the Kubernetes API"),
    "KUBERNETES_TOKEN_FILE": (str(ACCOUNT / "token"), "token for the API (missing file by default: send none)"),
    "KUBERNETES_CA_FILE": (str(ACCOUNT / "ca.crt"), "authority of the API's certificate"),
    "AGENT_LISTEN": ("0.0.0.0:9101", "where to serve /metrics /healthz /readyz /explain /database"),
    "EXPLAIN_TOKEN_FILE": ("", "a token that alone opens /explain and /database (default: those of the cluster)"),
    "AGENT_CONFIG": ("", "policy file (YAML), read again when it changes"),
}


OF_ITS_POD: Final[Mapping[str, str]] = {
    "METRICS_URL": "http://{pod_ip}:9100/metrics",
    "DATABASE_URL": "http://{pod_ip}:25183/database",
}
"""The defaults of the per-node form, in which every guest has an address of its own."""

_URL: Final = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:[/?][!-~]*)?")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Checked settings. ``assignment`` is set in the sidecar form, ``node`` in the per-node form.

    ``compute_unit`` is set if ``protocol`` leaves it to the agent. ``scheduler_name``: empty for all VMs.
    ``namespace`` is that of the agent's pod, empty if unknown. Pods are served if there is a ``cgroup_root``.
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
    """The settings of this process. Raises ``SettingsError``; ``--help`` prints and exits as argparse does."""
    # Empty counts as unset: manifests often pass an empty variable.
    settings = {
        name: value or environment.get(name, "") or OPTIONS[name][0] for name, value in _flags(arguments).items()
    }
    host, port = _listen(settings["AGENT_LISTEN"])
    assignment, node = _whom(settings)
    protocol, unit = _dialect(settings)
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
        database_url=_of_guest("DATABASE_URL", settings),
        guest_certificates=_path(settings["GUEST_CERTIFICATES"]),
        monitor_url=_monitor(settings),
        api_url=_url("KUBERNETES_API_URL", settings),
        api_token=_present("KUBERNETES_TOKEN_FILE", settings),
        api_ca=_present("KUBERNETES_CA_FILE", settings),
        host=host,
        port=port,
        policy_file=_path(settings["AGENT_CONFIG"]),
        namespace=assignment.pod.namespace if assignment else settings["POD_NAMESPACE"] or _own_namespace(),
        explain_token=_path(settings["EXPLAIN_TOKEN_FILE"]),
        cgroup_root=_of_node("CGROUP_ROOT", settings),
        reclaimer=_of_node("RECLAIMER_SOCKET", settings),
    )


def _flags(arguments: Sequence[str]) -> dict[str, str | None]:
    parser = argparse.ArgumentParser(
        prog="autoscaler-agent",
        description="Watches the load of postgres VMs, asks the scheduler, and resizes them. "
        "Every flag can be given as a variable of the same name.",
    )
    for name, (default, text) in OPTIONS.items():
        suffix = f" (default: {default})" if default else ""
        parser.add_argument(f"--{name.lower().replace('_', '-')}", dest=name, metavar=name, help=f"{text}{suffix}")
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    return {name: value for name, value in vars(parser.parse_args(arguments)).items() if name in OPTIONS}


def _dialect(found: Mapping[str, str]) -> tuple[ProtocolVersion, ComputeUnit | None]:
    """The version to speak, and the agent's own compute unit if answers of that version carry none."""
    name, unit = found["SCHEDULER_PROTOCOL"], found["COMPUTE_UNIT"]
    if name not in SPOKEN:
        raise SettingsError(f"SCHEDULER_PROTOCOL: expected {' or '.join(SPOKEN)}, got {name!r}")
    if SPOKEN[name] is not ProtocolVersion.V5_0:
        # Two sources of one unit could disagree.
        if unit:
            raise SettingsError("COMPUTE_UNIT: only with SCHEDULER_PROTOCOL=v5.0; else the scheduler says it")
        return SPOKEN[name], None
    cpu, _, mem = unit.partition(",")
    try:
        return SPOKEN[name], ComputeUnit.parse(cpu, mem)
    except (QuantityError, ValueError) as error:
        raise SettingsError(f"COMPUTE_UNIT: expected CPU and memory like 250m,1Gi: {error}") from None


def _whom(found: Mapping[str, str]) -> tuple[Assignment | None, str | None]:
    match found["AGENT_MODE"]:
        case "sidecar":
            vm_namespace = found["VM_NAMESPACE"] or found["POD_NAMESPACE"]
            needed = {"VM_NAMESPACE": vm_namespace, "VM_NAME": found["VM_NAME"], "POD_NAME": found["POD_NAME"]}
            _need(needed)
            for name in ("METRICS_URL", "DATABASE_URL", "MONITOR_URL"):
                # A sidecar does not know the address of its pod, and reaches the guest without it.
                if "{pod_ip}" in found[name]:
                    raise SettingsError(f"{name}: only the per-node form knows {{pod_ip}}")
            pod = ObjectName(found["POD_NAMESPACE"] or vm_namespace, found["POD_NAME"])
            return Assignment(ObjectName(vm_namespace, found["VM_NAME"]), pod), None
        case "node":
            _need({"NODE_NAME": found["NODE_NAME"]})
            return None, found["NODE_NAME"]
        case mode:
            raise SettingsError(f"AGENT_MODE: expected sidecar or node, got {mode!r}")


def _need(values: Mapping[str, str]) -> None:
    missing = [name for name, value in values.items() if not value]
    if missing:
        raise SettingsError(f"{missing[0]}: expected a value, it is not set")


def _url(name: str, found: Mapping[str, str]) -> str:
    if _URL.fullmatch(found[name].replace("{pod_ip}", "address")) is None:
        raise SettingsError(f"{name}: expected http://HOST… or https://HOST…, got {found[name]!r}")
    return found[name]


def _of_guest(name: str, found: Mapping[str, str]) -> str:
    is_default = found[name] == OPTIONS[name][0]
    return OF_ITS_POD[name] if is_default and found["AGENT_MODE"] == "node" else _url(name, found)


def _metrics(found: Mapping[str, str]) -> str:
    url = _of_guest("METRICS_URL", found)
    # No https: a guest has no certificate that an agent could trust.
    if not url.startswith("http://"):
        raise SettingsError(f"METRICS_URL: expected http://HOST…, got {url!r}")
    return url


def _monitor(found: Mapping[str, str]) -> str | None:
    url = found["MONITOR_URL"]
    is_default = url == OPTIONS["MONITOR_URL"][0]
    # The default is the address of the one guest beside a sidecar. A node has many.
    if url == "off" or (is_default and found["AGENT_MODE"] == "node"):
        return None
    if found["AGENT_MODE"] == "node" and "{pod_ip}" not in url:
        raise SettingsError("MONITOR_URL: the per-node form needs {pod_ip} in it, or off")
    if not url.startswith("ws://") or _URL.fullmatch(f"http{url[2:]}".replace("{pod_ip}", "address")) is None:
        raise SettingsError(f"MONITOR_URL: expected ws://HOST… or off, got {url!r}")
    return url


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _of_node(name: str, found: Mapping[str, str]) -> Path | None:
    """A path that only the per-node form knows what to do with."""
    if found[name] and found["AGENT_MODE"] != "node":
        raise SettingsError(f"{name}: only the per-node form serves pods")
    return _path(found[name])


def _present(name: str, found: Mapping[str, str]) -> Path | None:
    """A file that was named must be used; the default one only if it exists."""
    path = Path(found[name])
    return None if found[name] == OPTIONS[name][0] and not path.exists() else path


def _own_namespace() -> str:
    try:
        # The kubelet puts the namespace beside the token.
        return (ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return ""


def _listen(text: str) -> tuple[str, int]:
    # From the right: an IPv6 host has colons of its own.
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"AGENT_LISTEN: expected HOST:PORT, got {text!r}")
    return host.strip("[]") or "0.0.0.0", int(port)
