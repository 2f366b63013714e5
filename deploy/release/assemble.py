"""Writes a release into a folder, from image archives and a checkout.

images/NAME-ARCH.tar   sbom/NAME-ARCH.cdx.json   autoscale-VERSION.tgz   release.json
provenance.intoto.json   SHA256SUMS   autoscale-VERSION-airgapped.tar
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.images.inputs.checkout import Checkout
from deploy.release import push_images
from deploy.release.chart_archive import chart_archive
from deploy.release.documents import (
    ReleasedImage,
    Source,
    bill_of_materials,
    checksums,
    digests_by_name,
    encoded,
    provenance,
)
from deploy.release.image_archive import read_image

CHART: Final = Path("deploy/kubernetes/chart/autoscale")
PUSH: Final = "push_images.py"
SUMS: Final = "SHA256SUMS"


@dataclass(frozen=True, slots=True)
class Release:
    """What was written: the folder, the images, and the archive for clusters without a way out."""

    folder: Path
    images: tuple[ReleasedImage, ...]
    airgapped: Path


def assemble(checkout: Checkout, archives: Sequence[Path], folder: Path, uri: str = "") -> Release:
    """Writes the release into ``folder``, which is emptied first. Raises ``ArchiveError`` and ``BuildError``.

    ``uri`` is where the repository is, as the provenance names it.
    """
    source = Source(checkout.version, checkout.revision, checkout.created, uri)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "images").mkdir(parents=True)
    (folder / "sbom").mkdir()
    for path in archives:
        shutil.copyfile(path, folder / "images" / path.name)
    images = tuple(read_image(path) for path in sorted((folder / "images").glob("*.tar")))
    for image in images:
        name = f"{image.file.removesuffix('.tar')}.cdx.json"
        (folder / "sbom" / name).write_bytes(encoded(bill_of_materials(image, source)))
    _write_chart(checkout, images, folder, source)
    summary = {"version": source.version, "revision": source.revision, "images": digests_by_name(images)}
    (folder / "release.json").write_bytes(encoded(summary))
    statement = provenance(_digests(folder), source, (each for image in images for each in image.components))
    (folder / "provenance.intoto.json").write_bytes(encoded(statement))
    (folder / SUMS).write_bytes(checksums(_digests(folder)))
    return Release(folder, images, _pack(folder, source.version))


def _write_chart(checkout: Checkout, images: Iterable[ReleasedImage], folder: Path, source: Source) -> None:
    """The chart names its images by tag and digest."""
    root = checkout.root / CHART
    files = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    packed = chart_archive(files, source.version, f"v{source.version}", digests_by_name(images))
    (folder / f"autoscale-{source.version}.tgz").write_bytes(packed)


def _digests(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): _digest(path) for path in paths}


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _pack(folder: Path, version: str) -> Path:
    """One archive with everything, and the script that pushes the images."""
    name = f"autoscale-{version}-airgapped"
    path = folder / f"{name}.tar"
    half = path.with_suffix(".half")
    try:
        with tarfile.open(half, "w", format=tarfile.PAX_FORMAT) as archive:
            for each in sorted(folder.rglob("*")):
                if each.is_file() and each != half:
                    _add(archive, f"{name}/{each.relative_to(folder)}", each, 0o644)
            _add(archive, f"{name}/{PUSH}", Path(push_images.__file__), 0o755)
        half.rename(path)
    finally:
        half.unlink(missing_ok=True)
    return path


def _add(archive: tarfile.TarFile, name: str, path: Path, mode: int) -> None:
    """A file without its time and owner: equal releases are equal to the byte."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = path.stat().st_size, mode
    with path.open("rb") as content:
        archive.addfile(info, content)
