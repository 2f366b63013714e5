"""A release describes its content and provenance, and is reproducible byte by byte."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
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
from deploy.release.documents import Component, changes, components
from protocol import VERSION
from tests import plain_yaml

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
    layer = StoredLayer(folder / "layer", oci.Descriptor.of(oci.LAYER, packed), oci.digest_of(plain))
    layer.path.write_bytes(packed)
    run = oci.RunConfig(machine, labels={"org.opencontainers.image.title": name})
    path = folder / f"{name}-{machine}.tar"
    write_archive(path, Contents(run, (layer,)), f"x/{name}:v1")
    return path


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return assemble(Checkout(), [image(tmp_path / "built")], tmp_path / "release", "https://example.test/autoscale")


def document(release: Release, name: str) -> Any:
    return json.loads((release.folder / name).read_text())


def chart_file(release: Release, name: str) -> str:
    with tarfile.open(release.folder / f"autoscale-{VERSION}.tgz") as chart:
        return (chart.extractfile(f"autoscale/{name}") or io.BytesIO()).read().decode()


def test_image_inventory_reads_its_files() -> None:
    assert components(FILES) == [
        Component("deb", "libc6", "2.36-9+deb12u10", "amd64"),
        Component("pypi", "proto-buf", "6.1"),
    ]
    with pytest.raises(ValueError, match=r"status\.d/x has no name or no version"):
        components({"var/lib/dpkg/status.d/x": b"Package: x\n"})


def test_guest_inventory_reads_package_list() -> None:
    listed = STATUS.replace(b"libc6\n", b"libc6\nStatus: install ok installed\n", 1)
    gone = listed.replace(b"libc6", b"perl").replace(b"install ok installed", b"deinstall ok config-files")
    files = {"var/lib/dpkg/status": listed + b"\n" + gone + b"\n", "disk.qcow2": b"x"}
    assert components(files) == [Component("deb", "libc6", "2.36-9+deb12u10", "amd64")]


def test_each_image_has_sbom_for_digest(release: Release) -> None:
    (found,) = release.images
    listed = document(release, "autoscaler-agent-amd64.cdx.json")
    about = listed["metadata"]["component"]
    assert (listed["bomFormat"], listed["specVersion"], about["version"]) == ("CycloneDX", "1.5", VERSION)
    assert f"sha256:{about['hashes'][0]['content']}" == found.digest
    assert [each["purl"] for each in listed["components"]] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12",
        "pkg:pypi/proto-buf@6.1",
    ]
    references = {about["bom-ref"], *(each["bom-ref"] for each in listed["components"])}
    assert {each for entry in listed["dependencies"] for each in (entry["ref"], *entry["dependsOn"])} == references


def test_provenance_names_files_and_inputs(release: Release) -> None:
    statement = document(release, "provenance.intoto.json")
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    chart = f"autoscale-{VERSION}.tgz"
    assert set(subjects) == {
        chart,
        "CHANGES.md",
        "autoscaler-agent-amd64.cdx.json",
        "images/autoscaler-agent-amd64.tar",
        "release.json",
    }
    assert subjects[chart] == hashlib.sha256((release.folder / chart).read_bytes()).hexdigest()
    definition = statement["predicate"]["buildDefinition"]
    repository, *materials = definition["resolvedDependencies"]
    assert repository["uri"] == "git+https://example.test/autoscale"
    assert repository["digest"]["gitCommit"] == Checkout().revision
    assert len(materials) == 2


def names_in_sums(folder: Path) -> set[str]:
    """Files in a folder's checksums, which are verified."""
    done = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"], cwd=folder, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return {line.removesuffix(": OK") for line in done.stdout.splitlines()}


def test_checksums_match_downloads(release: Release, tmp_path: Path) -> None:
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    for each in (path for path in release.folder.iterdir() if path.is_file()):
        shutil.copy(each, downloads)
    assert names_in_sums(downloads) == {each.name for each in downloads.iterdir()} - {"SHA256SUMS"}
    assert release.airgapped.name in names_in_sums(downloads)


def test_the_chart_has_the_version_and_the_digests(release: Release) -> None:
    (found,), values = release.images, chart_file(release, "values.yaml")
    assert f"\nversion: {VERSION}\nappVersion: v{VERSION}\n" in chart_file(release, "Chart.yaml")
    assert f'repository: autoscaler-agent, tag: "", digest: "{found.digest}"' in values
    assert 'repository: autoscale-scheduler, tag: "", digest: ""' in values, "it is not in this release"


def test_multi_platform_image_is_named_by_index(tmp_path: Path) -> None:
    archives = [image(tmp_path / "built", machine=each) for each in ("amd64", "arm64")]
    release = assemble(Checkout(), archives, tmp_path / "release")
    index = oci.digest_of(oci.index({each.architecture: each.manifest for each in release.images}))
    assert document(release, "release.json")["images"] == {"autoscaler-agent": index}
    assert f'repository: autoscaler-agent, tag: "", digest: "{index}"' in chart_file(release, "values.yaml")


def test_release_is_reproducible(tmp_path: Path, release: Release) -> None:
    again = assemble(Checkout(), [image(tmp_path / "again")], tmp_path / "other", "https://example.test/autoscale")
    assert again.airgapped.read_bytes() == release.airgapped.read_bytes()


def test_archive_is_complete_with_push_script(release: Release, tmp_path: Path) -> None:
    with tarfile.open(release.airgapped) as archive:
        found = {each.name.partition("/")[2]: each.mode for each in archive}
    subprocess.run(["tar", "--extract", f"--file={release.airgapped}", f"--directory={tmp_path}"], check=True)
    here = {str(path.relative_to(release.folder)) for path in release.folder.rglob("*") if path.is_file()}
    assert found.keys() == (here - {release.airgapped.name}) | {"push_images.py"}
    assert {name for name, mode in found.items() if mode != 0o644} == {"push_images.py"}
    assert names_in_sums(tmp_path / release.airgapped.stem) == found.keys() - {"SHA256SUMS"}


def test_chart_uses_pushed_images(tmp_path: Path, release: Release) -> None:
    there = assemble(Checkout(), [image(tmp_path / "again")], tmp_path / "other", registry="ghcr.io/team/autoscale")
    assert document(there, "release.json")["registry"] == "ghcr.io/team/autoscale"
    places = [plain_yaml.load(chart_file(each, "values.yaml"))["image"]["registry"] for each in (release, there)]
    assert places == ["localhost:5001", "ghcr.io/team/autoscale"]


CHANGELOG = """# Changelog

## [Unreleased]

- Next.

## [0.2.0] - 2026-11-22

### Fixed

- A [fault](x.md).

## [0.1.0]

- First.

[0.1.0]: ../../releases/tag/v0.1.0
"""


@pytest.mark.parametrize(
    ("version", "said"),
    [("0.2.0", "### Fixed\n\n- A [fault](x.md).\n"), ("0.1.0", "- First.\n"), ("Unreleased", "- Next.\n")],
)
def test_release_notes_match_version(version: str, said: str) -> None:
    assert changes(CHANGELOG, version) == said


def test_unlisted_version_is_not_released() -> None:
    with pytest.raises(ValueError, match=r"has no section \[0\.2\]"):
        changes(CHANGELOG, "0.2")


def test_a_release_comes_with_its_changes(release: Release) -> None:
    text = (release.folder / "CHANGES.md").read_text()
    assert text in (Checkout().root / "CHANGELOG.md").read_text()
    assert (text[:4], "\n## " in text, "\n[" in text) == ("### ", False, False)


def test_chart_has_project_version() -> None:
    chart = (Checkout().root / "deploy/kubernetes/chart/autoscale/Chart.yaml").read_text()
    assert f"\nversion: {Checkout().version}\n" in chart
    assert Checkout().version == VERSION


def test_what_is_no_archive_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "image.tar").write_bytes(tar_of(tree([File("x", b"y")])))
    assert main([str(tmp_path / "image.tar"), "--output", str(tmp_path / "release")]) == 2
    assert capsys.readouterr().err == "release: not an image archive: it has no index.json\n"
