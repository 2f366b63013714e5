"""The control groups of a cluster's pods, with both versions of the kernel's interface.

Version 1 has a hierarchy for each controller: the group is made in every one. Version 2 has one hierarchy, in which
controllers are passed on to a group's children one level at a time.
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
# Without these no pod can be given its limits.
NEEDED: Final = ("cpu", "memory", "pids")
_CPUSET: Final = ("cpuset.cpus", "cpuset.mems")
_TRIES: Final = 100  # five seconds in all
_PAUSE: Final = 0.05


def is_unified(root: Path = ROOT) -> bool:
    """Return True if this machine has only version 2."""
    return (root / "cgroup.controllers").exists()


def controllers(root: Path = ROOT) -> frozenset[str]:
    """The controllers that groups can have here."""
    if is_unified(root):
        return frozenset((root / "cgroup.controllers").read_text().split())
    if not root.is_dir():
        return frozenset()
    # Version 1 names a hierarchy after its controllers, such as `cpu,cpuacct`.
    return frozenset(name for hierarchy in root.iterdir() if hierarchy.is_dir() for name in hierarchy.name.split(","))


def make_group(group: str, root: Path = ROOT) -> None:
    """Makes ``group`` (a path such as ``autoscale.local/node-1``) with all controllers. Raises ``OSError``."""
    if is_unified(root):
        _make_unified(group, root)
        return
    for hierarchy in _hierarchies(root):
        place = hierarchy
        for part in group.split("/"):
            parent, place = place, place / part
            place.mkdir(exist_ok=True)
            # A cpuset begins empty, and nothing can run in an empty one.
            for name in _CPUSET:
                if (place / name).exists():
                    (place / name).write_text((parent / name).read_text())


def _make_unified(group: str, root: Path) -> None:
    place = root
    for part in group.split("/"):
        _pass_on(place)
        place /= part
        place.mkdir(exist_ok=True)
    _pass_on(place)


def _pass_on(place: Path) -> None:
    """Gives a group's children all of its controllers; those that it cannot give are left out."""
    # One at a time: a single write of several fails as a whole if one cannot be given.
    for name in (place / "cgroup.controllers").read_text().split():
        with suppress(OSError):
            (place / "cgroup.subtree_control").write_text(f"+{name}")


def trial(root: Path = ROOT, sleep: Callable[[float], None] = time.sleep) -> str:
    """The reason why control groups cannot be created here, found by creating one; empty if they can."""
    group = f"autoscale-trial-{os.getpid()}"
    try:
        make_group(f"{group}/node", root)
        return _lacking(root / group / "node") if is_unified(root) else ""
    except OSError as error:
        return f"control groups cannot be made in {root}: {error.strerror}"
    finally:
        with suppress(OSError):
            remove_group(group, root, sleep)


def _lacking(place: Path) -> str:
    """The reason why the group ``place`` lacks controllers; empty if it has all that are needed."""
    # A group with processes in it can pass no controllers on, unless it is the machine's own root.
    has = (place / "cgroup.controllers").read_text().split()
    lacks = [name for name in NEEDED if name not in has]
    if not lacks:
        return ""
    return (
        f"control groups below {ROOT} get no {', '.join(lacks)}: processes are in it, as in a container with a control "
        "group namespace of its own; start that with --cgroupns=host"
    )


def remove_group(group: str, root: Path = ROOT, sleep: Callable[[float], None] = time.sleep) -> None:
    """Kills what is in ``group`` or below it, and removes it from every hierarchy. Raises ``OSError`` if one stays."""
    # Killed processes take a moment to go, and a group with processes cannot be removed.
    for _ in range(_TRIES):
        places = list(_places(group, root))
        if not places:
            return
        _kill(places)
        for place in places:
            with suppress(OSError):
                place.rmdir()
        if any(place.exists() for place in places):
            sleep(_PAUSE)
    left = list(_places(group, root))
    if left:
        raise OSError(f"control groups stay behind: {', '.join(map(str, left))}")


def _kill(places: Iterable[Path]) -> None:
    for place in places:
        with suppress(OSError):
            for process in (place / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)


def _places(group: str, root: Path) -> Iterator[Path]:
    """The group's folders and those below, the deepest first."""
    for hierarchy in (root,) if is_unified(root) else _hierarchies(root):
        top = hierarchy / group
        if top.is_dir():
            # Bottom up: a group with children cannot be removed.
            for folder, _, _ in os.walk(top, topdown=False):
                yield Path(folder)


def _hierarchies(root: Path) -> list[Path]:
    paths = root.iterdir() if root.is_dir() else ()
    # Links such as `cpu` lead to `cpu,cpuacct`; following them would make every group twice.
    return sorted(path for path in paths if path.is_dir() and not path.is_symlink())
