"""The documents of an image, and its archive."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from deploy.images.building.layer_store import StoredLayer
from deploy.images.building.oci_archive import Contents, write_archive
from deploy.images.formats import oci

LAYER, DIFF_ID = oci.Descriptor.of(oci.LAYER, b"packed"), oci.digest_of(b"plain")
RUN = oci.RunConfig("arm64", ["/usr/local/bin/x"], "65532:65532", [9101], {"PATH": "/bin"}, {"a": "b"})


def test_a_configuration_says_how_the_program_is_run() -> None:
    assert json.loads(oci.config(RUN, [DIFF_ID])) == {
        "architecture": "arm64",
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Entrypoint": ["/usr/local/bin/x"],
            "Env": ["PATH=/bin"],
            "ExposedPorts": {"9101/tcp": {}},
            "Labels": {"a": "b"},
            "User": "65532:65532",
        },
        "rootfs": {"type": "layers", "diff_ids": [DIFF_ID]},
    }


def test_a_disk_has_no_program_to_run() -> None:
    assert json.loads(oci.config(oci.RunConfig("amd64"), []))["config"] == {"Env": []}


def test_an_index_names_an_image_for_each_architecture() -> None:
    described = oci.Descriptor.of(oci.MANIFEST, b"{}")
    assert json.loads(oci.index({"arm64": described, "amd64": described})) == {
        "schemaVersion": 2,
        "mediaType": oci.INDEX,
        "manifests": [
            {
                "mediaType": oci.MANIFEST,
                "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
                "size": 2,
                "platform": {"architecture": architecture, "os": "linux"},
            }
            for architecture in ("amd64", "arm64")
        ],
    }


def contents(folder: Path) -> Contents:
    packed = folder / "layer.tar.gz"
    packed.write_bytes(b"packed")
    return Contents(RUN, (StoredLayer(packed, LAYER, DIFF_ID),))


def test_archive_has_all_blobs_and_names(tmp_path: Path) -> None:
    image = contents(tmp_path)
    archive_path = tmp_path / "out" / "image.tar"
    write_archive(archive_path, image, "registry.test:5000/x:v1")
    with tarfile.open(archive_path) as archive:
        found = {info.name: archive.extractfile(info).read() for info in archive}  # type: ignore[union-attr]
    index, docker = json.loads(found["index.json"]), json.loads(found["manifest.json"])
    assert index["manifests"][0]["annotations"] == {
        "io.containerd.image.name": "registry.test:5000/x:v1",
        "org.opencontainers.image.ref.name": "v1",
    }
    blobs = {name: content for name, content in found.items() if name.startswith("blobs/")}
    assert all(name == f"blobs/{oci.digest_of(content).replace(':', '/')}" for name, content in blobs.items())
    assert set(blobs.values()) == {b"packed", image.config, image.manifest}
    assert blobs[docker[0]["Config"]] == image.config
    assert docker[0]["RepoTags"] == ["registry.test:5000/x:v1"]
    assert image.size == sum(map(len, blobs.values()))
    assert list(archive_path.parent.iterdir()) == [archive_path]


def test_two_archives_of_one_image_are_equal(tmp_path: Path) -> None:
    image = contents(tmp_path)
    for name in ("a", "b"):
        write_archive(tmp_path / f"{name}.tar", image, "x:v1")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
