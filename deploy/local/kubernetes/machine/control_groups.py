"""Control groups of a cluster's pods, with cgroup v1 and v2.

In v1, each controller has a hierarchy, and the group is created in every one. In v2, there is one hierarchy, and each
level must delegate its controllers to the next (``cgroup.subtree_control``).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
# Controllers that pods with limits need.
NEEDED: Final = ("cpu", "memory", "pids")
_CPUSET: Final = ("cpuset.cpus", "cpuset.mems")
_TRIES: Final = 100  # five seconds in total
_PAUSE: Final = 0.05


def is_unified(root: Path = ROOT) -> bool:
    """Return True if this machine has cgroup v2 only."""
    return (root / "cgroup.controllers").exists()


def controllers(root: Path = ROOT) -> frozenset[str]:
    """The controllers available on this machine."""
    if is_unified(root):
        return frozenset((root / "cgroup.controllers").read_text().split())
    if not root.is_dir():
        return frozenset()
    # v1 names a hierarchy after its controllers, such as `cpu,cpuacct`.
    return frozenset(name for hierarchy in root.iterdir() if hierarchy.is_dir() for name in hierarchy.name.split(","))


def make_group(group: str, root: Path = ROOT) -> None:
    """Create ``group`` (a path such as ``autoscale.local/node-1``) with all controllers. Raises ``OSError``."""
    if is_unified(root):
        _make_unified(group, root)
        return
    for hierarchy in _hierarchies(root):
        path = hierarchy
        for part in group.split("/"):
            parent, path = path, path / part
            path.mkdir(exist_ok=True)
            # A new cpuset is empty, and no process can run in it.
            for name in _CPUSET:
                if (path / name).exists():
                    (path / name).write_text((parent / name).read_text())


def _make_unified(group: str, root: Path) -> None:
    path = root
    for part in group.split("/"):
        _delegate_controllers(path)
        path /= part
        path.mkdir(exist_ok=True)
    _delegate_controllers(path)


def _delegate_controllers(path: Path) -> None:
    """Delegate the group's controllers to its children, as far as the kernel allows."""
    # One by one: writing several at once fails if one of them cannot be delegated.
    for name in (path / "cgroup.controllers").read_text().split():
        with suppress(OSError):
            (path / "cgroup.subtree_control").write_text(f"+{name}")


def creation_problem(root: Path = ROOT, sleep: Callable[[float], None] = time.sleep) -> str:
    """Try to create a control group; return the reason if that fails, empty otherwise."""
    group = f"autoscale-trial-{os.getpid()}"
    try:
        make_group(f"{group}/node", root)
        return _missing_controllers(root / group / "node") if is_unified(root) else ""
    except OSError as error:
        return f"cannot create control groups in {root}: {error.strerror}"
    finally:
        with suppress(OSError):
            remove_group(group, root, sleep)


def _missing_controllers(path: Path) -> str:
    """The reason why the group at ``path`` lacks a needed controller; empty if it has all."""
    # In v2, only the root may have both processes and delegated controllers.
    available = (path / "cgroup.controllers").read_text().split()
    missing = [name for name in NEEDED if name not in available]
    if not missing:
        return ""
    return (
        f"control groups below {ROOT} lack controllers ({', '.join(missing)}): it contains processes, as in a "
        "container with a private cgroup namespace; start the container with --cgroupns=host"
    )


def remove_group(group: str, root: Path = ROOT, sleep: Callable[[float], None] = time.sleep) -> None:
    """Kill all processes in ``group`` and below, and remove it. Raises ``OSError`` if it cannot be removed."""
    # Killed processes exit with a delay, and a group with processes cannot be removed.
    for _ in range(_TRIES):
        paths = list(_folders(group, root))
        if not paths:
            return
        _kill(paths)
        for path in paths:
            with suppress(OSError):
                path.rmdir()
        if any(path.exists() for path in paths):
            sleep(_PAUSE)
    left = list(_folders(group, root))
    if left:
        raise OSError(f"control groups could not be removed: {', '.join(map(str, left))}")


def _kill(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            for process in (path / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)


def _folders(group: str, root: Path) -> Iterator[Path]:
    """The group's folders and their subfolders, deepest first."""
    for hierarchy in (root,) if is_unified(root) else _hierarchies(root):
        top = hierarchy / group
        if top.is_dir():
            for folder, _, _ in os.walk(top, topdown=False):
                yield Path(folder)


def _hierarchies(root: Path) -> list[Path]:
    paths = root.iterdir() if root.is_dir() else ()
    # Not the symbolic links, such as `cpu` to `cpu,cpuacct`.
    return sorted(path for path in paths if path.is_dir() and not path.is_symlink())
