"""Generated files of an image: system files, dpkg status, and the program (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from deploy.images.formats.deb import Package
from deploy.images.formats.tree import File, Tree, directory, root_links, symlink

ENVIRONMENT: Final = {
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/sbin:/usr/bin",
    # The default is a folder of hashed links, which only update-ca-certificates creates.
    "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
}
"""Environment of all service images."""

# /nologin does not exist either.
_USERS: Final = "root:x:0:0:root:/:/nologin\nnonroot:x:65532:65532:nonroot:/:/nologin\n"
_GROUPS: Final = "root:x:0:\nnonroot:x:65532:\n"
_LOOKUPS: Final = "passwd: files\ngroup: files\nhosts: files dns\n"
_AUTHORITIES: Final = "usr/share/ca-certificates/"


def system_files(packages: Iterable[Package]) -> list[File]:
    """Users, nsswitch.conf, the CA bundle, and the links that maintainer scripts would create."""
    files = [file for package in packages for file in package.files]
    # No maintainer scripts run here, so update-ca-certificates does not create the bundle.
    bundle = (file.content for file in sorted(files, key=lambda file: file.path) if file.path.startswith(_AUTHORITIES))
    return [
        File("etc/passwd", _USERS.encode()),
        File("etc/group", _GROUPS.encode()),
        File("etc/nsswitch.conf", _LOOKUPS.encode()),
        File("etc/ssl/certs/ca-certificates.crt", b"".join(bundle)),
        symlink("usr/bin/python3", "python3.11"),
        *(directory(path, 0o1777) for path in ("tmp", "var/tmp")),
        *(directory(path) for path in ("dev", "proc", "run", "sys")),
        *root_links(file.path for file in files),
    ]


def dpkg_status(packages: Iterable[Package], files: Tree) -> list[File]:
    """The dpkg status files of the packages in ``files``, for vulnerability scanners."""
    return [
        File(f"var/lib/dpkg/status.d/{package.name}", package.control.encode())
        for package in packages
        # Not packages of which only the license is included.
        if any(
            file.path in files and not file.path.startswith("usr/share/doc/") for file in package.files if file.content
        )
    ]


def program(name: str, starts: str) -> File:
    """The script ``name``, which calls ``starts`` (``module:function``)."""
    module, _, function = starts.partition(":")
    # -I: isolated. -u: unbuffered. -B: write no bytecode.
    text = f"#!/usr/bin/python3 -IuB\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
    return File(f"usr/local/bin/{name}", text.encode(), 0o755)
