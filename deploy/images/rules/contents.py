"""Rules for the files of packages that an image keeps, and for what a finished image must not have (pure)."""

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
"""What no program of ours opens. The licences in usr/share/doc stay."""

FORBIDDEN: Final = frozenset(
    (
        *("sh", "bash", "dash", "ash", "busybox", "zsh", "perl", "su", "sudo", "mount", "login"),
        *("apt", "apt-get", "dpkg", "dpkg-deb", "pip", "pip3", "easy_install", "ensurepip", "curl", "wget", "nc"),
    )
)
"""Names that no image of a service may have anywhere: what an intruder would reach for first."""

_EXPECTED: Final = (
    *("libgcc_s.so.1", "libc.so.6", "libm.so.6"),
    *("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libresolv.so.2"),
)
"""Libraries of the C runtime that wheels and programs rely on, also without a header that names them."""


def kept(file: File, left_out: Iterable[str] = ()) -> bool:
    """Return True if an image keeps this file of a package. Directories come from the files in them."""
    if file.kind is PathType.DIRECTORY:
        return False
    # Licences require that the copyright file goes with the binary.
    if file.path.startswith("usr/share/doc/"):
        return file.name == "copyright"
    return not any(fnmatchcase(file.path, pattern) for pattern in (*LEFT_OUT, *left_out))


def reached(files: Tree, lower: Tree) -> dict[str, File]:
    """``files`` without the shared libraries that nothing needs, neither in ``files`` nor in the layers below."""
    libraries = {file.name: path for path, file in files.items() if _is_shared(file)}
    roots = [file for file in (*files.values(), *lower.values()) if not _is_shared(file)]
    wanted, reachable = [*_EXPECTED, *_all_needed(roots)], set[str]()
    while wanted:
        path = libraries.get(name := wanted.pop())
        if path is None or name in reachable:
            continue
        reachable.add(name)
        file = files[path]
        # A link such as libx.so.1 → libx.so.1.2 needs its target.
        wanted += [file.target.rpartition("/")[2]] if file.kind is PathType.SYMLINK else _all_needed([file])
    return {path: file for path, file in files.items() if not _is_shared(file) or file.name in reachable}


def forbidden(files: Tree, allowed: Iterable[str] = ()) -> list[str]:
    """The paths of what an image of a service must not have."""
    names = FORBIDDEN.difference(allowed)
    return sorted(path for path, file in files.items() if file.name in names and file.kind is not PathType.DIRECTORY)


def privileged(files: Tree) -> list[str]:
    """The paths of programs that give their caller another user's rights."""
    return sorted(path for path, file in files.items() if file.kind is PathType.REGULAR and file.mode & 0o6000)


def unresolved(files: Tree, machine: str) -> list[str]:
    """Problems of an image's programs: a missing library, a missing loader, code for another machine."""
    names = {file.name for file in files.values()}
    problems = []
    for path, file in sorted(files.items()):
        if (binary := read_binary(file.content)) is None:
            continue
        if binary.machine != machine:
            problems.append(f"{path} is built for {binary.machine}")
        problems += [f"{path} needs {name}" for name in binary.needed if name not in names]
        # A loader's path may lead over a link from the root, so only its name is compared.
        if binary.loader and binary.loader.rpartition("/")[2] not in names:
            problems.append(f"{path} needs {binary.loader}")
    return problems


def _all_needed(files: Iterable[File]) -> list[str]:
    return [name for file in files if (binary := read_binary(file.content)) for name in binary.needed]


def _is_shared(file: File) -> bool:
    """Return True for a library where the loader searches; programs open those in deeper folders by path."""
    parts = file.path.split("/")  # usr/lib/TRIPLET/NAME
    return (
        len(parts) == 4 and parts[:2] == ["usr", "lib"] and ".so" in file.name and file.kind is not PathType.DIRECTORY
    )
