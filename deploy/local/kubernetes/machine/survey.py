"""Finds out what this machine has. It undoes whatever it tries, so it changes nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.local.kubernetes.machine import control_groups
from deploy.local.kubernetes.plan.requirements import PACKAGES, MachineReport
from deploy.local.kubernetes.programs.toolchain import NoGoError, find_go
from protocol.units import Bytes, MilliCpu, Resources

# Users other than root often lack sbin in PATH, and Debian and others keep CNI plugins in folders of their own.
_PLACES: Final = os.pathsep.join((*os.get_exec_path(), "/usr/sbin", "/sbin", "/usr/lib/cni", "/opt/cni/bin"))
_KMSG: Final = Path("/dev/kmsg")
_INOTIFY: Final = Path("/proc/sys/fs/inotify/max_user_instances")
_NAMESPACES: Final = ("unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc", "--")
_OVERLAY: Final = 'cd "$1" && mkdir a b c d && exec mount -t overlay overlay -o lowerdir=a,upperdir=b,workdir=c d'
_NFTABLES: Final = "table ip t {\nchain c {\ntype nat hook prerouting priority -100;\n}\n}\n"


async def survey(state: Path) -> MachineReport:
    """A report of this machine, for a cluster whose files are kept under ``state``."""
    root = os.geteuid() == 0
    # Without root the trials would fail for that reason alone.
    apart = await _complaint(*_NAMESPACES, "true") if root else ""
    tries = root and not apart
    return MachineReport(
        root=root,
        programs=frozenset(program for program in PACKAGES if shutil.which(program, path=_PLACES)),
        without_go=_without_go(),
        without_namespaces=f"namespaces cannot be made: {apart}" if apart else "",
        without_overlay=await _without_overlay(state) if tries else "",
        without_nftables=await _without_nftables() if tries and shutil.which("nft", path=_PLACES) else "",
        unified_cgroups=control_groups.is_unified(),
        controllers=control_groups.controllers(),
        kmsg=_KMSG.exists(),
        without_groups=await asyncio.to_thread(control_groups.trial) if root else "",
        inotify_instances=int(_INOTIFY.read_text()) if _INOTIFY.exists() else 0,
    )


def machine_size(meminfo: Path = Path("/proc/meminfo")) -> Resources:
    """The CPUs and the memory of this machine."""
    meminfo_fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    # /proc/meminfo counts in units of 1024 bytes.
    return Resources(MilliCpu.cores(os.cpu_count() or 1), Bytes(int(meminfo_fields["MemTotal"].split()[0]) * 1024))


def can_show_cpus(nodes: Path = Path("/sys/devices/system/node")) -> bool:
    """Return True if a node can be shown more CPUs than this machine has: its kernel must list the CPUs of memory
    nodes.
    """
    return (nodes / "node0" / "distance").exists()


def _without_go() -> str:
    try:
        find_go()
    except NoGoError as error:
        return str(error)
    return ""


async def _without_overlay(state: Path) -> str:
    with _trial_folder(state) as folder:
        complaint = await _complaint(*_NAMESPACES, "sh", "-c", _OVERLAY, "sh", folder)
    if not complaint:
        return ""
    return f"overlayfs cannot be used in {state} ({complaint}); AUTOSCALE_HOME can name another place"


@contextmanager
def _trial_folder(state: Path) -> Iterator[str]:
    """A folder on the file system of ``state``, which need not exist yet."""
    # Overlayfs depends on the file system, so the trial is made on the one that will be used.
    place = next(path for path in (state, *state.parents) if path.is_dir())
    with tempfile.TemporaryDirectory(prefix=".overlay-", dir=place) as folder:
        yield folder


async def _without_nftables() -> str:
    complaint = await _complaint(*_NAMESPACES, "nft", "-f", "-", typed=_NFTABLES)
    return f"nftables cannot translate addresses here: {complaint}" if complaint else ""


async def _complaint(*command: str, typed: str = "") -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    _, complaint = await process.communicate(typed.encode())
    if not process.returncode:
        return ""
    # Only the first clause says what is wrong: `mount`, for one, continues with guesses.
    return (
        " ".join(complaint.decode(errors="replace").split()).partition(", ")[0]
        or f"{command[0]} ended with code {process.returncode}"
    )
