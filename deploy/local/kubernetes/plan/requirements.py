"""Requirements on a machine for a real Kubernetes to run on it (pure)."""

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
"""Program → the Debian package that has it."""

WATCHES_OF_A_NODE: Final = 9
"""The inotify instances that containerd, the kubelet and its pods take."""

# Version 1 has a hierarchy for each. Version 2 counts CPU time in every group, can freeze any, and leaves devices to
# BPF.
_CONTROLLERS_OF_1: Final = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids")
_CONTROLLERS_OF_2: Final = ("cpu", "cpuset", "memory", "pids")


@dataclass(frozen=True, slots=True)
class MachineReport:
    """Findings about the machine. Texts are empty if all is well; otherwise they name the problem."""

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
    """Missing parts for that many ``nodes``, each as a clause of one line; empty if a cluster can run."""
    # Most other checks need root, so their findings would be incomplete.
    if not machine.root:
        return ["it needs root, for namespaces, mounts and control groups"]
    packages = sorted({package for program, package in PACKAGES.items() if program not in machine.programs})
    needed = _CONTROLLERS_OF_2 if machine.unified_cgroups else _CONTROLLERS_OF_1
    lacking = [controller for controller in needed if controller not in machine.controllers]
    version = 2 if machine.unified_cgroups else 1
    clauses = (
        f"packages are missing: {INSTALLER} kubernetes (for {', '.join(packages)})" if packages else "",
        machine.without_go,
        machine.without_namespaces,
        machine.without_overlay,
        # A missing package may be the reason, and is named already.
        machine.without_nftables if not packages else "",
        f"control groups (version {version}) lack {', '.join(lacking)}" if lacking else "",
        machine.without_groups if not lacking else "",
        _few_watches(machine.inotify_instances, nodes),
        "" if machine.kmsg else "there is no /dev/kmsg, which kubelets read",
    )
    return [clause for clause in clauses if clause]


def _few_watches(instances: int, nodes: int) -> str:
    needed = nodes * WATCHES_OF_A_NODE
    if instances >= needed:
        return ""
    setting = "fs.inotify.max_user_instances"
    return (
        # Twice as many, because other programs of the user count too.
        f"{nodes} nodes watch files in {needed} places, and {instances} are allowed: sysctl -w {setting}={2 * needed}"
    )
