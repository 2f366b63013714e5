"""Locates the cgroups of a pod: v1 or v2, systemd or cgroupfs driver, with or without a prefix (B.7).

Rules that hold here:

- UIDs and container IDs come from the API server, so they are validated before they become part of a path.
- Only cgroups below a kubelet's ``kubepods`` are returned, never the node's own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent import texts

_UID: Final = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")
_CONTAINER: Final = re.compile(r"[0-9a-f]{16,128}")

_CONTAINERS: Final = ("cri-containerd-{}.scope", "crio-{}.scope", "docker-{}.scope", "{}", "crio-{}")
"""Names of a container's cgroup, by runtime. CRI-O's ``crio-conmon-ID`` is not the container."""

DEEPEST: Final = 5
"""Maximum levels from the root to ``kubepods``. A node in a container of a systemd service has four."""

MAX_FOLDERS: Final = 5000
"""Maximum folders that one search reads: a busy node has a few hundred outside ``kubepods``."""

SEARCH_EACH: Final = 60
"""While a pod is not found, one search in this many reads the whole tree; the others read the first level."""


class BadNameError(ValueError):
    """A malformed UID or container ID, which must not become a path."""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A cgroup at ``path`` below ``root``; on v1, below each controller's folder."""

    root: Path
    is_v2: bool
    path: str

    def file(self, controller: str, name: str) -> Path:
        """The path of one of its files; v2 has all controllers in one folder.

        >>> ControlGroup(Path("/sys/fs/cgroup"), False, "kubepods/pod1").file("memory", "memory.stat").as_posix()
        '/sys/fs/cgroup/memory/kubepods/pod1/memory.stat'
        """
        return _top(self.root, controller, is_v2=self.is_v2) / self.path / name

    def container(self, container_id: str) -> ControlGroup | None:
        """The cgroup of a container of this pod; None if it has none. Raises ``BadNameError``."""
        if _CONTAINER.fullmatch(container_id) is None:
            raise BadNameError(f"container ID: expected hexadecimal digits, got {container_id[:80]!r}")
        for form in _CONTAINERS:
            group = ControlGroup(self.root, self.is_v2, f"{self.path}/{form.format(container_id)}")
            if group.file("memory", "").is_dir():
                return group
        return None


class Locator:
    """Finds pods below one root. Caches the ``kubepods`` folder of the last hit."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kubepods: str | None = None
        self._misses = 0

    def pod(self, uid: str) -> ControlGroup | None:
        """The cgroup of a pod; None if it has none. Raises ``BadNameError``, or ``OSError`` if the root is unreadable.

        On v1 it searches the memory controller; kubelets use the same path in all controllers.
        """
        if _UID.fullmatch(uid) is None:
            raise BadNameError(f"pod UID: expected a UUID, got {uid[:80]!r}")
        is_v2 = (self._root / "cgroup.controllers").exists()
        top = _top(self._root, "memory", is_v2=is_v2)
        for kubepods in self._folders(top):
            for path in _candidates(kubepods, uid):
                if (top / path).is_dir():
                    self._kubepods, self._misses = kubepods, 0
                    return ControlGroup(self._root, is_v2, path)
        self._misses += 1
        return None

    def container(self, uid: str, container_id: str) -> tuple[ControlGroup, ControlGroup]:
        """The cgroups of a pod and of its container. Raises like ``pod``, and ``FileNotFoundError``."""
        pod = self.pod(uid)
        container = None if pod is None else pod.container(container_id)
        if pod is None or container is None:
            raise FileNotFoundError(texts.NO_CGROUP.format(pod=uid, container=container_id))
        return pod, container

    def _folders(self, top: Path) -> Iterator[str]:
        if self._kubepods is not None:
            yield self._kubepods
        # Otherwise, below a root without pods, the whole tree would be read every second for each pod.
        yield from kubepods_folders(top, DEEPEST if self._misses % SEARCH_EACH == 0 else 1)


def kubepods_folders(top: Path, deepest: int) -> Iterator[str]:
    """The ``kubepods`` folders at most ``deepest`` levels below ``top``, relative to it, nearest first."""
    level, left = [""], MAX_FOLDERS
    for _ in range(deepest):
        below: list[str] = []
        for folder in level[:left]:
            for name in _subfolders_or_none(top / folder) if folder else _subfolders(top):
                path = f"{folder}/{name}" if folder else name
                if name in ("kubepods", "kubepods.slice") or name.endswith("-kubepods.slice"):
                    yield path
                else:
                    below.append(path)
        left, level = max(0, left - len(level)), below


def _candidates(kubepods: str, uid: str) -> Iterator[str]:
    """Possible paths of a pod's cgroup: Burstable or Guaranteed. BestEffort pods are never resized."""
    if not kubepods.endswith(".slice"):
        yield f"{kubepods}/burstable/pod{uid}"
        yield f"{kubepods}/pod{uid}"
        return
    # A systemd slice's name includes its parents' names, and a dash starts another level.
    stem, name = kubepods.rpartition("/")[2].removesuffix(".slice"), uid.replace("-", "_")
    yield f"{kubepods}/{stem}-burstable.slice/{stem}-burstable-pod{name}.slice"
    yield f"{kubepods}/{stem}-pod{name}.slice"


def _top(root: Path, controller: str, *, is_v2: bool) -> Path:
    return root if is_v2 else root / controller


def _subfolders_or_none(folder: Path) -> list[str]:
    # Cgroups come and go during the search, and some are unreadable.
    try:
        return _subfolders(folder)
    except OSError:
        return []


def _subfolders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
