"""Everything that a cluster may leave on a machine, found by its name and its folder."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

TUNABLES = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys"),
    *("net/ipv4/ip_forward", "net/netfilter/nf_conntrack_max"),
)


@dataclass(frozen=True, slots=True)
class MachineState:
    """The first four are the cluster's own; the others are the machine's, and no cluster may change them."""

    processes: frozenset[str]
    mounts: frozenset[str]
    namespaces: frozenset[str]
    cgroups: frozenset[str]
    interfaces: frozenset[str]
    rules: str
    tunables: tuple[str, ...]


def machine_state(cluster: str, home: Path) -> MachineState:
    """Present leftovers of the cluster of that name, whose folder is in ``home``."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    namespaces = Path("/run/netns")
    cgroups = (Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup") if f"autoscale.{cluster}" in folder)
    return MachineState(
        processes=frozenset(_processes(cluster, home)),
        mounts=frozenset(line for line in mounts if str(home) in line or f"autoscale.{cluster}." in line),
        namespaces=frozenset(
            each.name
            for each in (namespaces.iterdir() if namespaces.is_dir() else ())
            if each.name.startswith((f"autoscale.{cluster}.", "cni-"))
        ),
        cgroups=frozenset(map(str, cgroups)),
        interfaces=frozenset(each.name for each in Path("/sys/class/net").iterdir()),
        rules="".join(_said(*command) for command in (("nft", "list", "ruleset"), ("iptables-save",))),
        tunables=tuple(_read(Path("/proc/sys") / name) for name in TUNABLES),
    )


def _processes(cluster: str, home: Path) -> list[str]:
    """Programs of the cluster know its home; the processes of its pods are in its control groups."""
    mark = f"AUTOSCALE_HOME={home}".encode()
    found = []
    for each in Path("/proc").iterdir():
        try:
            if not each.name.isdigit() or int(each.name) == os.getpid():
                continue
            known = mark in (each / "environ").read_bytes().split(b"\0")
            if known or f"/autoscale.{cluster}/" in (each / "cgroup").read_text():
                found.append(f"{each.name} {(each / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()[:120]}")
        except OSError:
            continue  # it has ended meanwhile
    return found


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "\n".join(line for line in done.stdout.splitlines() if not line.startswith("#"))


def _read(file: Path) -> str:
    return file.read_text().strip() if file.exists() else ""
