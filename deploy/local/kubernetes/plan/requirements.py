"""Requirements of a real Kubernetes on this machine (pure)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

INSTALLER: Final = Path(__file__).parents[4] / "scripts" / "install-packages.sh"

PACKAGES: Final = {
    "runc": "runc",
    "ptp": "containernetworking-plugins",
    "nft": "nftables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
"""Program → its Debian package."""

INOTIFY_PER_NODE: Final = 9
"""inotify instances of one node: containerd, the kubelet and its pods."""

# In v2, CPU accounting and freezing are built in, and devices are controlled by BPF.
_CONTROLLERS_V1: Final = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids")
_CONTROLLERS_V2: Final = ("cpu", "cpuset", "memory", "pids")


@dataclass(frozen=True, slots=True)
class MachineReport:
    """Results of the checks of the machine. The ``without_`` texts are problems, empty if there is none."""

    root: bool
    programs: Collection[str]
    without_go: str
    without_overlay: str
    without_namespaces: str
    without_nftables: str
    unified_cgroups: bool
    controllers: Collection[str]
    kmsg: bool = True
    without_groups: str = ""
    inotify_instances: int = 1 << 31


def missing(machine: MachineReport, nodes: int = 1) -> list[str]:
    """Unmet requirements of a cluster with ``nodes`` nodes, one clause each; empty if it can run."""
    # The other checks need root too.
    if not machine.root:
        return ["it needs root, for namespaces, mounts and control groups"]
    packages = sorted({package for program, package in PACKAGES.items() if program not in machine.programs})
    needed = _CONTROLLERS_V2 if machine.unified_cgroups else _CONTROLLERS_V1
    unavailable = [controller for controller in needed if controller not in machine.controllers]
    version = 2 if machine.unified_cgroups else 1
    clauses = (
        f"packages are missing: {INSTALLER} kubernetes (for {', '.join(packages)})" if packages else "",
        machine.without_go,
        machine.without_namespaces,
        machine.without_overlay,
        # Not if a missing package may be the reason.
        machine.without_nftables if not packages else "",
        f"control groups (version {version}) lack {', '.join(unavailable)}" if unavailable else "",
        machine.without_groups if not unavailable else "",
        _inotify_limit(machine.inotify_instances, nodes),
        "" if machine.kmsg else "there is no /dev/kmsg, which the kubelet needs",
    )
    return [clause for clause in clauses if clause]


def _inotify_limit(instances: int, nodes: int) -> str:
    needed = nodes * INOTIFY_PER_NODE
    if instances >= needed:
        return ""
    setting = "fs.inotify.max_user_instances"
    return (
        # Twice as many, to leave some for other programs.
        f"{nodes} nodes need {needed} inotify instances, the limit is {instances}: sysctl -w {setting}={2 * needed}"
    )
