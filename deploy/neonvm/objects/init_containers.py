"""A VM's own init containers, built from an allow-list (pure).

Whoever may create VMs in a namespace may not be allowed to create pods there, and pods of VMs are created by the
controller. So these containers get what Pod Security ``restricted`` allows and no part of the pod but the disk.
Fields that are not listed below, lifecycle hooks for instance, are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocol.kubernetes.objects import Json, child, flag, items, text, whole

IMAGES: Final = "virtualmachineimages"
"""The volume with the guest's disk."""

_KEPT: Final = ("name", "image", "imagePullPolicy", "command", "args", "workingDir", "restartPolicy")
PLACES: Final = "autoscaling.neon.tech/"
"""The prefix of resources that our device plugins offer."""
_AMOUNTS: Final = ("requests", "limits")
_PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")
_PORT: Final = ("name", "containerPort", "protocol")
_FROM_POD: Final = frozenset({"fieldRef", "resourceFieldRef"})


def init_container(plain: Json) -> Json:
    """The container as its VM may have it."""
    return {
        **{key: plain[key] for key in _KEPT if key in plain},
        # The kubelet would send a probe of another host from the node.
        **{key: plain[key] for key in _PROBES if key in plain and not _names_host(child(plain, key))},
        **({"resources": own_resources(child(plain, "resources"))} if "resources" in plain else {}),
        # Nothing from Secrets, ConfigMaps or files: reading those is a right of its own.
        "env": [variable for variable in items(plain, "env") if _is_readable(variable)],
        # Without `hostPort` and `hostIP`, which take a port of the node.
        "ports": [{key: port[key] for key in _PORT if key in port} for port in items(plain, "ports")],
        # A mount of any other name is dropped, because a webhook may add a volume of that name later: ours does, with
        # the agent's tokens.
        "volumeMounts": [mount for mount in items(plain, "volumeMounts") if text(mount, "name") == IMAGES],
        "securityContext": _security(child(plain, "securityContext")),
    }


def own_resources(wanted: Json) -> Json:
    """The resources that a VM may ask for itself: places on nodes are taken for it, one of each."""
    # Whoever takes all places of a node keeps other VMs off it.
    allowed = {
        part: {key: value for key, value in child(wanted, part).items() if not key.startswith(PLACES)}
        for part in _AMOUNTS
    }
    return {**wanted, **{part: amounts for part, amounts in allowed.items() if part in wanted}}


def _is_readable(variable: Json) -> bool:
    source = variable.get("valueFrom")
    return source is None or (isinstance(source, Mapping) and set(source) <= _FROM_POD)


def _names_host(probe: Json) -> bool:
    return any(text(probe, kind, "host") for kind in ("httpGet", "tcpSocket"))


def _security(wanted: Json) -> Json:
    """The user may be chosen, but not root; without one the pod's user applies."""
    users = {key: whole(wanted, key) for key in ("runAsUser", "runAsGroup")}
    return {
        # 0 is root, and also what an unset field reads as.
        **{key: value for key, value in users.items() if value > 0},
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": flag(wanted, "readOnlyRootFilesystem"),
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
