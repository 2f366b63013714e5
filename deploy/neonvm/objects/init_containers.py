"""A VM's own init containers, built from an allowlist (pure).

The controller creates VM pods, and a user who may create VMs need not be allowed to create pods. So these
containers must conform to Pod Security ``restricted``, and can access only the disk. Fields that are not listed below,
such as lifecycle hooks, are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocol.kubernetes.objects import Json, child, flag, integer, items, text

IMAGES: Final = "virtualmachineimages"
"""The volume with the guest's disk."""

_ALLOWED_FIELDS: Final = ("name", "image", "imagePullPolicy", "command", "args", "workingDir", "restartPolicy")
DEVICE_PREFIX: Final = "autoscaling.neon.tech/"
"""Prefix of the extended resources that our device plugins offer."""
_RESOURCE_FIELDS: Final = ("requests", "limits")
_PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")
_PORT_FIELDS: Final = ("name", "containerPort", "protocol")
_FROM_POD: Final = frozenset({"fieldRef", "resourceFieldRef"})


def init_container(plain: Json) -> Json:
    """The allowed fields of a VM's init container."""
    return {
        **{key: plain[key] for key in _ALLOWED_FIELDS if key in plain},
        # The kubelet would send a probe to any other host, from the node.
        **{key: plain[key] for key in _PROBES if key in plain and not _has_host(child(plain, key))},
        **({"resources": allowed_resources(child(plain, "resources"))} if "resources" in plain else {}),
        # Not from Secrets, ConfigMaps or files: the right to create VMs does not include reading those.
        "env": [variable for variable in items(plain, "env") if _is_readable(variable)],
        # Without `hostPort` and `hostIP`, which would occupy a port of the node.
        "ports": [{key: port[key] for key in _PORT_FIELDS if key in port} for port in items(plain, "ports")],
        # Drop all other mounts, because a webhook may add a volume of that name later: ours adds one with the agent's
        # tokens.
        "volumeMounts": [mount for mount in items(plain, "volumeMounts") if text(mount, "name") == IMAGES],
        "securityContext": _security_context(child(plain, "securityContext")),
    }


def allowed_resources(requested: Json) -> Json:
    """``requested`` without the resources of our device plugins, of which the controller requests one each."""
    # A VM that requested all devices of a node would keep other VMs off it.
    allowed = {
        part: {key: value for key, value in child(requested, part).items() if not key.startswith(DEVICE_PREFIX)}
        for part in _RESOURCE_FIELDS
    }
    return {**requested, **{part: amounts for part, amounts in allowed.items() if part in requested}}


def _is_readable(variable: Json) -> bool:
    source = variable.get("valueFrom")
    return source is None or (isinstance(source, Mapping) and set(source) <= _FROM_POD)


def _has_host(probe: Json) -> bool:
    return any(text(probe, kind, "host") for kind in ("httpGet", "tcpSocket"))


def _security_context(requested: Json) -> Json:
    """The VM may choose any user except root; by default the pod's user applies."""
    users = {key: integer(requested, key) for key in ("runAsUser", "runAsGroup")}
    return {
        # 0 is root, or an unset field.
        **{key: value for key, value in users.items() if value > 0},
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": flag(requested, "readOnlyRootFilesystem"),
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
