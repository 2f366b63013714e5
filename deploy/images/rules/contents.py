"""Selection of the package files of an image, and checks of a finished image (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from deploy.images.formats.elf import read_binary
from deploy.images.formats.tree import File, PathType, Tree

LEFT_OUT: Final = (
    *(f"usr/share/{name}/*" for name in ("man", "locale", "info", "lintian", "bug", "bash-completion", "doc-base")),
    *(f"usr/share/{name}/*" for name in ("applications", "icons", "pixmaps", "binfmts")),
    *(f"usr/lib/{name}" for name in ("binfmt.d/*", "*.a", "systemd/*", "*/gconv/*", "*/engines-3/*")),
    *("etc/init.d/*", "etc/default/*"),
)
"""Files that none of our programs uses. Licenses in usr/share/doc are included."""

FORBIDDEN: Final = frozenset(
    (
        *("sh", "bash", "dash", "ash", "busybox", "zsh", "perl", "su", "sudo", "mount", "login"),
        *("apt", "apt-get", "dpkg", "dpkg-deb", "pip", "pip3", "easy_install", "ensurepip", "curl", "wget", "nc"),
    )
)
"""File names that no service image may contain: shells, package managers and other tools of intruders."""

_EXPECTED: Final = (
    *("libgcc_s.so.1", "libc.so.6", "libm.so.6"),
    *("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libresolv.so.2"),
)
"""Libraries of the C runtime, always included."""


def is_included(file: File, left_out: Iterable[str] = ()) -> bool:
    """Return True if an image includes this file of a package. Directories are implied by their files."""
    if file.kind is PathType.DIRECTORY:
        return False
    # Required by the licenses.
    if file.path.startswith("usr/share/doc/"):
        return file.name == "copyright"
    return not any(fnmatchcase(file.path, pattern) for pattern in (*LEFT_OUT, *left_out))


def without_unused_libraries(files: Tree, lower: Tree) -> dict[str, File]:
    """``files`` without shared libraries that neither ``files`` nor ``lower`` need."""
    libraries = {file.name: path for path, file in files.items() if _is_shared(file)}
    roots = [file for file in (*files.values(), *lower.values()) if not _is_shared(file)]
    wanted, reachable = [*_EXPECTED, *_all_needed(roots)], set[str]()
    while wanted:
        path = libraries.get(name := wanted.pop())
        if path is None or name in reachable:
            continue
        reachable.add(name)
        file = files[path]
        # A symbolic link needs its target.
        wanted += [file.target.rpartition("/")[2]] if file.kind is PathType.SYMLINK else _all_needed([file])
    return {path: file for path, file in files.items() if not _is_shared(file) or file.name in reachable}


def forbidden(files: Tree) -> list[str]:
    """Paths of forbidden files in a service's image."""
    return sorted(
        path for path, file in files.items() if file.name in FORBIDDEN and file.kind is not PathType.DIRECTORY
    )


def privileged(files: Tree) -> list[str]:
    """Paths of setuid and setgid files."""
    return sorted(path for path, file in files.items() if file.kind is PathType.REGULAR and file.mode & 0o6000)


def unresolved(files: Tree, machine: str) -> list[str]:
    """Problems of an image's programs: missing libraries or loaders, wrong architecture."""
    names = {file.name for file in files.values()}
    problems = []
    for path, file in sorted(files.items()):
        if (binary := read_binary(file.content)) is None:
            continue
        if binary.machine != machine:
            problems.append(f"{path} is built for {binary.machine}")
        problems += [f"{path} needs {name}" for name in binary.needed if name not in names]
        # By name: the loader's path may contain symbolic links.
        if binary.loader and binary.loader.rpartition("/")[2] not in names:
            problems.append(f"{path} needs {binary.loader}")
    return problems


def _all_needed(files: Iterable[File]) -> list[str]:
    return [name for file in files if (binary := read_binary(file.content)) for name in binary.needed]


def _is_shared(file: File) -> bool:
    """Return True for a library in the loader's search path; those in deeper folders are opened by path."""
    parts = file.path.split("/")  # usr/lib/TRIPLET/NAME
    return (
        len(parts) == 4 and parts[:2] == ["usr", "lib"] and ".so" in file.name and file.kind is not PathType.DIRECTORY
    )
