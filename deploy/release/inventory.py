"""Inventory of an image, read from its files: Debian packages and Python distributions (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

STATUS: Final = "var/lib/dpkg/status.d/"
WHOLE_STATUS: Final = "var/lib/dpkg/status"
"""One file for all packages, with a paragraph for each, those of a guest's disk among them."""

INSTALLED: Final = "Status: install ok installed"
METADATA: Final = ".dist-info/METADATA"
_FIELD: Final = re.compile(r"^(Package|Name|Version|Architecture|License|License-Expression): (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class Component:
    """One package: ``kind`` is ``deb`` or ``pypi``, as in package URLs."""

    kind: str
    name: str
    version: str
    architecture: str = ""

    @property
    def purl(self) -> str:
        """Its package URL.

        >>> Component("deb", "libc6", "2.36-9+deb12u10", "amd64").purl
        'pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12'
        >>> Component("pypi", "httpx", "0.28.1").purl
        'pkg:pypi/httpx@0.28.1'
        """
        version = quote(self.version, safe=".~-_")
        if self.kind == "deb":
            return f"pkg:deb/debian/{self.name}@{version}?arch={self.architecture}&distro=debian-12"
        return f"pkg:pypi/{self.name}@{version}"


def is_listed(path: str) -> bool:
    """Return True if a file of an image describes packages."""
    return path == WHOLE_STATUS or path.startswith(STATUS) or path.endswith(METADATA)


def components(files: Mapping[str, bytes]) -> list[Component]:
    """The packages that these files (by path) describe, sorted. Raises ``ValueError`` if one has no name or version."""
    listed = ((path, text) for path, content in files.items() if is_listed(path) for text in _texts(path, content))
    return sorted({_component(path, text) for path, text in listed})


def _texts(path: str, content: bytes) -> list[str]:
    """The file's text for each package."""
    text = content.decode(errors="replace")
    if path != WHOLE_STATUS:
        return [text]
    # dpkg also lists removed packages that left configuration behind.
    return [paragraph for paragraph in text.split("\n\n") if INSTALLED in paragraph.splitlines()]


def _component(path: str, text: str) -> Component:
    # METADATA's fields end at the first empty line; the description below may have lines that look like fields.
    head = text.partition("\n\n")[0] if path.endswith(METADATA) else text
    fields = _first(_FIELD.findall(head))
    name, version = fields.get("Package") or fields.get("Name"), fields.get("Version")
    if name is None or version is None:
        raise ValueError(f"{path} has no name or no version")
    if path.startswith(WHOLE_STATUS):
        return Component("deb", name, version, fields.get("Architecture", "all"))
    # Package URLs want the normalized name of PyPI.
    return Component("pypi", re.sub(r"[-_.]+", "-", name).lower(), version)


def _first(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The fields by name; of several with the same name the first counts."""
    return {name: value.strip() for name, value in reversed(list(pairs))}
