"""The images of a cluster's own pods, and what builds are kept by."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import pytest

from deploy.local.kubernetes.plan.cluster_plan import BUSYBOX_IMAGE, PAUSE_IMAGE
from deploy.local.kubernetes.programs.build import Builder, BuildProgress
from deploy.local.kubernetes.programs.images import ProgramImage, is_static, write_image
from deploy.local.kubernetes.programs.toolchain import Toolchain
from deploy.local.kubernetes.programs.versions import ETCD, PAUSE
from vm_image.store import Store


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOSCALE_CACHE", str(tmp_path / "cache"))


def program(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(f"the program {name}".encode())
    return path


def written(image: ProgramImage, path: Path) -> tuple[dict[str, object], list[str]]:
    """Run configuration of the image, and the names in its layer."""
    write_image(image, path, lambda _: None)
    with tarfile.open(path) as archive:
        (manifest,) = json.loads(content(archive, "manifest.json"))
        assert manifest["RepoTags"] == [image.name]
        config = json.loads(content(archive, manifest["Config"]))["config"]
        with tarfile.open(fileobj=archive.extractfile(manifest["Layers"][0])) as layer:
            return config, layer.getnames()


def content(archive: tarfile.TarFile, name: str) -> bytes:
    found = archive.extractfile(name)
    assert found is not None
    return found.read()


def test_an_image_runs_its_program_without_rights(tmp_path: Path) -> None:
    config, names = written(ProgramImage(PAUSE_IMAGE, program(tmp_path, "pause")), tmp_path / "pause.tar")
    assert config == {"Entrypoint": ["/bin/pause"], "Env": ["PATH=/bin"], "User": "65532:65532"}
    assert names == ["bin", "bin/pause", "tmp"]


def test_toolbox_links_every_tool(tmp_path: Path) -> None:
    image = ProgramImage(BUSYBOX_IMAGE, program(tmp_path, "busybox"), ("cat", "sh"))
    config, names = written(image, tmp_path / "busybox.tar")
    assert config == {"Env": ["PATH=/bin"]}
    assert names == ["bin", "bin/busybox", "bin/cat", "bin/sh", "tmp"]


def test_builds_are_cached_by_set_and_go(tmp_path: Path) -> None:
    one, other = (
        Builder(Toolchain(Path("go"), version), Store(tmp_path / "kept")) for version in ("go1.26.8", "go1.27.0")
    )
    keys = {one.key(PAUSE), one.key(ETCD), other.key(PAUSE), other.key(ETCD)}
    assert len(keys) == 4
    assert {key.rpartition("-")[0] for key in keys} == {"pause", "etcd"}
    assert one.cached(PAUSE) is None
    (tmp_path / "kept" / one.key(PAUSE)).mkdir(parents=True)
    assert (one.cached(PAUSE), other.cached(PAUSE)) == (tmp_path / "kept" / one.key(PAUSE), None)


def test_build_reports_every_tenth() -> None:
    said: list[str] = []
    progress = BuildProgress("etcd", 40, said.append)
    for _ in range(9):
        progress.built()
    assert said == ["etcd: 4 packages of 40 at most", "etcd: 8 packages of 40 at most"]


def test_dynamic_busybox_is_refused(tmp_path: Path) -> None:
    assert not is_static(Path(sys.executable).resolve())
    assert not is_static(program(tmp_path, "script"))
    assert not is_static(tmp_path / "missing")
