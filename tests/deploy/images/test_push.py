"""Pushing archives with skopeo: the registry's content afterwards, and the error messages."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.images.building.layer_store import StoredLayer
from deploy.images.building.oci_archive import Contents, write_archive
from deploy.images.formats import oci
from deploy.images.push import PushError, PushTarget, push
from tests.deploy.release.test_push_images import Registry, serving

needs_skopeo = pytest.mark.skipif(shutil.which("skopeo") is None, reason="needs skopeo")


def archive(folder: Path, machine: str = "amd64") -> Path:
    packed, file = b"packed", folder / f"{machine}.tar.gz"
    file.write_bytes(packed)
    layer = StoredLayer(file, oci.Descriptor.of(oci.LAYER, packed), oci.digest_of(b"plain"))
    path = folder / f"{machine}.tar"
    write_archive(path, Contents(oci.RunConfig(machine), (layer,)), "x:v1")
    return path


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PushTarget, type[Registry]]]:
    """An image in a registry that wants a login, which docker has."""
    with serving(Registry) as (address, there):
        pair = base64.b64encode(b"me:secret").decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {address: {"auth": pair}}}))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        yield PushTarget(f"{address}/team", "agent", "v1"), there


def pushed(archives: dict[str, Path], target: PushTarget) -> str:
    return push(archives, target, lambda _: None)


@needs_skopeo
def test_pushed_image_keeps_archive_digest(tmp_path: Path, registry: tuple[PushTarget, type[Registry]]) -> None:
    target, there = registry
    digest = pushed({"amd64": archive(tmp_path)}, target)
    document = there.kept["/v2/team/agent/manifests/v1"]
    assert digest == oci.digest_of(document)
    manifest = json.loads(document)
    blobs = {part["digest"] for part in (*manifest["layers"], manifest["config"])}
    assert there.kept.keys() == blobs | {"/v2/team/agent/manifests/v1"}
    assert b"packed" in there.kept.values()


@needs_skopeo
def test_what_the_registry_has_is_not_sent_again(tmp_path: Path, registry: tuple[PushTarget, type[Registry]]) -> None:
    target, there = registry
    pushed({"amd64": archive(tmp_path)}, target)
    del there.kept["/v2/team/agent/manifests/v1"]
    pushed({"amd64": archive(tmp_path)}, target)  # the registry itself refuses what it has
    assert "/v2/team/agent/manifests/v1" in there.kept


@needs_skopeo
def test_several_platforms_become_one_name(tmp_path: Path, registry: tuple[PushTarget, type[Registry]]) -> None:
    target, there = registry
    digest = pushed({name: archive(tmp_path, name) for name in ("arm64", "amd64")}, target)
    index = there.kept["/v2/team/agent/manifests/v1"]
    assert digest == oci.digest_of(index)
    manifests = json.loads(index)["manifests"]
    assert [each["platform"]["architecture"] for each in manifests] == ["amd64", "arm64"]
    for each in manifests:
        assert oci.digest_of(there.kept[f"/v2/team/agent/manifests/{each['digest']}"]) == each["digest"]


@needs_skopeo
def test_a_refused_login_is_said(tmp_path: Path, registry: tuple[PushTarget, type[Registry]]) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(PushError, match=r"skopeo failed to push .*/team/agent:v1: .*authentication required"):
        pushed({"amd64": archive(tmp_path)}, registry[0])


@needs_skopeo
def test_broken_archive_is_refused(tmp_path: Path, registry: tuple[PushTarget, type[Registry]]) -> None:
    path = archive(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"packed", b"broken"))
    with pytest.raises(PushError, match="skopeo failed to push"):
        pushed({"amd64": path}, registry[0])


@needs_skopeo
def test_unreachable_registry_error_says_how_to_start(tmp_path: Path) -> None:
    with pytest.raises(PushError, match=r"vm_image/start-local-registry\.sh"):
        pushed({"amd64": archive(tmp_path)}, PushTarget("127.0.0.1:1", "agent", "v1"))


def test_missing_skopeo_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PushError) as refused:
        pushed({"amd64": archive(tmp_path)}, PushTarget("registry.test", "agent", "v1"))
    assert str(refused.value) == ("skopeo is not installed: sudo apt-get install --no-install-recommends skopeo")


@pytest.mark.parametrize(
    ("target", "is_plain"),
    [
        (PushTarget("localhost:5001", "agent", "dev"), True),
        (PushTarget("127.0.0.1:5001/a/b", "agent", "dev"), True),
        (PushTarget("registry.test/team", "agent", "v1"), False),
        (PushTarget("registry.test", "agent", "v1", plain_http=True), True),
    ],
)
def test_plain_http_is_for_loopback_only(target: PushTarget, is_plain: bool) -> None:
    assert target.is_plain is is_plain


def test_an_image_is_named_as_pods_name_it() -> None:
    assert PushTarget("registry.test/team", "agent", "v1").reference == "registry.test/team/agent:v1"
