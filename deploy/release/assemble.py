"""Writes a release into a folder, from image archives and a checkout.

autoscale-VERSION.tgz   autoscale-VERSION-airgapped.tar   NAME-ARCH.cdx.json   release.json   CHANGES.md
provenance.intoto.json   SHA256SUMS, of these   images/NAME-ARCH.tar

Users download the files, and nodes pull the images from a registry. The air-gapped archive contains everything, with
its own checksums.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.images.building.oci_archive import add_file, blob_path
from deploy.images.formats import oci
from deploy.images.inputs.checkout import Checkout
from deploy.release import documents, push_images
from deploy.release.chart_archive import chart_archive
from vm_image.host import BuildError

IMAGES: Final = "images"
SUMMARY: Final = "release.json"
SUMS: Final = "SHA256SUMS"


def check_output(folder: Path) -> None:
    """Raise ``BuildError`` if ``folder`` contains anything except an earlier release."""
    foreign = sorted(_foreign(folder)) if folder.exists() else []
    if foreign:
        # Three names are enough to recognize the folder.
        names = ", ".join([*foreign[:3], *(["…"] if len(foreign) > 3 else [])])
        raise BuildError(f"{folder} contains other files than a release ({names}): use another --output")


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A new folder, which replaces ``folder`` if the block succeeds. Raises ``BuildError`` before the block."""
    check_output(folder)
    target = folder.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder as the target: renames are atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as work:
        new = Path(work, "new")
        new.mkdir()
        yield new
        # A rename cannot replace a folder that is not empty, so move the earlier release away first.
        if target.exists():
            target.rename(Path(work, "old"))
        new.rename(target)


def _foreign(folder: Path) -> Iterator[str]:
    """Entries that are not in the checksums of the release in ``folder``, except for image archives."""
    released = _release_files(folder)
    for path in folder.iterdir():
        if path.name == IMAGES and released and path.is_dir():
            yield from (f"{IMAGES}/{image.name}" for image in path.iterdir() if image.suffix != ".tar")
        elif path.name not in released:
            yield path.name


def _release_files(folder: Path) -> set[str]:
    """The names of the files of the release in ``folder``; empty if there is none."""
    with suppress(OSError, ValueError, AttributeError):
        summary = json.loads((folder / SUMMARY).read_text())
        names = {line.partition("  ")[2] for line in (folder / SUMS).read_text().splitlines()}
        # A SHA256SUMS file alone may belong to another project.
        if SUMMARY in names and summary.keys() >= {"version", "revision", "images"}:
            return {*names, SUMS}
    return set()


class ArchiveError(Exception):
    """The file is not one of our image archives; the message says what is missing."""


def read_image(path: Path) -> documents.ReleasedImage:
    """The image in the archive at ``path``. Raises ``ArchiveError``."""
    with tarfile.open(path) as archive:
        (entry,) = json.loads(_content(archive, "index.json"))["manifests"]
        manifest = json.loads(_content(archive, blob_path(entry["digest"])))
        files: dict[str, bytes] = {}
        for layer in manifest["layers"]:
            # Files in higher layers replace those in lower ones.
            files |= _package_files(_content(archive, blob_path(layer["digest"])))
    name = manifest.get("annotations", {}).get("org.opencontainers.image.title", path.stem)
    try:
        packages = tuple(documents.components(files))
    except ValueError as error:
        raise ArchiveError(f"{path.name}: {error}") from error
    descriptor = oci.Descriptor(entry["mediaType"], entry["digest"], entry["size"])
    return documents.ReleasedImage(name, entry["platform"]["architecture"], path.name, descriptor, packages)


def _package_files(layer: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as packed:
        return {
            info.name: content.read()
            for info in packed
            if info.isfile() and documents.is_listed(info.name) and (content := packed.extractfile(info)) is not None
        }


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    try:
        content = archive.extractfile(name)
    except KeyError:
        content = None
    # ``extractfile`` returns None for a directory or device.
    if content is None:
        raise ArchiveError(f"not an image archive: it has no {name}")
    return content.read()


CHART: Final = Path("deploy/kubernetes/chart/autoscale")
PUSH: Final = "push_images.py"
PROVENANCE: Final = "provenance.intoto.json"


@dataclass(frozen=True, slots=True)
class Release:
    """A finished release: its folder, its images, and the archive for air-gapped clusters."""

    folder: Path
    images: tuple[documents.ReleasedImage, ...]
    airgapped: Path


def assemble(checkout: Checkout, archives: Sequence[Path], folder: Path, uri: str = "", registry: str = "") -> Release:
    """Write the release to ``folder``, replacing an earlier one. Raises ``ArchiveError`` and ``BuildError``.

    ``uri`` is the repository's URL for the provenance, ``registry`` the registry that the images will be pushed to.
    """
    source = documents.ReleaseSource(checkout.version, checkout.revision, checkout.created, uri, registry)
    with replaced(folder) as new:
        images = _write_images(archives, new, source)
        _write_chart(checkout, images, new, source)
        (new / SUMMARY).write_bytes(documents.encoded(documents.summary(images, source)))
        (new / "CHANGES.md").write_text(_changes(checkout))
        files = {str(path.relative_to(new)): path for path in new.rglob("*") if path.is_file()}
        # The provenance cannot contain its own digest, or the digest of the archive that contains it.
        statement = documents.provenance(
            _digests(files), source, (component for image in images for component in image.components)
        )
        (new / PROVENANCE).write_bytes(documents.encoded(statement))
        airgapped = _pack(new / f"autoscale-{source.version}-airgapped.tar", {**files, PROVENANCE: new / PROVENANCE})
        downloads = {path.name: path for path in new.iterdir() if path.is_file()}
        (new / SUMS).write_bytes(documents.checksums(_digests(downloads)))
    return Release(folder, images, folder / airgapped.name)


def _write_images(
    archives: Iterable[Path], folder: Path, source: documents.ReleaseSource
) -> tuple[documents.ReleasedImage, ...]:
    (folder / IMAGES).mkdir()
    for path in archives:
        # Copied first, so that the SBOMs describe the released files.
        shutil.copyfile(path, folder / IMAGES / path.name)
    images = tuple(read_image(path) for path in sorted((folder / IMAGES).glob("*.tar")))
    for image in images:
        name = f"{image.file.removesuffix('.tar')}.cdx.json"
        (folder / name).write_bytes(documents.encoded(documents.bill_of_materials(image, source)))
    return images


def _changes(checkout: Checkout) -> str:
    try:
        return documents.changes((checkout.root / "CHANGELOG.md").read_text(), checkout.version)
    except ValueError as error:
        raise BuildError(f"CHANGELOG.md {error}") from error


def _write_chart(
    checkout: Checkout, images: Iterable[documents.ReleasedImage], folder: Path, source: documents.ReleaseSource
) -> None:
    root = checkout.root / CHART
    files = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    packed = chart_archive(files, source.version, source.registry, documents.digests_by_name(images))
    (folder / f"autoscale-{source.version}.tgz").write_bytes(packed)


def _digests(files: Mapping[str, Path]) -> dict[str, str]:
    return {name: _digest(path) for name, path in files.items()}


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _pack(path: Path, files: Mapping[str, Path]) -> Path:
    """Write an archive of ``files``, the script that pushes the images, and checksums; return its path."""
    files = {**files, PUSH: Path(push_images.__file__)}
    half = path.with_suffix(".half")
    try:
        # Written under another name first, so that an interrupted run leaves no incomplete archive.
        with tarfile.open(half, "w", format=tarfile.PAX_FORMAT) as archive:
            for name, source in sorted(files.items()):
                with source.open("rb") as content:
                    # Only the script is executable.
                    mode = 0o755 if name == PUSH else 0o644
                    add_file(archive, f"{path.stem}/{name}", source.stat().st_size, content, mode)
            sums = documents.checksums(_digests(files))
            add_file(archive, f"{path.stem}/{SUMS}", len(sums), io.BytesIO(sums))
        half.rename(path)
    finally:
        half.unlink(missing_ok=True)
    return path
