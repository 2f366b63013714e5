"""Documents of a release: SBOMs (CycloneDX 1.5), provenance (in-toto, SLSA 1.0), and checksums (pure)."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from deploy.images.formats import oci

STATUS: Final = "var/lib/dpkg/status.d/"
WHOLE_STATUS: Final = "var/lib/dpkg/status"
"""The status file of a guest's disk: one paragraph per package."""

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
        """The package URL.

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
    """Return True if a file of an image is a list of packages or a package's metadata."""
    return path == WHOLE_STATUS or path.startswith(STATUS) or path.endswith(METADATA)


def components(files: Mapping[str, bytes]) -> list[Component]:
    """The packages in ``files`` (by path), sorted. Raises ``ValueError`` if one has no name or version."""
    paragraphs = ((path, text) for path, content in files.items() if is_listed(path) for text in _texts(path, content))
    return sorted({_component(path, text) for path, text in paragraphs})


def _texts(path: str, content: bytes) -> list[str]:
    text = content.decode(errors="replace")
    if path != WHOLE_STATUS:
        return [text]
    # dpkg also lists removed packages with remaining configuration.
    return [paragraph for paragraph in text.split("\n\n") if INSTALLED in paragraph.splitlines()]


def _component(path: str, text: str) -> Component:
    # In METADATA, fields end at the first empty line; lines of the description may look like fields.
    head = text.partition("\n\n")[0] if path.endswith(METADATA) else text
    # Reversed, so that the first of several fields with the same name wins.
    fields = {name: value.strip() for name, value in reversed(_FIELD.findall(head))}
    name, version = fields.get("Package") or fields.get("Name"), fields.get("Version")
    if name is None or version is None:
        raise ValueError(f"{path} has no name or no version")
    if path.startswith(WHOLE_STATUS):
        return Component("deb", name, version, fields.get("Architecture", "all"))
    # Package URLs have PyPI's normalized names.
    return Component("pypi", re.sub(r"[-_.]+", "-", name).lower(), version)


Document = dict[str, object]

BUILDER: Final = "urn:autoscale:release-script"
BUILD_TYPE: Final = "urn:autoscale:release-script:v1"
_NAMES: Final = uuid.UUID("6f4f2d3e-7a31-5d1c-9b2b-0a7c8f5d3e21")
"""UUID namespace of serial numbers, which are derived from digests to make SBOMs reproducible."""


@dataclass(frozen=True, slots=True)
class ReleasedImage:
    """An image of a release for one platform. ``file`` is the name of its archive."""

    name: str
    architecture: str
    file: str
    manifest: oci.Descriptor
    components: tuple[Component, ...]

    @property
    def digest(self) -> str:
        """The manifest's digest, with ``sha256:``."""
        return self.manifest.digest


@dataclass(frozen=True, slots=True)
class ReleaseSource:
    """Source of a release. ``uri`` is the URL of the repository, empty if it has none.

    ``registry`` is the registry of its images, with an optional path; empty if users push them.
    """

    version: str
    revision: str
    created: str
    uri: str = ""
    registry: str = ""


def encoded(document: Mapping[str, object]) -> bytes:
    """Encode a document reproducibly."""
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def bill_of_materials(image: ReleasedImage, source: ReleaseSource) -> Document:
    """The SBOM of ``image``, in CycloneDX."""
    reference = f"{image.name}@{image.digest}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        # CycloneDX requires a unique serial number; a random one would not be reproducible.
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMES, reference)}",
        "version": 1,
        "metadata": {
            "timestamp": source.created,
            "component": {
                "type": "container",
                "bom-ref": reference,
                "name": image.name,
                "version": source.version,
                "hashes": [{"alg": "SHA-256", "content": image.digest.removeprefix("sha256:")}],
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": [
            {
                "type": "library",
                "bom-ref": component.purl,
                "name": component.name,
                "version": component.version,
                "purl": component.purl,
            }
            for component in image.components
        ],
        "dependencies": [{"ref": reference, "dependsOn": [component.purl for component in image.components]}],
    }


def provenance(subjects: Mapping[str, str], source: ReleaseSource, materials: Iterable[Component]) -> Document:
    """The provenance: an in-toto statement with SLSA's predicate. ``subjects`` are hex SHA-256 digests by name.

    It is unsigned; the publisher of the release signs it.
    """
    repository = {"uri": f"git+{source.uri}" if source.uri else "git", "digest": {"gitCommit": source.revision}}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"command": ["scripts/release.sh"], "version": source.version},
                "resolvedDependencies": [
                    repository,
                    *({"uri": component.purl} for component in sorted(set(materials))),
                ],
            },
            "runDetails": {"builder": {"id": BUILDER}, "metadata": {"startedOn": source.created}},
        },
    }


def summary(images: Iterable[ReleasedImage], source: ReleaseSource) -> Document:
    """Content of ``release.json``: version, revision, registry, and the digest of each image."""
    return {
        "version": source.version,
        "revision": source.revision,
        "registry": source.registry,
        "images": digests_by_name(images),
    }


def digests_by_name(images: Iterable[ReleasedImage]) -> dict[str, str]:
    """Digest of each image's tag: of its manifest or, for several platforms, of an index."""
    manifests: dict[str, dict[str, oci.Descriptor]] = {}
    for image in images:
        manifests.setdefault(image.name, {})[image.architecture] = image.manifest
    return {name: oci.digest_under_tag(by_architecture) for name, by_architecture in manifests.items()}


def checksums(files: Mapping[str, str]) -> bytes:
    """Content of a file for ``sha256sum --check``, from hex digests by path."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(files.items())).encode()


def changes(changelog: str, version: str) -> str:
    """The section of a changelog for ``version``, without its heading. Raises ``ValueError`` if there is none.

    >>> changes("# Changelog\\n\\n## [1.1.0] - 2026-11-22\\n\\n- New.\\n\\n## [1.0.0]\\n\\n[1.1.0]: ../x\\n", "1.1.0")
    '- New.\\n'
    """
    # It ends at the next heading or at the link definitions at the bottom.
    section = rf"^## \[{re.escape(version)}\].*\n((?:(?!## |\[.+\]: ).*\n)*)"
    match = re.search(section, changelog, re.MULTILINE)
    if match is None:
        raise ValueError(f"has no section [{version}]")
    return f"{match[1].strip()}\n"
