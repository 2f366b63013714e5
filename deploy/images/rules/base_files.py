"""The few files of an image that no package and no wheel has (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from deploy.images.formats.deb import Package
from deploy.images.formats.tree import File, Tree, directory, root_links, symlink

ENVIRONMENT: Final = {
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/sbin:/usr/bin",
    # Python's ssl would otherwise look for a folder of hashed links, which a script of ca-certificates makes.
    "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
}
"""The environment of every program in an image."""

# There is no shell: /nologin does not exist either.
_USERS: Final = "root:x:0:0:root:/:/nologin\nnonroot:x:65532:65532:nonroot:/:/nologin\n"
_GROUPS: Final = "root:x:0:\nnonroot:x:65532:\n"
_LOOKUPS: Final = "passwd: files\ngroup: files\nhosts: files dns\n"
_AUTHORITIES: Final = "usr/share/ca-certificates/"


def system_files(packages: Iterable[Package]) -> list[File]:
    """Users, name look-ups, the bundle of certificate authorities, and the links that Debian's scripts would make."""
    files = [file for package in packages for file in package.files]
    # update-ca-certificates would make the bundle on installation, but no package scripts run here.
    bundle = (file.content for file in sorted(files, key=lambda file: file.path) if file.path.startswith(_AUTHORITIES))
    return [
        File("etc/passwd", _USERS.encode()),
        File("etc/group", _GROUPS.encode()),
        File("etc/nsswitch.conf", _LOOKUPS.encode()),
        File("etc/ssl/certs/ca-certificates.crt", b"".join(bundle)),
        symlink("usr/bin/python3", "python3.11"),
        # Sticky and open to all: services do not run as root.
        *(directory(path, 0o1777) for path in ("tmp", "var/tmp")),
        *(directory(path) for path in ("dev", "proc", "run", "sys")),
        *root_links(file.path for file in files),
    ]


def described(packages: Iterable[Package], files: Tree) -> list[File]:
    """Package database of the files, in the form that vulnerability scanners read."""
    return [
        File(f"var/lib/dpkg/status.d/{package.name}", package.control.encode())
        for package in packages
        # Scanners must not report a package of which only the licence is left.
        if any(
            file.path in files and not file.path.startswith("usr/share/doc/") for file in package.files if file.content
        )
    ]


def program(name: str, starts: str) -> File:
    """The program ``name`` that calls ``module:function``: no shell, no buffered output, no module from elsewhere."""
    module, _, function = starts.partition(":")
    # -I ignores PYTHON* variables and the user's packages, -u does not buffer output, -B writes no bytecode.
    text = f"#!/usr/bin/python3 -IuB\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
    return File(f"usr/local/bin/{name}", text.encode(), 0o755)
