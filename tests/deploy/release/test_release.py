"""A release says what is inside, how it was made, and is equal to the byte when it is made again."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from deploy.images.building.layer_store import StoredLayer
from deploy.images.building.oci_archive import Contents, write_archive
from deploy.images.formats import oci
from deploy.images.formats.tree import File, compressed, tar_of, tree
from deploy.images.inputs.checkout import Checkout
from deploy.release.__main__ import main
from deploy.release.assemble import Release, assemble
from deploy.release.inventory import Component, components
from protocol import VERSION

STATUS = b"Package: libc6\nArchitecture: amd64\nVersion: 2.36-9+deb12u10\nDescription: a library\n"
METADATA = b"Metadata-Version: 2.4\nName: Proto_Buf\nVersion: 6.1\nLicense: BSD\n\nVersion: of the text\n"
FILES = {
    "var/lib/dpkg/status.d/libc6": STATUS,
    "usr/local/lib/python3.11/dist-packages/proto_buf-6.1.dist-info/METADATA": METADATA,
    "usr/bin/program": b"x",
}


def image(folder: Path, name: str = "autoscaler-agent", machine: str = "amd64") -> Path:
    """An image archive of one layer."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = tar_of(tree(File(path, content) for path, content in FILES.items()))
    packed = compressed(plain)
    layer = oci.LayerFacts(oci.Descriptor.of(oci.LAYER, packed), oci.digest_of(plain))
    (folder / "layer").write_bytes(packed)
    config = oci.config(oci.RunFacts(machine), [layer])
    labels = {"org.opencontainers.image.title": name}
    manifest = oci.manifest(oci.Descriptor.of(oci.CONFIG, config), [layer], labels)
    path = folder / f"{name}-{machine}.tar"
    write_archive(path, Contents(machine, config, manifest, (StoredLayer(layer, folder / "layer"),)), f"x/{name}:v1")
    return path


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return assemble(Checkout(), [image(tmp_path / "built")], tmp_path / "release", "https://example.test/autoscale")


def document(release: Release, name: str) -> Any:
    return json.loads((release.folder / name).read_text())


def chart_file(release: Release, name: str) -> str:
    with tarfile.open(release.folder / f"autoscale-{VERSION}.tgz") as chart:
        return (chart.extractfile(f"autoscale/{name}") or io.BytesIO()).read().decode()


def test_what_is_inside_an_image_is_read_from_its_files() -> None:
    assert components(FILES) == [
        Component("deb", "libc6", "2.36-9+deb12u10", "amd64"),
        Component("pypi", "proto-buf", "6.1"),
    ]
    with pytest.raises(ValueError, match=r"status\.d/x has no name or no version"):
        components({"var/lib/dpkg/status.d/x": b"Package: x\n"})


def test_what_is_in_a_guests_disk_is_read_from_the_list_beside_it() -> None:
    listed = STATUS.replace(b"libc6\n", b"libc6\nStatus: install ok installed\n", 1)
    gone = listed.replace(b"libc6", b"perl").replace(b"install ok installed", b"deinstall ok config-files")
    files = {"var/lib/dpkg/status": listed + b"\n" + gone + b"\n", "disk.qcow2": b"x"}
    assert components(files) == [Component("deb", "libc6", "2.36-9+deb12u10", "amd64")]


def test_each_image_has_a_bill_of_materials_for_its_digest(release: Release) -> None:
    (found,) = release.images
    listed = document(release, "sbom/autoscaler-agent-amd64.cdx.json")
    about = listed["metadata"]["component"]
    assert (listed["bomFormat"], listed["specVersion"], about["version"]) == ("CycloneDX", "1.5", VERSION)
    assert f"sha256:{about['hashes'][0]['content']}" == found.digest
    assert [each["purl"] for each in listed["components"]] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12",
        "pkg:pypi/proto-buf@6.1",
    ]
    references = {about["bom-ref"], *(each["bom-ref"] for each in listed["components"])}
    assert {each for entry in listed["dependencies"] for each in (entry["ref"], *entry["dependsOn"])} == references


def test_the_provenance_names_every_file_and_what_it_was_made_of(release: Release) -> None:
    statement = document(release, "provenance.intoto.json")
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    chart = f"autoscale-{VERSION}.tgz"
    assert set(subjects) == {
        chart,
        "images/autoscaler-agent-amd64.tar",
        "release.json",
        "sbom/autoscaler-agent-amd64.cdx.json",
    }
    assert subjects[chart] == hashlib.sha256((release.folder / chart).read_bytes()).hexdigest()
    definition = statement["predicate"]["buildDefinition"]
    repository, *materials = definition["resolvedDependencies"]
    assert repository["uri"] == "git+https://example.test/autoscale"
    assert repository["digest"]["gitCommit"] == Checkout().revision
    assert len(materials) == 2


def test_the_checksums_are_those_of_the_files(release: Release) -> None:
    done = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=release.folder, check=False)
    assert done.returncode == 0


def test_the_chart_has_the_version_and_the_digests(release: Release) -> None:
    (found,), values = release.images, chart_file(release, "values.yaml")
    assert f"\nversion: {VERSION}\nappVersion: v{VERSION}\n" in chart_file(release, "Chart.yaml")
    assert f'repository: autoscaler-agent, tag: "", digest: "{found.digest}"' in values
    assert 'repository: autoscale-scheduler, tag: "", digest: ""' in values, "it is not in this release"


def test_an_image_for_two_machines_is_named_by_the_digest_of_the_index_over_both(tmp_path: Path) -> None:
    archives = [image(tmp_path / "built", machine=each) for each in ("amd64", "arm64")]
    release = assemble(Checkout(), archives, tmp_path / "release")
    index = oci.digest_of(oci.index({each.architecture: each.manifest for each in release.images}))
    assert document(release, "release.json")["images"] == {"autoscaler-agent": index}
    assert f'repository: autoscaler-agent, tag: "", digest: "{index}"' in chart_file(release, "values.yaml")


def test_a_release_that_is_made_again_is_equal_to_the_byte(tmp_path: Path, release: Release) -> None:
    again = assemble(Checkout(), [image(tmp_path / "again")], tmp_path / "other", "https://example.test/autoscale")
    assert again.airgapped.read_bytes() == release.airgapped.read_bytes()


def test_one_archive_has_everything_and_the_script_that_pushes(release: Release) -> None:
    with tarfile.open(release.airgapped) as archive:
        found = {each.name.partition("/")[2]: each.mode for each in archive}
    here = {str(path.relative_to(release.folder)) for path in release.folder.rglob("*") if path.is_file()}
    assert found.keys() == (here - {release.airgapped.name}) | {"push_images.py"}
    assert found["push_images.py"] == 0o755


def test_the_chart_of_the_checkout_has_the_projects_version() -> None:
    chart = (Checkout().root / "deploy/kubernetes/chart/autoscale/Chart.yaml").read_text()
    assert f"\nversion: {Checkout().version}\n" in chart
    assert Checkout().version == VERSION


def test_what_is_no_archive_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "image.tar").write_bytes(tar_of(tree([File("x", b"y")])))
    assert main([str(tmp_path / "image.tar"), "--output", str(tmp_path / "release")]) == 2
    assert capsys.readouterr().err == "release: this is no image archive: it has no index.json\n"
