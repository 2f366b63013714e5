"""A release's images can be rebuilt byte by byte."""

from __future__ import annotations

import filecmp
import os
import tempfile
from pathlib import Path

import pytest

from deploy.images.building.image_build import build
from deploy.images.formats import oci
from tests.deploy.images.checked_out import SERVICES, maker
from tests.kubernetes.adoption.debian_archive import STATE, archive_proxy
from vm_image.build import GuestImage, ensure_image, inputs_of
from vm_image.recipe import NEWEST, Origin
from vm_image.store import cache_root

pytestmark = pytest.mark.kubernetes

KEPT = ("packages", "wheels", "images", "layers")
"""What has been fetched, and the guest image, which has a test of its own."""


def fresh_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache without a layer of an image, and without the Python that compiles their modules."""
    shared = cache_root()
    folder.mkdir()
    for name in KEPT:
        (shared / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(shared / name)
    monkeypatch.setenv("AUTOSCALE_CACHE", str(folder))


def built_services(folder: Path) -> dict[str, tuple[str, str]]:
    """The digests of each service's image and of its archive, which is not kept."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        layers = maker()
        built = (build(image, layers, f"localhost:5001/{image.name}:dev", Path(place)) for image in SERVICES)
        return {each.image.name: (each.digest, oci.digest_of(each.path.read_bytes())) for each in built}


def test_clean_build_is_byte_identical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = built_services(tmp_path)
    fresh_cache(tmp_path / "cache", monkeypatch)
    assert built_services(tmp_path) == kept


def built_guest(cache: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch) -> GuestImage:
    """A guest image that was made of nothing that an earlier build left."""
    monkeypatch.setenv("AUTOSCALE_CACHE", str(cache))
    return ensure_image(print, origin)


def test_guest_images_are_byte_identical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one takes them from the archive of all states, elsewhere, at another time, under other settings."""
    newest = built_guest(tmp_path / "newest", NEWEST, monkeypatch)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LC_ALL", "C")
    before = os.umask(0o077)
    try:
        with archive_proxy() as proxy:
            monkeypatch.setenv("http_proxy", proxy)
            archived = built_guest(tmp_path / "archived", Origin(STATE), monkeypatch)
    finally:
        os.umask(before)
    assert inputs_of(archived) == inputs_of(newest)
    for one, other in zip((newest.kernel, newest.initrd), (archived.kernel, archived.initrd), strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert filecmp.cmp(newest.disk, archived.disk, shallow=False)
